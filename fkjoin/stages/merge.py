"""merge, by key: several tables with the same columns as one; of several rows the first is shown.

See docs/semantics.md, "Merge".

*Law*: after every batch the table is what the tables are, one laid over the other, whatever the
order in which their changes came: a row that moves from one table to the other is never lost to a
stale tombstone of the one that it left.

Store: ``{'d'}{key}`` → a counter as version, the greatest timestamp, and
``{1 byte: number of tables}`` with each table's last version and row, null where it never had one,
or has none any more.

*Origins*: where all tables' rows come from topics, versions of results continue with
``{1 byte: number of the table whose row is shown}`` and with each table's last version, absent
where it never had the key.  Of a key they only grow, so a reader may take them all together as a
version; operators of the same query do not see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import versions
from fkjoin.codec.arrays import (
    Octets,
    after,
    buffers,
    concat,
    constant,
    equal,
    fixed,
    valid,
    window,
)
from fkjoin.codec.messages import NO_TIMESTAMP, RESULT
from fkjoin.codec.rows import bytes_codec
from fkjoin.stages import counters
from fkjoin.stages.emit_on_change import HAS_RESULT, EmitDecision, Ending, entries
from fkjoin.stages.ordering import looked_up
from fkjoin.stages.retention import sweep
from fkjoin.stages.slots import Slot, take_in
from fkjoin.state import Bytes, Store

_NO_TABLE = 255
"""In the place of the number of the table that is shown: none is."""


def merge(
    rows: pa.Table,
    store: Store,
    count: counters.Counters,
    tables: int,
    *,
    source: bytes,
    now_ms: int,
    retention_ms: int,
    every: bool = False,
    in_order: Sequence[bool] = (),
    origins: Sequence[int] = (),
) -> pa.Table:
    """Turn rows of so many ``tables`` (``NUMBERED``) into changes of one (``RESULT``).

    Rows come in any order, duplicates allowed.  ``source``: identity of the table's own versions,
    which are a counter that never falls behind the clock's milliseconds. ``every``: also emit rows
    that are unchanged.  ``in_order``: of each table, see ``newest_only``.  ``origins``: the parts
    of each table's versions, if results are to have them.
    """
    sweep(store, now_ms)
    count[counters.ROWS_IN] += len(rows)
    if not len(rows):
        return RESULT.empty_table()
    code, keys, names, held = looked_up(rows, store)
    slots = _slots(held.body, tables)
    shown_before = _shown(slots)
    taken, latest = np.zeros(len(keys), bool), np.full(len(keys), NO_TIMESTAMP)
    for where, times in take_in(rows, code, slots, held=held, count=count, in_order=in_order):
        taken[where] = True
        latest[where] = np.maximum(latest[where], times)

    shown = _shown(slots)
    had, has = held.flags & HAS_RESULT > 0, valid(shown)
    unchanged = equal(shown_before, shown)
    emission = EmitDecision.of(had, has, unchanged, count, every=every, among=taken)
    version = emission.own_versions(held, source, now_ms)
    latest = np.maximum(latest, np.where(held.exists, held.ts, NO_TIMESTAMP))
    ts = np.where(emission.emit, latest, held.ts)
    emitted = concat(version, _origins(slots, origins)) if origins else version
    changes = emission.results(keys, shown, emitted, ts)

    columns = bytes_codec(2 * tables).encode(list(chain.from_iterable(slots)), len(keys))
    body = concat(constant(bytes((tables,)), len(keys)), columns)
    ending = Ending(~has, now_ms + retention_ms)
    store.write(*entries(names, ts, version, body, ending, has=has, among=taken))
    return changes


def shown_rows(bodies: Bytes) -> Bytes:
    """The rows that are shown, of bodies of records; null where there is none."""
    slots = slots_of(bodies)
    return _shown(slots) if slots else constant(None, len(bodies))


def slots_of(bodies: Bytes) -> list[Slot]:
    """Read from bodies of records what each table has under the keys; no slots without bodies."""
    data, bounds = buffers(bodies)
    known = np.flatnonzero(np.diff(bounds) > 0)
    return _slots(bodies, int(data[bounds[known[0]]])) if len(known) else []


def origins_of(version: Bytes) -> tuple[Octets, Bytes]:
    """Read origins behind versions: the number of the shown table, the versions of all tables."""
    _, rest = versions.split(version, 1)
    data, bounds = buffers(rest)
    return window(data, bounds[:-1], 1)[:, 0], after(rest, 1)


def _origins(slots: list[Slot], parts: Sequence[int]) -> Bytes:
    # Backwards, so that the first table with a row is written last, and stays.
    shown = np.full(len(slots[0].row), _NO_TABLE)
    for number in reversed(range(len(slots))):
        shown[valid(slots[number].row)] = number
    known = zip(slots, parts, strict=True)
    last = [pc.fill_null(slot.version, versions.absent(count)) for slot, count in known]
    return concat(fixed(shown.astype(np.uint8)), *last)


def _slots(bodies: Bytes, tables: int) -> list[Slot]:
    untagged_bodies = after(bodies, 1, valid(bodies))
    columns = bytes_codec(2 * tables).decode(untagged_bodies)
    return [Slot(*columns[first : first + 2]) for first in range(0, 2 * tables, 2)]


def _shown(slots: list[Slot]) -> Bytes:
    return pc.coalesce(*(slot.row for slot in slots))
