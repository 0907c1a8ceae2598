"""aggregate, by group: folds what rows contribute into one row a group (KIP-904).

*Law*: what is taken back and what is added in its place are one step, and of a batch's steps only the outcome is sent on: no
value in between is ever seen.  A result is sent if its bytes or its timestamp differ from what was sent last (KIP-557).
A group whose last row has left is deleted, and starts anew when there are rows again.

Store: ``{'d'}{group's key}`` → a counter as version, the greatest timestamp, and ``{uint32 little-endian: length of the
result}{result}{state of the fold}``; beside it entries of the fold's own, and of ``guard``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fkjoin.codec import records, versions
from fkjoin.codec.arrays import (
    Bytes,
    Ints,
    buffers,
    changes_from_previous,
    chosen,
    codes,
    equal,
    lengths,
    masked,
    paired,
    prefixed,
    take,
    unpaired,
    valid,
    window,
)
from fkjoin.codec.messages import RESULT, Operation, column, table
from fkjoin.folds.cogrouped import CoFold
from fkjoin.folds.fold import Fold, entry_batch
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.guard import guard
from fkjoin.stages.ordering import by_code_and_version
from fkjoin.stages.resolve import HAS_RESULT
from fkjoin.stages.retention import GONE, due_entries, later, sweep
from fkjoin.state import Store


def aggregate(
    grouped: pa.Table,
    store: Store,
    count: Counters,
    fold: Fold | CoFold,
    *,
    source: bytes,
    now_ms: int,
    retention_ms: int,
    every: bool = False,
    guarded: bool = False,
) -> pa.Table:
    """Turn changes of contributions (``GROUPED``, each once unless ``guarded``) into changes of the aggregates (``RESULT``).

    In a group, changes count in the order of their versions.  ``source``: identity of the aggregate's own versions, which
    are a counter that never falls behind the clock's milliseconds.  ``every``: send a result for every group that was
    touched, also if it is as it was.
    """
    sweep(store, now_ms)
    count[counters.ROWS_IN] += len(grouped)
    entries: tuple[Bytes, Bytes] | None = None
    if guarded:
        grouped, entries = guard(grouped, store, count, now_ms + later(retention_ms))
    if not len(grouped):
        if entries is not None:
            store.write(*entries)
        return RESULT.empty_table()
    code, keys = codes(column(grouped, "key"))
    names = prefixed(b"d", keys)
    held = records.decode(store.get_many(names))
    had = held.flags & HAS_RESULT > 0
    before, states = unpaired(masked(held.body, held.flags & GONE == 0))
    before = masked(before, had)

    order = by_code_and_version(code, column(grouped, "version")) if fold.ordered else np.argsort(code, kind="stable")
    code = code[order]
    old, new = (take(column(grouped, name), order) for name in ("old", "new"))
    moved = ~(valid(old) & equal(old, new))  # the others bring a timestamp and nothing else
    states, results, rows, more = fold.apply(states, keys, code[moved], chosen(old, moved), chosen(new, moved), store)

    there, alive = valid(results), rows > 0
    latest = _latest(code, take(column(grouped, "ts"), order).to_numpy(), len(keys))
    ts = np.where(alive & held.found & (held.flags & GONE == 0), np.maximum(held.ts, latest), latest)
    same = equal(results, before)
    count[counters.TOMBSTONES] += int((~had & ~there).sum())
    unchanged = same & there & (ts == held.ts)
    emit = (had | there) & (every | ~unchanged)
    count[counters.IDEMPOTENT] += int((unchanged & ~emit).sum())
    count[counters.OUT] += int(emit.sum())

    number = np.maximum(counters_of(held.version) + 1, now_ms)
    number = np.where(emit | ~held.found, number, counters_of(held.version))
    version = versions.encode(source, [number])
    operation = np.where(~there, Operation.DELETE, np.where(had, Operation.UPDATE, Operation.INSERT)).astype(np.int8)
    sent = pa.array(emit)
    made = table(RESULT, keys.filter(sent), operation[emit], results.filter(sent), version.filter(sent), ts[emit])

    flags = (np.where(there, HAS_RESULT, 0) | np.where(alive, 0, GONE)).astype(np.uint8)
    kept = records.encode(flags, ts, version, masked(paired(results, states), alive))
    gone = pa.array(~alive)
    due = due_entries(names.filter(gone), version.filter(gone), now_ms + retention_ms)
    written = entry_batch([(names, kept), due, *more, *([] if entries is None else [entries])])
    store.write(*written)
    return made


def _latest(code: Ints, ts: Ints, groups: int) -> Ints:
    """The greatest timestamp of each group's changes; every group has some."""
    found = np.empty(groups, np.int64)
    starts = np.flatnonzero(changes_from_previous(code))
    found[code[starts]] = np.maximum.reduceat(ts, starts)
    return found


def counters_of(version: Bytes) -> Ints:
    """The counters that versions are; 0 where there is none."""
    there = lengths(version) > 0
    data, bounds = buffers(version)
    raw = np.ascontiguousarray(window(data, bounds[:-1] + versions.HEAD_BYTES * there, 8)).view(">u8").reshape(-1)
    return np.where(there, (raw.astype(np.uint64) ^ versions.SIGN).view(np.int64), 0)
