"""children, by foreign key: per right row the map of its left rows by their key (KIP-213's
alternative B).

See docs/semantics.md, "Children".

Store: as subscription's, ``{'r'}{foreign key}`` → the right row and ``{'s'}{CombinedKey}`` → a left
row, so that a change of one left row writes that row alone, however many there are under its
foreign key; and ``{'d'}{foreign key}`` → a counter as the result's version, and a 128-bit hash of
the result.

*Law*: the result of a right row is the row and all left rows whose foreign key names it, in byte
order of the left keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, records, tags
from fkjoin.codec.arrays import (
    Ints,
    chosen,
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
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.stages import counters
from fkjoin.stages.emit_on_change import HAS_RESULT, EmitDecision, Ending, digests, entries
from fkjoin.stages.retention import GONE
from fkjoin.stages.sides import Rights, Subscribes, read_sides, sweep_sides, write_sides
from fkjoin.state import Bytes, Page, Reads, Store, byte_order, prefix_range

AT_A_TIME = 262_144
"""Left rows that are put into maps at a time, rounded up to whole groups."""


@dataclass(frozen=True)
class Family:
    """The schemas of left keys, left rows and right rows, and of the result.

    It has the right row's columns and the map.
    """

    key: pa.Schema
    left: pa.Schema
    right: pa.Schema
    result: pa.Schema

    def rows(self, rights: Bytes, group: Ints, keys: Bytes, lefts: Bytes) -> Bytes:
        """Encoded results; null where the right row is.

        ``group`` (ascending) says which of the ``rights`` each left row belongs to.
        """
        bounds = np.searchsorted(group, np.arange(len(rights) + 1)).astype(np.int32)
        map_type = self.result.field(len(self.result) - 1).type
        columns = KeyCodec(self.key).decode(keys)
        key = columns[0]
        if len(columns) > 1:
            key = pa.StructArray.from_arrays(columns, fields=list(self.key))
        row = pa.StructArray.from_arrays(RowCodec(self.left).decode(lefts), fields=list(self.left))
        children = pa.MapArray.from_arrays(pa.array(bounds), key, row, type=map_type)
        parts = [*RowCodec(self.right).decode(rights), children]
        return masked(RowCodec(self.result).encode(parts, len(rights)), valid(rights))


def children(
    subscriptions: pa.Table,
    rights: pa.Table,
    store: Store,
    count: counters.Counters,
    family: Family,
    *,
    source: bytes,
    now_ms: int,
    retention_ms: int,
    every: bool = False,
    rights_in_order: bool = False,
) -> Iterator[pa.Table]:
    """Turn ``subscriptions`` (``SUBSCRIPTION``) and ``rights`` (``CHANGE``) into ``RESULT`` pages.

    The store is written when the iterator is exhausted.  ``source``, ``every``: as for
    ``aggregate``; ``rights_in_order``: as for ``subscription``.  Subscriptions come in order.
    """
    sweep_sides(store, now_ms, retention_ms)
    count[counters.RIGHT_IN] += len(rights)
    if not len(subscriptions) and not len(rights):
        return
    keys, right, left = read_sides(
        subscriptions,
        rights,
        store,
        count,
        parts=1,
        in_order=True,
        rights_in_order=rights_in_order,
        unsubscribed_too=True,
    )
    touched = np.unique(np.concatenate([left.code, right.changed]))
    # The row of each foreign key's right row after the batch.  Changes ascend by version: of a key
    # with several, the last one is written last, and stays.
    last_right = np.arange(right.stored)
    last_right[right.changed] = right.stored + np.arange(len(right.changed))
    names = prefixed(tags.ROW, keys)
    stored_results = store.get_many(names)
    ts = _latest(left, right, len(keys))
    prefixes = prefixed(tags.SUBSCRIBER, combined_key.prefixes(keys))
    order = touched[byte_order(take(prefixes, touched))]
    batches: list[tuple[Bytes, Bytes]] = []
    for groups, members in _members(store, order, prefixes, left):
        results = _rows(family, groups, members, take(right.value, last_right[groups]), len(keys))
        digest = digests(results)
        known = records.decode(take(stored_results, groups))
        had = known.flags & HAS_RESULT > 0
        unchanged = equal(digest, masked(known.body, had))
        emission = EmitDecision.of(had, valid(digest), unchanged, count, every=every)
        version = emission.own_versions(known, source, now_ms)

        ending = Ending(~emission.has, now_ms + retention_ms)
        written = entries(
            take(names, groups),
            ts[groups],
            version,
            digest,
            ending,
            has=emission.has,
            among=emission.emit,
        )
        batches.append(written)
        yield emission.results(take(keys, groups), results, version, ts[groups])
    write_sides(
        store, keys, right, left=left, now_ms=now_ms, retention_ms=retention_ms, in_order=True
    )
    # All writes come after the last page: a caller that stops early leaves the store unchanged.
    for written in batches:
        store.write(*written)


def stored(
    store: Reads, family: Family, pages: Iterable[Page]
) -> Iterator[tuple[Bytes, Bytes, Bytes, Ints]]:
    """Read the results of the right rows in ``pages``: foreign keys, rows, versions, timestamps."""
    for page in pages:
        stored_rights = records.decode(page.values)
        live = stored_rights.flags & GONE == 0
        keys, rights = untagged(chosen(page.keys, live)), chosen(stored_rights.body, live)
        if not len(keys):
            continue
        held = records.decode(store.get_many(prefixed(tags.ROW, keys)))
        prefixes = prefixed(tags.SUBSCRIBER, combined_key.prefixes(keys))
        order = byte_order(prefixes)
        for groups, members in _members(store, order, prefixes, None):
            rows = _rows(family, groups, members, take(rights, groups), len(keys))
            yield take(keys, groups), rows, take(held.version, groups), held.ts[groups]


class _Members(NamedTuple):
    """Left rows: their keys in the store, the group that each is in, and the encoded rows."""

    names: Bytes
    group: Ints
    rows: Bytes

    def at(self, positions: Ints) -> _Members:
        """Take the left rows at these positions."""
        names, rows = (take(part, positions) for part in (self.names, self.rows))
        return _Members(names, self.group[positions], rows)


def _rows(family: Family, groups: Ints, members: _Members, rights: Bytes, keys: int) -> Bytes:
    """The results of ``groups``, of so many ``keys``, with their ``rights``."""
    number = np.full(keys, -1)
    number[groups] = np.arange(len(groups))
    _, left_keys = combined_key.decode(untagged(members.names))
    return family.rows(rights, number[members.group], left_keys, members.rows)


def _members(
    store: Reads, order: Ints, prefixes: Bytes, left: Subscribes | None
) -> Iterator[tuple[Ints, _Members]]:
    """Groups of ``order`` in turn, with all left rows that they have after the batch of ``left``.

    ``order``: the groups, sorted by their prefixes, as the scan comes by them::

        for each page of stored left rows:
            if enough are gathered: hand out the groups before the page's first one
            gather the page's rows, but for those that the batch has changed
        hand out the groups that are left

    A page may end within a group: groups are whole only when a page begins with a later one.
    ``begun`` is the position in ``order`` of the first group that has not been handed out.  Groups
    without left rows in the store are between those that have some, and go with them.
    """
    nothing = constant(None, 0)
    touched, fresh = nothing, _Members(nothing, np.zeros(0, np.int64), nothing)
    if left is not None:
        final = np.flatnonzero(last_of_run(left.combined))
        wanted = final[left.wanted[final]]
        touched = left.names
        fresh = _Members(take(left.names, left.combined), left.code, left.value).at(wanted)
    gathered: list[_Members] = []
    begun, size = 0, 0
    for page in store.scan([prefix_range(prefix) for prefix in take(prefixes, order).to_pylist()]):
        held = records.decode(page.values)
        stays = held.flags & GONE == 0
        # Of what the batch has touched, ``fresh`` has the rows that remain.
        if len(touched):
            stays &= ~valid(pc.index_in(page.keys, value_set=touched))
        positions = np.flatnonzero(stays)
        reached = int(page.ranges[0])
        if size >= AT_A_TIME and reached > begun:
            yield _put_together(order[begun:reached], gathered, fresh)
            gathered = [_without(members, order[begun:reached]) for members in gathered]
            begun, size = reached, sum(len(members.names) for members in gathered)
        gathered.append(_Members(page.keys, order[page.ranges], held.body).at(positions))
        size += len(positions)
    yield _put_together(order[begun:], gathered, fresh)


def _without(members: _Members, done: Ints) -> _Members:
    """The left rows of groups that are not ``done``."""
    return members.at(np.flatnonzero(~np.isin(members.group, done)))


def _put_together(groups: Ints, gathered: list[_Members], fresh: _Members) -> tuple[Ints, _Members]:
    """The groups, and their left rows, in order of the groups and of the rows' names."""
    names, group, rows = zip(*gathered, fresh, strict=True)
    every = _Members(stack(*names), np.concatenate(group), stack(*rows))
    mine = every.at(np.flatnonzero(np.isin(every.group, groups)))
    return groups, mine.at(byte_order(mine.names))


def _latest(left: Subscribes, right: Rights, groups: int) -> Ints:
    """The greatest timestamp of each group's changes in the batch, and of its right row."""
    latest = right.ts[: right.stored].copy()
    np.maximum.at(latest, right.changed, right.ts[right.stored :])
    np.maximum.at(latest, left.code, left.ts)
    return latest
