"""close, by window and group: folds what rows contribute, and emits a window's row when it closes.

See docs/semantics.md, "Windows".

*Law*: a window is closed when stream time has reached its end plus the grace time.  Until then
nothing of it is emitted; then its row is, once, made of all changes that came before.  A change
that comes to a window that was closed by the batches before is late: it is counted and changes
nothing.  What the store has of a window goes when the window closes.

Store: as ``aggregate``'s, for windows that are open; ``{'w'}{end}{group's key}`` → nothing, for
each of them; and ``stream_time``'s.  There are no tombstone markers: regroup is in the same query.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fkjoin.codec import records, tags
from fkjoin.codec.arrays import (
    Bools,
    Ints,
    after,
    concat,
    constant,
    equal,
    fixed,
    masked,
    prefixed,
    stack,
    take,
    unpaired,
    valid,
)
from fkjoin.codec.messages import NO_TIMESTAMP, column
from fkjoin.folds.fold import Fold, entries_of, entry_batch
from fkjoin.stages import counters
from fkjoin.stages.aggregate import touched
from fkjoin.stages.emit_on_change import HAS_RESULT, EmitDecision
from fkjoin.stages.stream_time import Arrivals, StreamTime
from fkjoin.stages.time_windows import TimeWindows
from fkjoin.state import Store

_NAME_HEAD = 9
"""Bytes before the group's key in the name of an open window: the tag and the end."""
_SIGN = 1 << 63


@dataclass(frozen=True)
class Closing:
    """The times at which windows close."""

    windows: TimeWindows
    grace: int
    """The time after its end for which a window stays open, in microseconds of stream time."""
    sources: tuple[str, ...]
    """The names of the sources that stream time is made of."""
    idle_ms: int | None = None
    """The time for which a silent source still holds stream time back; None: for ever."""

    def after(self, before: StreamTime, arrivals: Arrivals) -> StreamTime:
        """The stream time after a batch."""
        return before.after(arrivals, self.idle_ms, self.grace)

    def holding(self, time: StreamTime, arrivals: Arrivals) -> counters.Counters:
        """Count by how much the source is behind that holds windows open.

        None is counted if the batch had rows of it.
        """
        least, most = min(time.times), max(time.times)
        number = time.times.index(least)
        if number in arrivals.latest or least == most or time.now > least:
            return counters.Counters()
        behind = 1 if least == NO_TIMESTAMP else max(1, (most - least) // 1000)
        return counters.Counters({counters.HOLDS + self.sources[number]: behind})


def close(
    grouped: pa.Table,
    arrivals: Arrivals,
    store: Store,
    count: counters.Counters,
    fold: Fold,
    *,
    closing: Closing,
    source: bytes,
    now_ms: int,
) -> Iterator[pa.Table]:
    """Take in changes of contributions to windows (``GROUPED``, each once).

    Emits the rows of windows that close (``RESULT``).  ``source``: identity of their versions.
    """
    count[counters.ROWS_IN] += len(grouped)
    # Late is what comes to a window that the batches *before* closed, whatever stream time the
    # batch's own rows reach: else the order of rows in a batch would matter.
    before = StreamTime.read(store, len(closing.sources))
    ends = closing.windows.ends(column(grouped, "key"))
    over = ends <= before.closed
    count[counters.LATE] += int((over & _differs(grouped)).sum())
    open_ = grouped.filter(pa.array(~over)).combine_chunks()
    if len(open_):
        _take_in(open_, ends[~over], store, fold, source=source, now_ms=now_ms)
    time = closing.after(before, arrivals)
    if time != before:
        time.write(store)
    count.update(closing.holding(time, arrivals))
    if time.now != NO_TIMESTAMP:
        count[counters.STREAM_TIME] = time.now // 1000
        yield from _closed(time.closed, store, count, fold, now_ms)


def late(grouped: pa.Table, arrivals: Arrivals, store: Store, closing: Closing) -> pa.Table:
    """The changes that ``close`` counts as late, and regroup's letters, for dead letters.

    The store has stream time alone.
    """
    before = StreamTime.read(store, len(closing.sources))
    time = closing.after(before, arrivals)
    if time != before:
        time.write(store)
    over = closing.windows.ends(column(grouped, "key")) <= before.closed
    return grouped.filter(pa.array((over & _differs(grouped)) | too_early(grouped)))


def too_early(grouped: pa.Table) -> Bools:
    """Tell which messages are letters of regroup's, of rows too far ahead."""
    return ~valid(column(grouped, "old")) & ~valid(column(grouped, "new"))


def _differs(grouped: pa.Table) -> Bools:
    return ~equal(column(grouped, "old"), column(grouped, "new"))


def _take_in(
    grouped: pa.Table, ends: Ints, store: Store, fold: Fold, *, source: bytes, now_ms: int
) -> None:
    """Fold changes into windows that are open."""
    groups = touched(grouped, store, fold)
    end = ends[groups.first]
    has = groups.alive & valid(groups.results)
    emission = EmitDecision(groups.had, has, np.ones(len(has), bool))
    flags = np.where(has, HAS_RESULT, 0).astype(np.uint8)
    version = emission.own_versions(groups.held, source, now_ms)
    values = records.encode(flags, groups.ts, version, groups.body)
    # A window has a closing entry from its first row on, until it has no rows any more: only there
    # the entry is written, or deleted.
    moved = np.flatnonzero(~groups.held.exists | ~groups.alive)
    # Ends as bytes that sort as they do.
    sorting = fixed((end[moved].view(np.uint64) ^ np.uint64(_SIGN)).astype(">u8"))
    closing = prefixed(tags.CLOSES, sorting)
    names = concat(closing, take(groups.keys, moved))
    opened = masked(constant(b"", len(moved)), groups.alive[moved])
    of_groups = groups.names, masked(values, groups.alive)
    store.write(*entry_batch([of_groups, (names, opened), *groups.entries]))


def _closed(
    until: int, store: Store, count: counters.Counters, fold: Fold, now_ms: int
) -> Iterator[pa.Table]:
    """The rows of the windows that end by then, in pages; what the store has of them is removed."""
    # The end of a range is excluded, so that a window's end at ``until`` itself needs one more.
    last = (until + 1 + _SIGN).to_bytes(8, "big")
    for page in store.scan([(tags.CLOSES, tags.CLOSES + last)]):
        keys = after(page.keys, _NAME_HEAD)
        names = prefixed(tags.ROW, keys)
        held = records.decode(store.get_many(names))
        nothing = constant(None, 0)
        # Folding no steps makes the results of the stored states: collected columns are read, too.
        states, steps = unpaired(held.body)[1], np.zeros(0, np.int64)
        folded = fold.apply(states, keys, steps, old=nothing, new=nothing, store=store)
        has = valid(folded.results)
        emission = EmitDecision(np.zeros(len(has), bool), has, has)
        count[counters.OUT] += int(has.sum())
        results = emission.results(keys, folded.results, held.version, held.ts)
        gone = stack(page.keys, names, *entries_of(fold.columns, keys, store))
        store.write(gone, constant(None, len(gone)))
        yield results
