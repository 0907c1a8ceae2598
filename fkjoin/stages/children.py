"""children, by foreign key: per right row the map of its left rows by their key (KIP-213's alternative B).

Store: as subscription's, ``{'r'}{foreign key}`` → the right row and ``{'s'}{CombinedKey}`` → a left row, so that a change of
one left row writes that row alone, however many there are under its foreign key; and ``{'d'}{foreign key}`` → a counter as
the result's version, and a 128-bit hash of the result.

*Law*: the result of a right row is the row and all left rows whose foreign key names it, in byte order of the left keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, records, versions
from fkjoin.codec.arrays import (
    Bytes,
    Ints,
    codes,
    constant,
    equal,
    last_of_run,
    masked,
    prefixed,
    stack,
    take,
    untagged,
    valid,
)
from fkjoin.codec.messages import RESULT, Operation, column, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.stages import counters
from fkjoin.stages.aggregate import counters_of
from fkjoin.stages.counters import Counters
from fkjoin.stages.resolve import HAS_RESULT, digests
from fkjoin.stages.retention import GONE, due_entries, sweep
from fkjoin.stages.subscription import Rights, Subscribes, named, read_rights, read_subscribes, write_sides
from fkjoin.state import Store, byte_order, prefix_range

AT_A_TIME = 262_144
"""Left rows that are put into maps at a time, rounded up to whole groups."""


@dataclass(frozen=True)
class Family:
    """The schemas of left keys, left rows and right rows, and the result's: the right row's columns and the map."""

    key: pa.Schema
    left: pa.Schema
    right: pa.Schema
    result: pa.Schema

    def rows(self, rights: Bytes, group: Ints, keys: Bytes, lefts: Bytes) -> Bytes:
        """Encoded results: ``group`` (ascending) says which of the ``rights`` (null: no result) each left row belongs to."""
        bounds = np.searchsorted(group, np.arange(len(rights) + 1)).astype(np.int32)
        kind = self.result.field(len(self.result) - 1).type
        names = KeyCodec(self.key).decode(keys)
        name = names[0] if len(names) == 1 else pa.StructArray.from_arrays(names, fields=list(self.key))
        row = pa.StructArray.from_arrays(RowCodec(self.left).decode(lefts), fields=list(self.left))
        children = pa.MapArray.from_arrays(pa.array(bounds), name, row, type=kind)
        return masked(
            RowCodec(self.result).encode([*RowCodec(self.right).decode(rights), children], len(rights)), valid(rights)
        )


def children(
    subscriptions: pa.Table,
    rights: pa.Table,
    store: Store,
    count: Counters,
    family: Family,
    *,
    source: bytes,
    now_ms: int,
    retention_ms: int,
    every: bool = False,
    in_order: bool = True,
    rights_in_order: bool = False,
) -> Iterator[pa.Table]:
    """Turn ``subscriptions`` (``SUBSCRIPTION``) and ``rights`` (``CHANGE``) into changes of the table (``RESULT``), in pages.

    The store is written when the iterator is exhausted.  ``source``, ``every``: as for ``aggregate``; ``in_order``,
    ``rights_in_order``: as for ``subscription``.
    """
    sweep(store, now_ms, partial(named, store), now_ms + retention_ms)
    count[counters.RIGHT_IN] += len(rights)
    if not len(subscriptions) and not len(rights):
        return
    code, keys = codes(stack(column(subscriptions, "foreign_key"), column(rights, "key")))
    split = len(subscriptions)
    right = read_rights(rights, code[split:], keys, store, count, 1, rights_in_order)
    left = read_subscribes(subscriptions, code[:split], store, count, in_order)
    touched = np.unique(np.concatenate([left.code, right.code[right.stored :]]))
    now = _last_rights(right)
    names = prefixed(b"d", keys)
    held = records.decode(store.get_many(names))
    ts = _latest(left, right, len(keys))
    prefixes = prefixed(b"s", combined_key.prefixes(keys))
    order = touched[byte_order(take(prefixes, touched))]
    entries: list[tuple[Bytes, Bytes]] = []
    for groups, members, lefts in _members(store, order, prefixes, left):
        place = np.full(len(keys), -1)
        place[groups] = np.arange(len(groups))
        of = place[members.group]
        _, left_keys = combined_key.decode(untagged(members.names))
        results = family.rows(take(right.value, now[groups]), of, left_keys, lefts)
        made, written = _emitted(results, groups, keys, names, held, ts, source, now_ms, retention_ms, every, count)
        entries.append(written)
        yield made
    write_sides(store, keys, right, left, now_ms, retention_ms, in_order)
    for written in entries:
        store.write(*written)


def stored(store: Store, family: Family) -> Iterator[tuple[Bytes, Bytes, Bytes, Ints]]:
    """All results, page by page, as the store has them: the foreign keys, the rows, their versions and timestamps."""
    for page in store.scan([prefix_range(b"r")]):
        live = records.decode(page.values).flags & GONE == 0
        keys, rights = (untagged(page.keys.filter(pa.array(live))), records.decode(page.values.filter(pa.array(live))).body)
        if not len(keys):
            continue
        marks = records.decode(store.get_many(prefixed(b"d", keys)))
        prefixes = prefixed(b"s", combined_key.prefixes(keys))
        order = byte_order(prefixes)
        for groups, members, lefts in _members(store, order, prefixes, None):
            place = np.full(len(keys), -1)
            place[groups] = np.arange(len(groups))
            _, left_keys = combined_key.decode(untagged(members.names))
            rows = family.rows(take(rights, groups), place[members.group], left_keys, lefts)
            yield take(keys, groups), rows, take(marks.version, groups), marks.ts[groups]


@dataclass(frozen=True)
class _Some:
    """Left rows: their names in the store, and the groups that they are in, in order of both."""

    names: Bytes
    group: Ints


def _members(store: Store, order: Ints, prefixes: Bytes, left: Subscribes | None) -> Iterator[tuple[Ints, _Some, Bytes]]:
    """Groups of ``order`` in turn, with all left rows that they have after the batch of ``left``.

    ``order``: the groups, sorted by their prefixes.
    """
    touched, fresh = constant(None, 0), (constant(None, 0), np.zeros(0, np.int64), constant(None, 0))
    if left is not None:
        final = np.flatnonzero(last_of_run(left.combined))
        wanted = final[left.wanted[final]]
        touched, fresh = left.names, (take(left.names, left.combined[wanted]), left.code[wanted], take(left.value, wanted))
    gathered: list[tuple[Bytes, Ints, Bytes]] = []
    begun, size = 0, 0
    for page in store.scan([prefix_range(prefix) for prefix in take(prefixes, order).to_pylist()]):
        held = records.decode(page.values)
        stays = held.flags & GONE == 0
        if len(touched):
            stays &= ~valid(pc.index_in(page.keys, value_set=touched))
        some = np.flatnonzero(stays)
        here = int(page.ranges[0])
        if size >= AT_A_TIME and here > begun:
            yield _put_together(order[begun:here], gathered, fresh)
            gathered = [_after(*part, order[begun:here]) for part in gathered]
            begun, size = here, sum(len(part[0]) for part in gathered)
        gathered.append((take(page.keys, some), order[page.ranges[some]], take(held.body, some)))
        size += len(some)
    yield _put_together(order[begun:], gathered, fresh)


def _after(names: Bytes, group: Ints, values: Bytes, done: Ints) -> tuple[Bytes, Ints, Bytes]:
    """What does not belong to the groups that are ``done``."""
    left = np.flatnonzero(~np.isin(group, done))
    return take(names, left), group[left], take(values, left)


def _put_together(
    groups: Ints, gathered: list[tuple[Bytes, Ints, Bytes]], fresh: tuple[Bytes, Ints, Bytes]
) -> tuple[Ints, _Some, Bytes]:
    """The groups, and their left rows, in order of the groups and of the rows' names."""
    parts = [*gathered, fresh]
    names, values = stack(*(part[0] for part in parts)), stack(*(part[2] for part in parts))
    group = np.concatenate([part[1] for part in parts])
    mine = np.flatnonzero(np.isin(group, groups))
    mine = mine[byte_order(take(names, mine))]
    return groups, _Some(take(names, mine), group[mine]), take(values, mine)


def _last_rights(right: Rights) -> Ints:
    """The row of each foreign key's right row after the batch."""
    now = np.arange(right.stored)
    changes = right.stored + np.arange(len(right.code) - right.stored)
    now[right.code[changes]] = changes  # ascending by version: the last one stays
    return now


def _latest(left: Subscribes, right: Rights, groups: int) -> Ints:
    """The greatest timestamp of each group's changes in the batch, and of its right row."""
    found = right.ts[: right.stored].copy()
    np.maximum.at(found, right.code[right.stored :], right.ts[right.stored :])
    np.maximum.at(found, left.code, left.ts)
    return found


def _emitted(
    results: Bytes,
    groups: Ints,
    keys: Bytes,
    names: Bytes,
    held: records.Records,
    ts: Ints,
    source: bytes,
    now_ms: int,
    retention_ms: int,
    every: bool,
    count: Counters,
) -> tuple[pa.Table, tuple[Bytes, Bytes]]:
    """What of the groups' results is sent, and the entries that remember it."""
    digest = digests(results)
    there, had = valid(digest), held.flags[groups] & HAS_RESULT > 0
    same = equal(digest, masked(take(held.body, groups), had))
    emit = ~same | (there & every)
    count[counters.IDEMPOTENT] += int((same & there & ~emit).sum())
    count[counters.TOMBSTONES] += int((~there & ~had).sum())
    count[counters.OUT] += int(emit.sum())
    before = counters_of(take(held.version, groups))
    number = np.where(emit, np.maximum(before + 1, now_ms), before)
    version = versions.encode(source, [number])
    operation = np.where(~there, Operation.DELETE, np.where(had, Operation.UPDATE, Operation.INSERT)).astype(np.int8)
    sent = np.flatnonzero(emit)
    marks, time = take(version, sent), ts[groups][sent]
    made = table(RESULT, take(keys, groups[sent]), operation[sent], take(results, sent), marks, time)
    flags = np.where(there, HAS_RESULT, GONE).astype(np.uint8)[sent]
    written = take(names, groups[sent])
    kept = records.encode(flags, time, marks, take(digest, sent))
    gone = pa.array(~there[sent])
    due = due_entries(written.filter(gone), marks.filter(gone), now_ms + retention_ms)
    return made, (stack(written, due[0]), stack(kept, due[1]))
