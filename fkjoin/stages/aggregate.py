"""aggregate, by group: folds what rows contribute into one row a group (KIP-904).

See docs/semantics.md, "Aggregates".

*Law*: what is taken back and what is added in its place are one step, and of a batch's steps only
the outcome is emitted: no value in between is ever seen.  A result is emitted if its bytes or its
timestamp differ from what was emitted last (KIP-557). A group whose last row has left is deleted,
and starts again when there are rows.

Store: ``{'d'}{group's key}`` → a counter as version, the greatest timestamp, and
``{uint32 little-endian: length of the result}{result}{state of the fold}``; beside it entries of
the fold's own, and of ``guard``, ``{'s'}{CombinedKey of group and row}`` → the version of the last
change taken, and the contribution; gone ones are remembered for the retention time.  Where the fold
has collected columns, in the place of the result are its 128-bit hash and the result without them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec import combined_key, records, tags
from fkjoin.codec.arrays import (
    Bools,
    Ints,
    changes_from_previous,
    chosen,
    codes,
    concat,
    equal,
    masked,
    paired,
    prefixed,
    take,
    unpaired,
    valid,
)
from fkjoin.codec.messages import GROUPED, RESULT, column, table
from fkjoin.folds.cogrouped import CoFold
from fkjoin.folds.fold import Fold, entry_batch
from fkjoin.stages import counters
from fkjoin.stages.emit_on_change import HAS_RESULT, EmitDecision, Ending, digests, entries
from fkjoin.stages.ordering import by_code_and_version, looked_up, newest_only
from fkjoin.stages.retention import GONE, later, sweep
from fkjoin.state import Bytes, Store


def aggregate(
    grouped: pa.Table,
    store: Store,
    count: counters.Counters,
    fold: Fold | CoFold,
    *,
    source: bytes,
    now_ms: int,
    retention_ms: int,
    every: bool = False,
    guarded: bool = False,
) -> pa.Table:
    """Turn changes of contributions (``GROUPED``) into changes of the aggregates (``RESULT``).

    Each comes once, unless ``guarded``.  In a group, changes count in the order of their versions.
    ``source``: identity of the aggregate's own versions, which are a counter that never falls
    behind the clock's milliseconds. ``every``: emit a result for every group that was touched, also
    one that is unchanged.
    """
    sweep(store, now_ms)
    count[counters.ROWS_IN] += len(grouped)
    of_guard: list[tuple[Bytes, Bytes]] = []
    if guarded:
        grouped, remembered = guard(grouped, store, count, now_ms + later(retention_ms))
        of_guard = [remembered]
    if not len(grouped):
        for remembered in of_guard:
            store.write(*remembered)
        return RESULT.empty_table()
    groups = touched(grouped, store, fold)
    held, ts, results = groups.held, groups.ts, groups.results
    unchanged = groups.unchanged & (ts == held.ts)
    emission = EmitDecision.of(groups.had, valid(results), unchanged, count, every=every)
    version = emission.own_versions(held, source, now_ms)
    changes = emission.results(groups.keys, results, version, ts)

    body = masked(groups.body, groups.alive)
    ending = Ending(~groups.alive, now_ms + retention_ms)
    of_groups = entries(groups.names, ts, version, body, ending, has=emission.has)
    store.write(*entry_batch([of_groups, *groups.entries, *of_guard]))
    return changes


def guard(
    grouped: pa.Table, store: Store, count: counters.Counters, due_ms: int
) -> tuple[pa.Table, tuple[Bytes, Bytes]]:
    """The changes newer than what is remembered, with what they replace; and the entries to write.

    *Law*: between regroup and here messages may come twice, delayed or in any order; at the end
    each group has what its rows contribute (the versions decide, as in the subscription stage).
    What is remembered is what is taken back, whatever a message says of it.  Tombstone markers end
    at ``due_ms``.
    """
    combined = combined_key.encode(column(grouped, "key"), column(grouped, "row"))
    code, names = codes(prefixed(tags.SUBSCRIBER, combined))
    held = records.decode(store.get_many(names))
    order, code, version = newest_only(code, column(grouped, "version"), held, count).last()
    before = masked(held.body, held.exists & (held.flags & GONE == 0))
    old, new = take(before, code), take(column(grouped, "new"), order)
    key, row, ts = (take(column(grouped, name), order) for name in ("key", "row", "ts"))
    gone = ~valid(new)
    counts = pa.array(valid(old) | ~gone)
    changes = table(GROUPED, key, row, version, old, new, ts).filter(counts)
    names = take(names, code)
    return changes, entries(names, ts.to_numpy(), version, new, Ending(gone, due_ms))


class Touched(NamedTuple):
    """The groups that a batch's changes touch, and what they become."""

    keys: Bytes
    names: Bytes
    """The names of their records."""
    held: records.Records
    had: Bools
    """The groups that had a result."""
    unchanged: Bools
    """The groups whose result is what it was."""
    results: Bytes
    body: Bytes
    """The bodies of the groups' records."""
    alive: Bools
    """The groups that have rows."""
    ts: Ints
    entries: list[tuple[Bytes, Bytes]]
    """The entries of the fold's own."""
    first: Ints
    """The position of a change of each group."""


def touched(grouped: pa.Table, store: Store, fold: Fold | CoFold) -> Touched:
    """Fold changes of contributions (``GROUPED``, at least one) into their groups.

    The caller writes the fold's entries.
    """
    code, keys, names, held = looked_up(grouped, store)
    had, known = held.flags & HAS_RESULT > 0, held.flags & GONE == 0
    before, states = unpaired(masked(held.body, known))

    order = np.argsort(code, kind="stable")
    if fold.ordered:
        order = by_code_and_version(code, column(grouped, "version"))
    code = code[order]
    old, new = (take(column(grouped, name), order) for name in ("old", "new"))
    moved = ~(valid(old) & equal(old, new))  # the others bring a timestamp and nothing else
    states, results, rows, of_fold, light = fold.apply(
        states, keys, code[moved], old=chosen(old, moved), new=chosen(new, moved), store=store
    )

    # The timestamp of a group that stays only grows; one that starts again has its rows'.
    alive = rows > 0
    latest = _latest(code, take(column(grouped, "ts"), order).to_numpy(), len(keys))
    ts = np.where(alive & held.exists & known, np.maximum(held.ts, latest), latest)
    compared = results if light is None else masked(concat(digests(results), light), valid(results))
    # Codes are numbered from 0 on, and each has changes: so these are in the order of the keys.
    first_change = order[np.flatnonzero(changes_from_previous(code))]
    unchanged, body = equal(compared, masked(before, had)), paired(compared, states)
    return Touched(
        keys=keys,
        names=names,
        held=held,
        had=had,
        unchanged=unchanged,
        results=results,
        body=body,
        alive=alive,
        ts=ts,
        entries=of_fold,
        first=first_change,
    )


def _latest(code: Ints, ts: Ints, groups: int) -> Ints:
    """The greatest timestamp of each group's changes; every group has some."""
    latest = np.empty(groups, np.int64)
    starts = np.flatnonzero(changes_from_previous(code))
    latest[code[starts]] = np.maximum.reduceat(ts, starts)
    return latest
