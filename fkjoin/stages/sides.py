"""The two sides that meet under a foreign key: the right row, and the left rows that subscribe.

Both stages that work by foreign key, ``subscription`` and ``children``, have this store:
``{'r'}{foreign key}`` → the right row; ``{'s'}{CombinedKey}`` → a subscriber's version, timestamp
and left row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, records, tags, versions
from fkjoin.codec.arrays import (
    Bools,
    Ints,
    bools,
    changes_from_previous,
    chosen,
    codes,
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
from fkjoin.codec.messages import NO_TIMESTAMP, column
from fkjoin.stages.counters import Counters
from fkjoin.stages.emit_on_change import Ending, entries
from fkjoin.stages.ordering import newest_only, newest_rows
from fkjoin.stages.retention import GONE, later, sweep
from fkjoin.state import BYTES, Bytes, Page, Store, byte_order, prefix_range


class Rights(NamedTuple):
    """Right rows: first the ``stored`` ones, row ``i`` of foreign key ``i``; then the changes.

    The batch's changes are sorted by foreign key and version.
    """

    stored: int
    code: Ints
    version: Bytes
    value: Bytes
    ts: Ints
    since: Ints
    """Timestamp of the change that first led to the row's bytes, which are the same up to here."""
    differs: Bools
    """True for a change that changes the row's bytes."""
    in_order: Bools
    """True for a foreign key whose changes come in order."""

    @property
    def changed(self) -> Ints:
        """The foreign key of each of the batch's changes, ascending."""
        return self.code[self.stored :]


class Subscribes(NamedTuple):
    """The batch's subscribes and unsubscribes, by combined key and version."""

    names: Bytes
    """The keys in the store, of which ``combined`` has the numbers."""
    combined: Ints
    code: Ints
    """The number of the foreign key."""
    key: Bytes
    wanted: Bools
    """The subscribes; the others are unsubscribes."""
    version: Bytes
    value: Bytes
    ts: Ints
    back: Bools
    """True for a combined key whose first version is older than the held one: see ``_fan_out``."""


def read_sides(
    subscriptions: pa.Table,
    rights: pa.Table,
    store: Store,
    count: Counters,
    *,
    parts: int | Sequence[int],
    in_order: bool,
    rights_in_order: bool | Sequence[bool],
    unsubscribed_too: bool,
) -> tuple[Bytes, Rights, Subscribes]:
    """The foreign keys of a batch, and what is stored of both sides, with the batch's changes.

    ``parts``, ``rights_in_order``: of one right table, or of each of several.
    ``unsubscribed_too``: also read the right rows that only unsubscribes name; no answer has them.
    """
    code, keys = codes(stack(column(subscriptions, "foreign_key"), column(rights, "key")))
    of_lefts, of_rights = np.split(code, [len(subscriptions)])
    answered = np.full(len(keys), unsubscribed_too)
    answered[of_lefts[bools(column(subscriptions, "subscribe"))]] = True
    answered[of_rights] = True
    stored_rights = store.get_many(chosen(prefixed(tags.RIGHT, keys), answered))
    held = records.decode(take(stored_rights, np.cumsum(answered) - 1, answered))
    key_in_order = np.full(len(keys), rights_in_order is True)
    if isinstance(rights_in_order, Sequence):
        key_in_order = np.isin(first_bytes(keys), np.flatnonzero(rights_in_order))
    held_value = masked(held.body, held.exists & (held.flags & GONE == 0))
    order, code, version = newest_rows(
        rights, of_rights, held, count, held_value, in_order=key_in_order
    )

    value, ts = take(column(rights, "value"), order), take(column(rights, "ts"), order).to_numpy()
    stored = np.arange(len(keys))
    all_code = np.concatenate([stored, code])
    all_value = stack(held_value, value)
    all_ts = np.concatenate([np.where(held.exists, held.ts, NO_TIMESTAMP), ts])

    # A result has the timestamp of the change that first led to it.  So each change of a run with
    # equal bytes refers to the run's first, or to the stored row if that has these bytes.
    rows = len(keys) + np.arange(len(code))
    first = changes_from_previous(code)
    previous = np.where(first, code, rows - 1)
    unchanged = equal(value, take(all_value, previous))
    run = np.maximum.accumulate(np.where(first | ~unchanged, np.arange(len(code)), 0))
    since = all_ts[np.where(unchanged[run], code[run], rows[run])]
    all_since = np.concatenate([all_ts[stored], since])

    if isinstance(parts, int):
        absent = constant(versions.absent(parts), len(keys))
    else:
        absent = take(pa.array(map(versions.absent, parts), BYTES), first_bytes(keys))
    all_version = stack(pc.if_else(pa.array(held.exists), held.version, absent), version)
    right = Rights(
        len(keys), all_code, all_version, all_value, all_ts, all_since, ~unchanged, key_in_order
    )
    return keys, right, _read_subscribes(subscriptions, of_lefts, store, count, in_order)


def _read_subscribes(
    subscriptions: pa.Table, code: Ints, store: Store, count: Counters, in_order: bool
) -> Subscribes:
    """Read what is stored of the batch's subscribers, and leave out what is not newer.

    ``code``: of the foreign keys.
    """
    sides = column(subscriptions, "foreign_key"), column(subscriptions, "key")
    combined = combined_key.encode(*sides)
    number, names = codes(prefixed(tags.SUBSCRIBER, combined))
    held = records.decode(store.get_many(names))
    order, number, version = newest_only(
        number, column(subscriptions, "version"), held, count, or_equal=True, in_order=in_order
    )
    begins = changes_from_previous(number)
    first_version, known = take(version, np.flatnonzero(begins)), number[begins]
    back = held.exists[known] & versions.is_newer(take(held.version, known), first_version)
    number, names = _renumbered(number, names)
    key, wanted, value, ts = (
        take(column(subscriptions, name), order) for name in ("key", "subscribe", "value", "ts")
    )
    return Subscribes(
        names, number, code[order], key, bools(wanted), version, value, ts.to_numpy(), back
    )


def _renumbered(number: Ints, names: Bytes) -> tuple[Ints, Bytes]:
    """Numbers without gaps, for the names that still occur (``number`` is sorted)."""
    begins = changes_from_previous(number)
    return np.cumsum(begins) - 1 if len(number) else number, take(names, number[begins])


def write_sides(
    store: Store,
    keys: Bytes,
    right: Rights,
    *,
    left: Subscribes,
    now_ms: int,
    retention_ms: int,
    in_order: bool,
) -> None:
    """Write both sides' last changes; ``in_order``: of the left side."""
    last = right.stored + np.flatnonzero(last_of_run(right.changed))
    code = right.code[last]
    value, version = take(right.value, last), take(right.version, last)
    names = prefixed(tags.RIGHT, take(keys, code))
    due_ms, key_in_order = now_ms + retention_ms, right.in_order[code]
    ending = Ending(~valid(value), due_ms, key_in_order)
    of_rights = entries(names, right.ts[last], version, value, ending)

    final = np.flatnonzero(last_of_run(left.combined))
    wanted, version = left.wanted[final], take(left.version, final)
    value = masked(take(left.value, final), wanted)
    ending = Ending(~wanted, now_ms + later(retention_ms), in_order)
    of_lefts = entries(left.names, left.ts[final], version, value, ending)
    store.write(stack(of_rights[0], of_lefts[0]), stack(of_rights[1], of_lefts[1]))


def sweep_sides(store: Store, now_ms: int, retention_ms: int) -> None:
    """Remove the markers that are due, except markers of right rows that left rows name."""
    sweep(store, now_ms, partial(_subscribed_rights, store), now_ms + retention_ms)


def _subscribed_rights(store: Store, names: Bytes) -> Bools:
    """Tell which of the records are of right rows that left rows name.

    The answers for these remember the right row's version for good.  Were its tombstone marker
    swept away, a stale change that counts here would be one that they know to be old, and the
    result would stay what it was.
    """
    right = np.flatnonzero(first_bytes(names) == tags.RIGHT[0])
    foreign_keys = untagged(take(names, right))
    subscribed = np.zeros(len(names), bool)
    for numbers, _ in subscribers(store, foreign_keys, each=1):
        subscribed[right[numbers]] = True
    return subscribed


def subscribers(
    store: Store, foreign_keys: Bytes, each: int | None = None
) -> Iterator[tuple[Ints, Page]]:
    """Read the subscribers of foreign keys, ``each`` so many, in pages.

    With a page come the numbers of its entries' foreign keys.  It is in order of the prefixes, so
    that the store is read from one end to the other.
    """
    prefixes = prefixed(tags.SUBSCRIBER, combined_key.prefixes(foreign_keys))
    order = byte_order(prefixes)
    ranges = [*map(prefix_range, take(prefixes, order).to_pylist())]
    for page in store.scan(ranges, each=each):
        yield order[page.ranges], page
