"""subscription, by foreign key: joins what left rows subscribe to with the right rows (KIP-213, SEMANTICS 2).

A subscribe stores itself and is answered with the right row or with "none"; a right change answers every subscriber,
in byte order of the left key, page by page; one that leaves the row's bytes as they were answers nobody and is counted.
A subscription exists without a right row.

Store: ``{'r'}{foreign key}`` → the right row; ``{'s'}{CombinedKey}`` → a subscriber's version, timestamp and left row.

*Law*: what is answered is what one-by-one processing would answer last.  Events under a foreign key have an order
(``_ranks``); each version of a subscriber holds from its own rank to its next one's, and is answered once when it
begins, with the right row of that moment, and once more if right changes fall into its time, with the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, records, versions
from fkjoin.codec.arrays import (
    BYTES,
    Bools,
    Bytes,
    Ints,
    bools,
    changes_from_previous,
    chosen,
    codes,
    concat,
    constant,
    equal,
    first_bytes,
    last_of_run,
    masked,
    prefixed,
    stack,
    take,
    untagged,
    valid,
)
from fkjoin.codec.messages import ANSWER, NO_TIMESTAMP, column, table
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.ordering import newest_only
from fkjoin.stages.retention import GONE, kept, later, sweep
from fkjoin.state import Store, prefix_range

_RIGHT = b"r"


class Rights(NamedTuple):
    """Right rows: row ``i < n`` is what was stored for foreign key ``i`` of ``n``, then the batch's changes by key."""

    stored: int
    code: Ints
    version: Bytes
    value: Bytes
    ts: Ints
    since: Ints
    """Timestamp of the first of the consecutive changes that left the row's bytes as they are here."""
    differs: Bools
    """Of each of the batch's changes: whether the row's bytes are others than before."""
    in_order: Bools
    """Of which foreign keys changes come in order."""


class Subscribes(NamedTuple):
    """The batch's subscribes and unsubscribes, by combined key and version."""

    names: Bytes
    combined: Ints
    code: Ints
    key: Bytes
    wanted: Bools
    version: Bytes
    value: Bytes
    ts: Ints
    back: Bools
    """Which combined keys have an older version with the batch: what is answered under the one before would count as newer."""


def subscription(
    subscriptions: pa.Table,
    rights: pa.Table,
    store: Store,
    count: Counters,
    *,
    now_ms: int,
    retention_ms: int,
    shared_log: bool = False,
    in_order: bool = False,
    rights_in_order: bool | Sequence[bool] = False,
    right_parts: int | Sequence[int] = 1,
    every: bool = False,
) -> Iterator[pa.Table]:
    """Answer ``subscriptions`` (``SUBSCRIPTION``) and ``rights`` (``CHANGE``); yields ``ANSWER`` tables.

    The store is written when the iterator is exhausted.  ``shared_log``: both sides' versions come from one log and
    order their changes; otherwise a batch's right changes count as earlier than its left ones.  ``in_order``,
    ``rights_in_order``: of subscriptions and of right changes, see ``newest_only``.
    ``right_parts``: of how many parts the right table's versions are made; of several right tables, whose numbers all foreign
    keys begin with, those of each, and so ``rights_in_order``.  ``every``: answer subscribers also when a batch has
    left the right row's bytes as they were; what they were answered last is still right then (KIP-557).
    """
    sweep(store, now_ms, partial(named, store), now_ms + retention_ms)
    count[counters.RIGHT_IN] += len(rights)
    if not len(subscriptions) and not len(rights):
        return
    code, keys = codes(stack(column(subscriptions, "foreign_key"), column(rights, "key")))
    split = len(subscriptions)
    answered = np.zeros(len(keys), bool)
    answered[code[:split][bools(column(subscriptions, "subscribe"))]] = answered[code[split:]] = True
    right = read_rights(rights, code[split:], keys, store, count, right_parts, rights_in_order, answered)
    left = read_subscribes(subscriptions, code[:split], store, count, in_order)
    right_rank, left_rank, top = _ranks(right, left, shared_log)

    bases = right.code[right.stored :] * top + right_rank
    wanted = np.flatnonzero(left.wanted)
    current = _last_between(bases, left.code[wanted], np.full(len(wanted), -1), left_rank[wanted], top)
    row = np.where(current < 0, left.code[wanted], current + right.stored)
    present = valid(right.value)[row]
    ts = np.maximum(left.ts[wanted], np.where(present, right.ts[row], NO_TIMESTAMP))
    yield _answers(count, take(left.key, wanted), take(left.version, wanted), take(left.value, wanted), right, row, ts)

    ends = np.full(len(left.code), top - 1)
    following = np.flatnonzero(~changes_from_previous(left.combined))
    ends[following - 1] = left_rank[following]
    later = _last_between(bases, left.code[wanted], left_rank[wanted], ends[wanted], top)
    hit = np.flatnonzero(later >= 0)
    row, chosen = later[hit] + right.stored, wanted[hit]
    yield _answers(
        count,
        take(left.key, chosen),
        take(left.version, chosen),
        take(left.value, chosen),
        right,
        row,
        right.since[row],
    )

    changed = np.unique(right.code[right.stored :])
    if not every:
        others = np.unique(right.code[right.stored :][right.differs])
        count[counters.IDEMPOTENT] += len(changed) - len(others)
        changed = others
    first_rank = left_rank[np.flatnonzero(changes_from_previous(left.combined))]
    prefixes = prefixed(b"s", combined_key.prefixes(take(keys, changed))).to_pylist()
    order = sorted(range(len(changed)), key=prefixes.__getitem__)
    changed = changed[order]
    fan_out = np.zeros(len(keys), np.int64)
    for page in store.scan([prefix_range(prefixes[i]) for i in order]):
        held = records.decode(page.values)
        live = np.flatnonzero(held.flags & GONE == 0)
        names, of = take(page.keys, live), changed[page.ranges[live]]
        until = np.full(len(live), top - 1)
        if len(left.names):
            touched = pc.index_in(names, value_set=left.names)
            until = np.where(valid(touched), np.where(left.back, -1, first_rank)[touched.fill_null(0).to_numpy()], until)
        last = _last_between(bases, of, np.full(len(live), -1), until, top)
        hit = np.flatnonzero(last >= 0)
        row, chosen = last[hit] + right.stored, live[hit]
        fan_out += np.bincount(of[hit], minlength=len(keys))
        _, left_keys = combined_key.decode(untagged(take(names, hit)))
        yield _answers(count, left_keys, take(held.version, chosen), take(held.body, chosen), right, row, right.since[row])
    if len(changed):
        hottest = int(fan_out.argmax())
        count[counters.FAN_OUT] = most = int(fan_out[hottest])
        if most >= counters.HOT:
            count[counters.HOT_KEY + keys[hottest].as_py().hex()] = most

    write_sides(store, keys, right, left, now_ms, retention_ms, in_order)


def named(store: Store, names: Bytes) -> Bools:
    """Which of the records are of right rows that left rows name: their answers remember the versions for good, so that a late
    change that counts here must not be one that they know to be old.
    """
    right = np.flatnonzero(first_bytes(names) == _RIGHT[0])
    prefixes = prefixed(b"s", combined_key.prefixes(untagged(take(names, right)))).to_pylist()
    found = np.zeros(len(names), bool)
    order = sorted(range(len(prefixes)), key=prefixes.__getitem__)
    for page in store.scan([prefix_range(prefixes[at]) for at in order], each=1):
        found[right[np.array(order)[page.ranges]]] = True
    return found


def read_rights(
    rights: pa.Table,
    code: Ints,
    keys: Bytes,
    store: Store,
    count: Counters,
    parts: int | Sequence[int],
    in_order: bool | Sequence[bool],
    answered: Bools | None = None,
) -> Rights:
    """The batch's changes, and what is stored for the foreign ``keys``; not for those of which nobody is ``answered``."""
    old = records.decode(_stored(store, prefixed(_RIGHT, keys), answered))
    of_operators = np.full(len(keys), in_order is True)
    if isinstance(in_order, Sequence):
        of_operators = np.isin(first_bytes(keys), np.flatnonzero(in_order))
    order, code, version = newest_only(code, column(rights, "version"), old, count, as_read=True, in_order=of_operators)

    value, ts = take(column(rights, "value"), order), take(column(rights, "ts"), order).to_numpy()
    stored = np.arange(len(keys))
    all_code = np.concatenate([stored, code])
    all_value = stack(masked(old.body, old.found & (old.flags & GONE == 0)), value)
    all_ts = np.concatenate([np.where(old.found, old.ts, NO_TIMESTAMP), ts])
    rows = len(keys) + np.arange(len(code))
    first = changes_from_previous(code)
    previous = np.where(first, code, rows - 1)
    same = equal(value, take(all_value, previous))
    head = np.maximum.accumulate(np.where(first | ~same, np.arange(len(code)), 0)) if len(code) else code
    since = all_ts[np.where(same[head], code[head], rows[head])]
    if isinstance(parts, int):
        never = constant(versions.absent(parts), len(keys))
    else:
        never = take(pa.array(map(versions.absent, parts), BYTES), first_bytes(keys))
    stored_version = pc.if_else(pa.array(old.found), old.version, never)
    all_since = np.concatenate([all_ts[stored], since])
    all_version = stack(stored_version, version)
    return Rights(len(keys), all_code, all_version, all_value, all_ts, all_since, ~same, of_operators)


def _stored(store: Store, names: Bytes, wanted: Bools | None) -> Bytes:
    if wanted is None or wanted.all():
        return store.get_many(names)
    return take(store.get_many(chosen(names, wanted)), np.cumsum(wanted) - 1, wanted)


def read_subscribes(subscriptions: pa.Table, code: Ints, store: Store, count: Counters, in_order: bool) -> Subscribes:
    key = column(subscriptions, "key")
    combined = combined_key.encode(column(subscriptions, "foreign_key"), key)
    number, names = codes(prefixed(b"s", combined))
    old = records.decode(store.get_many(names))
    order, number, version = newest_only(number, column(subscriptions, "version"), old, count, or_equal=True, in_order=in_order)
    begins = changes_from_previous(number)
    first, known = take(version, np.flatnonzero(begins)), number[begins]
    back = old.found[known] & versions.is_newer(take(old.version, known), first)
    number, names = _renumbered(number, names)
    columns = (take(column(subscriptions, name), order) for name in ("key", "subscribe", "value", "ts"))
    key, wanted, value, ts = columns
    return Subscribes(names, number, code[order], key, bools(wanted), version, value, ts.to_numpy(), back)


def _renumbered(number: Ints, names: Bytes) -> tuple[Ints, Bytes]:
    """Codes without gaps, for the names that still occur (``number`` is sorted)."""
    kept = number[changes_from_previous(number)]
    return np.cumsum(changes_from_previous(number)) - 1 if len(number) else number, take(names, kept)


def _ranks(right: Rights, left: Subscribes, shared_log: bool) -> tuple[Ints, Ints, int]:
    """The place of each right change and each subscribe in the batch's order, and a number above all of them."""
    changes = len(right.code) - right.stored
    total = changes + len(left.code)
    if not shared_log:
        return np.arange(changes), changes + np.arange(len(left.code)), total + 1
    both = stack(right.version.slice(right.stored), left.version)
    rank = np.empty(total, np.int64)
    rank[np.lexsort((np.arange(total), *versions.sort_columns(both)))] = np.arange(total)
    return rank[:changes], rank[changes:], total + 1


def _last_between(bases: Ints, code: Ints, start: Ints, end: Ints, top: int) -> Ints:
    """Per (foreign key, start, end): the last right change with ``start < rank < end``; -1 where there is none.

    ``bases`` are the sorted numbers ``code * top + rank`` of the right changes.
    """
    position = np.searchsorted(bases, code * top + end) - 1
    found = (position >= 0) & (bases[position] > code * top + start) if len(bases) else np.zeros(len(code), bool)
    return np.where(found, position, -1)


def _answers(count: Counters, key: Bytes, version: Bytes, value: Bytes, right: Rights, row: Ints, ts: Ints) -> pa.Table:
    count[counters.ANSWERS] += len(key)
    return table(ANSWER, key, concat(version, take(right.version, row)), value, take(right.value, row), ts)


def write_sides(
    store: Store, keys: Bytes, right: Rights, left: Subscribes, now_ms: int, retention_ms: int, in_order: bool
) -> None:
    """Write both sides' last changes."""
    last = right.stored + np.flatnonzero(last_of_run(right.code[right.stored :]))
    code = right.code[last]
    value, version = take(right.value, last), take(right.version, last)
    ended = ~valid(value)
    rights = records.encode(np.where(ended, GONE, 0).astype(np.uint8), right.ts[last], version, value)
    names = prefixed(_RIGHT, take(keys, code))
    names, rights = kept(names, rights, version, ended, now_ms + retention_ms, right.in_order[code])

    final = np.flatnonzero(last_of_run(left.combined))
    wanted, version = left.wanted[final], take(left.version, final)
    flags = np.where(wanted, 0, GONE).astype(np.uint8)
    lefts = records.encode(flags, left.ts[final], version, masked(take(left.value, final), wanted))
    written = kept(left.names, lefts, version, ~wanted, now_ms + later(retention_ms), in_order)
    store.write(stack(names, written[0]), stack(rights, written[1]))
