"""resolve, by left key: propagates only what is newest, and only what changes the result (KIP-213, SEMANTICS 3).

The highwater mark of a key is the pair (left version, right version) of the newest answer taken.  An answer is taken
only if its pair is greater.  Of the answers that a batch brings for a key, the last result counts: it is sent on if it
differs from the result last sent, with the timestamp of the answer that first led to it.

Store: ``{'d'}{left key}`` → mark, whether there is a result, and a 128-bit hash of it, followed by the result itself in a
table that is materialized.  A mark outlives its row for the retention time.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from fkjoin.codec import records
from fkjoin.codec.arrays import (
    BYTES,
    Bytes,
    Ints,
    after,
    bools,
    changes_from_previous,
    chosen,
    codes,
    concat,
    constant,
    equal,
    last_of_run,
    masked,
    prefixed,
    stack,
    take,
    valid,
)
from fkjoin.codec.messages import RESULT, Operation, column, table
from fkjoin.stages import counters
from fkjoin.stages.complete import Complete
from fkjoin.stages.counters import Counters
from fkjoin.stages.ordering import newest_only
from fkjoin.stages.retention import GONE, kept, later, sweep
from fkjoin.state import Store, items

HAS_RESULT = 2
DIGEST_BYTES = 16


Keep = Literal["hash", "value", "both"]


class Settled(NamedTuple):
    """Changes of a table (``RESULT``), and the value that each of them replaces; null where there was none or none is kept."""

    results: pa.Table
    before: Bytes


def resolve(
    joined: pa.Table,
    store: Store,
    count: Counters,
    *,
    now_ms: int,
    retention_ms: int,
    materialized: bool = False,
    every: bool = False,
    as_read: bool = False,
    in_order: bool = False,
    complete: Complete | None = None,
) -> pa.Table:
    """Turn answers after the joiner (``JOINED``; any order, duplicates allowed) into changes of the joined table.

    ``materialized``: keep the results, with their timestamps.  ``every``: also send results that are as they were (emit on
    update); never tombstones for what is not there.  ``as_read``, ``in_order``: see ``newest_only``.  ``complete``: of a
    table that is materialized, what makes rows whole that lack values.
    """
    keep: Keep = "both" if materialized else "hash"
    how: Any = {"now_ms": now_ms, "retention_ms": retention_ms, "as_read": as_read, "in_order": in_order}
    return settle(joined, store, count, keep=keep, every=every, complete=complete, **how).results


def settle(
    joined: pa.Table,
    store: Store,
    count: Counters,
    *,
    now_ms: int,
    retention_ms: int,
    keep: Keep,
    every: bool = False,
    as_read: bool = False,
    in_order: bool = False,
    complete: Complete | None = None,
) -> Settled:
    """``resolve``, with what was there before; ``keep``: what of the results, a hash, the value, or both."""
    sweep(store, now_ms)
    if not len(joined):
        return Settled(RESULT.empty_table(), pa.array([], BYTES))
    code, keys = codes(column(joined, "key"))
    stored_keys = prefixed(b"d", keys)
    old = records.decode(store.get_many(stored_keys))

    order, code, version = newest_only(code, column(joined, "version"), old, count, as_read=as_read, in_order=in_order)
    had = old.flags & HAS_RESULT > 0
    shown = masked(old.body, had)
    if complete is not None:
        joined, code, version = _whole(joined.take(pa.array(order)), code, version, shown, count, complete)
        order = np.arange(len(code))
    value, ts = column(joined, "value"), take(column(joined, "ts"), order).to_numpy()

    digest = take(value if keep == "value" else digests(value), order)
    held = pc.binary_slice(shown, 0, DIGEST_BYTES) if keep == "both" else shown
    first, last = changes_from_previous(code), np.flatnonzero(last_of_run(code))
    rows = np.arange(len(code))
    previous = take(stack(held, digest), np.where(first, code, len(keys) + rows - 1))
    same = equal(digest, previous)
    there = valid(digest)
    count[counters.TOMBSTONES] += int((same & ~there).sum())
    count[counters.IDEMPOTENT] += int((same & there).sum())

    final = code[last]
    emit = ~equal(take(digest, last), take(held, final)) | (there[last] & every)
    time = ts[np.maximum.accumulate(np.where(~same | every, rows, 0))[last]]
    if keep == "value":  # a group has the timestamp of its rows' latest changes, also of those that contribute the same
        time = np.maximum.reduceat(ts, np.flatnonzero(first))
        emit |= there[last] & (time > old.ts[final])
    operation = np.where(~there[last], Operation.DELETE, np.where(had[final], Operation.UPDATE, Operation.INSERT))
    sent = last[emit]
    count[counters.OUT] += len(sent)
    results = table(
        RESULT,
        take(keys, final[emit]),
        operation[emit].astype(np.int8),
        take(value, order[sent]),
        take(version, sent),
        time[emit],
    )

    gone = bools(take(column(joined, "gone"), order[last]))
    flags = (np.where(gone, GONE, 0) | np.where(there[last], HAS_RESULT, 0)).astype(np.uint8)
    names, marks = take(stored_keys, final), take(version, last)
    since, body = np.zeros(len(last), np.int64), take(digest, last)
    if keep != "hash":
        since = np.where(emit, time, old.ts[final])
    if keep == "both":
        body = concat(body, take(value, order[last]))
    values = records.encode(flags, since, marks, body)
    if not as_read and not in_order:
        retention_ms = later(retention_ms)
    store.write(*kept(names, values, marks, gone, now_ms + retention_ms, in_order))
    if keep == "hash":
        return Settled(results, constant(None, len(sent)))
    if keep == "both":
        shown = after(shown, np.full(len(shown), DIGEST_BYTES), valid(shown))
    return Settled(results, take(shown, final[emit]))


def _whole(
    joined: pa.Table, code: Ints, version: Bytes, kept: Bytes, count: Counters, complete: Complete
) -> tuple[pa.Table, Ints, Bytes]:
    """The changes with whole rows, without those that lack values which nobody has."""
    before = after(kept, np.full(len(kept), DIGEST_BYTES), valid(kept))
    values, usable = complete(column(joined, "value"), code, before)
    count[counters.UNAVAILABLE] += int((~usable).sum())
    joined = joined.set_column(joined.schema.get_field_index("value"), "value", values)
    return joined.filter(pa.array(usable)), code[usable], chosen(version, usable)


def digests(values: Bytes) -> Bytes:
    """A 128-bit hash of each value; null for null."""
    digest = xxhash.xxh3_128_digest
    return pa.array((None if value is None else digest(value) for value in items(values)), BYTES, size=len(values))
