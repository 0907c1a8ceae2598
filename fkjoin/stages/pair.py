"""pair, by primary key: the rows that two tables have under one key, and what a join makes of them.

See docs/semantics.md, "Joins by primary key".

*Law*: after every batch the join is what its tables are, key by key: of a key's rows the newest of
each table by the versions, whatever the order in which their changes came, and however they were
cut into batches.  A result has the versions of both tables' last changes of the key, deletions
among them, and the later timestamp of these two.  Of results, what differs from the one that was
emitted last is emitted.

``pair`` is the whole join.  ``answers_by_key`` is its first half, for a joiner that is Spark's:
resolve is the other one.

Store: ``{'d'}{key}`` → both versions, the timestamp of the result, and ``{version, row}`` of either
table, a 128-bit hash of the result that was emitted last (in a table that is materialized, followed
by the result), and the tables' timestamps.  The record of a key that neither table has any more is
a tombstone marker for the retention time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import versions
from fkjoin.codec.arrays import (
    Bools,
    Ints,
    chosen,
    concat,
    constant,
    equal,
    masked,
    replaced,
    take,
    untagged,
    valid,
)
from fkjoin.codec.messages import ANSWER, NO_TIMESTAMP, column, table
from fkjoin.codec.records import Records
from fkjoin.codec.rows import RowCodec, bytes_codec
from fkjoin.stages import counters
from fkjoin.stages.emit_on_change import (
    DIGEST_BYTES,
    HAS_RESULT,
    EmitDecision,
    Ending,
    digests,
    entries,
)
from fkjoin.stages.ordering import looked_up
from fkjoin.stages.retention import sweep
from fkjoin.stages.slots import Slot, take_in
from fkjoin.state import Bytes, Store

_Parts = tuple[int, int]
"""The number of parts of the left and of the right table's versions."""

_TIMES = ("left_ts", pa.int64()), ("right_ts", pa.int64())
_CODEC = RowCodec(pa.schema([*bytes_codec(5).schema, *_TIMES]))
_NUMBERS = counters.LEFT_IN, counters.RIGHT_IN


class Sides(NamedTuple):
    """The rows of both tables under each key, and what was emitted of them last."""

    slots: list[Slot]
    emitted: Bytes
    ts: list[Ints]
    """Timestamps of the last changes of either table."""


class _Batch(NamedTuple):
    """A batch, taken in; the keys that it touched."""

    names: Bytes
    held: Records
    sides: Sides
    taken: Bools
    """The keys of which it has a newer row, or a newer deletion."""
    version: Bytes
    answers: pa.Table
    """Answers (``ANSWER``) of those that are taken."""


def pair(
    rows: pa.Table,
    store: Store,
    count: counters.Counters,
    make: Callable[[pa.Table], pa.Table],
    *,
    now_ms: int,
    retention_ms: int,
    parts: _Parts,
    in_order: Sequence[bool] = (),
    materialized: bool = False,
    every: bool = False,
) -> pa.Table:
    """Turn rows of two tables (``NUMBERED``) into changes of their join (``RESULT``).

    Rows come in any order, duplicates allowed.  ``make``: a function from answers (``ANSWER``) to
    joined rows (``JOINED``); of an answer that it leaves out, the last result stays.
    ``materialized``: keep the results.  ``every``: also emit results that are unchanged (emit on
    update). ``parts``: of both tables' versions.  ``in_order``: of each table, see ``newest_only``.
    """
    batch = _taken(rows, store, count, parts=parts, now_ms=now_ms, in_order=in_order)
    joined = make(batch.answers)
    # The joiner leaves out answers on which it throws: of these keys the last result stays.  Their
    # rows and versions are written all the same.
    touched = np.flatnonzero(batch.taken)
    keys_made = touched[pc.index_in(column(joined, "key"), column(batch.answers, "key")).to_numpy()]
    usable = np.zeros(len(batch.taken), bool)
    usable[keys_made] = True
    value = column(joined, "value")

    had = batch.held.flags & HAS_RESULT > 0
    before = masked(batch.sides.emitted, had)
    digest = replaced(constant(None, len(had)), keys_made, digests(value))
    has = np.where(usable, valid(digest), had)
    unchanged = equal(digest, pc.binary_slice(before, 0, DIGEST_BYTES))
    emission = EmitDecision.of(had, has, unchanged, count, every=every, among=usable)
    ts = np.where(emission.emit, np.maximum(*batch.sides.ts), batch.held.ts)
    row = replaced(constant(None, len(had)), keys_made, value)
    results = emission.results(untagged(batch.names), row, batch.version, ts)

    body = masked(concat(digest, row), valid(digest)) if materialized else digest
    body = replaced(before, keys_made, take(body, keys_made))
    _write(store, batch, body, has=has, ts=ts, due_ms=now_ms + retention_ms)
    return results


def answers_by_key(
    rows: pa.Table,
    store: Store,
    count: counters.Counters,
    *,
    now_ms: int,
    retention_ms: int,
    parts: _Parts,
    in_order: Sequence[bool] = (),
) -> pa.Table:
    """Turn rows of two tables into answers (``ANSWER``), one of each key with a newer row.

    See ``pair``.
    """
    batch = _taken(rows, store, count, parts=parts, now_ms=now_ms, in_order=in_order)
    keys = len(batch.taken)
    nothing, has, ts = constant(None, keys), np.zeros(keys, bool), np.maximum(*batch.sides.ts)
    _write(store, batch, nothing, has=has, ts=ts, due_ms=now_ms + retention_ms)
    return batch.answers


def sides_of(bodies: Bytes) -> Sides:
    """Read bodies of records; of null, what no table has."""
    *columns, left_ts, right_ts = _CODEC.decode(bodies)
    ts = [pc.fill_null(time, NO_TIMESTAMP).to_numpy() for time in (left_ts, right_ts)]
    return Sides([Slot(*columns[0:2]), Slot(*columns[2:4])], columns[4], ts)


def _taken(
    rows: pa.Table,
    store: Store,
    count: counters.Counters,
    *,
    parts: _Parts,
    now_ms: int,
    in_order: Sequence[bool] = (),
) -> _Batch:
    sweep(store, now_ms)
    number = column(rows, "number").to_numpy()
    for side, counter in enumerate(_NUMBERS):
        count[counter] += int((number == side).sum())
    code, keys, names, held = looked_up(rows, store)
    sides = sides_of(held.body)
    taken = np.zeros(len(keys), bool)
    changes = take_in(rows, code, sides.slots, held=held, count=count, in_order=in_order)
    for side, (where, times) in enumerate(changes):
        taken[where] = True
        sides.ts[side] = sides.ts[side].copy()
        sides.ts[side][where] = times
    both = zip(sides.slots, parts, strict=True)
    version = concat(*(pc.fill_null(slot.version, versions.absent(width)) for slot, width in both))
    left, right = (chosen(slot.row, taken) for slot in sides.slots)
    ts = np.maximum(*sides.ts)[taken]
    answers = table(ANSWER, chosen(keys, taken), chosen(version, taken), left, right, ts)
    return _Batch(names, held, sides, taken, version, answers)


def _write(
    store: Store, batch: _Batch, emitted: Bytes, *, has: Bools, ts: Ints, due_ms: int
) -> None:
    (left, right), times = batch.sides.slots, map(pa.array, batch.sides.ts)
    body = _CODEC.encode([*left, *right, emitted, *times], len(emitted))
    gone = ~valid(left.row) & ~valid(right.row)
    written = entries(
        batch.names, ts, batch.version, body, Ending(gone, due_ms), has=has, among=batch.taken
    )
    store.write(*written)
