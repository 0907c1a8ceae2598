"""Windows that close: the stages regroup and close over memory, against a plain recomputation."""

import copy
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import GROUPED, JOINED, NO_TIMESTAMP, RESULT, Operation, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.folds.extremes import Extreme
from fkjoin.folds.fold import Fold
from fkjoin.folds.members import Collected, ColumnForm, DistinctCount
from fkjoin.folds.sums import Count, WholeSum
from fkjoin.spark.arrivals import GreatestTime, UntilBatchTime
from fkjoin.stages.close import Closing, close, late
from fkjoin.stages.counters import Counters
from fkjoin.stages.regroup import contributions, regroup
from fkjoin.stages.stream_time import Arrivals, StreamTime
from fkjoin.stages.time_windows import TimeWindows
from fkjoin.state import MemoryStore
from tests.support.laws import law
from tests.support.stepped import Reading

SOURCE = versions.identity("test")
TIMESTAMP = pa.timestamp("us", "UTC")
GROUP = pa.schema([("time", TIMESTAMP), ("region", pa.string())])
VALUE = pa.schema([("n", pa.int64())])
FOLD = Fold(
    VALUE,
    (
        Count("rows"),
        WholeSum("sum", 0, "sum"),
        Extreme("least", 0, "min", pa.int64()),
        DistinctCount("different", 0, pa.int64()),
        Collected("all", 0, ((0, False),), ColumnForm("list", pa.int64()), 0),
    ),
)
Window = tuple[int, str]
"""The end and the region of a window."""


class Change(NamedTuple):
    """A change of a row; with ``n`` None the row is gone."""

    key: str
    version: int
    time: int
    region: str
    n: int | None
    source: int = 0


@dataclass(frozen=True)
class Batch:
    changes: Sequence[Change] = ()
    tick: int | None = None

    @property
    def arrivals(self) -> Arrivals:
        latest: dict[int, int] = {}
        for one in self.changes:
            latest[one.source] = max(latest.get(one.source, one.time), one.time)
        return Arrivals(latest, self.tick)


@dataclass
class Windows:
    """Both stages over memory, and what they emit."""

    size: int = 10
    slide: int = 10
    sources: int = 1
    idle: int | None = None
    fold: Fold = FOLD
    count: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.windows = TimeWindows(self.size, self.slide, GROUP)
        self.closing = Closing(self.windows, 0, tuple(map(str, range(self.sources))), self.idle)
        self.stores = MemoryStore(), MemoryStore(page_entries=3), MemoryStore()
        self.sent: dict[Window, tuple[Any, ...]] = {}
        self.letters = 0

    def batch(self, batch: Batch) -> None:
        how: Any = {"now_ms": 0, "retention_ms": 1000, "windows": self.windows, "as_read": True}
        grouped = regroup(messages(batch.changes), self.stores[0], self.count, **how)
        assert grouped.schema.equals(GROUPED)
        named = [(one["key"], one["row"], one["version"]) for one in grouped.to_pylist()]
        assert len(named) == len(set(named)), "a change is one message for each window"
        for results in close(
            grouped, batch.arrivals, self.stores[1], self.count, self.fold, closing=self.closing, source=SOURCE, now_ms=0
        ):
            assert results.schema.equals(RESULT)
            self._take(results)
        self.letters += len(late(grouped, batch.arrivals, self.stores[2], self.closing))

    def crash(self, batch: Batch) -> None:
        """A batch that is lost with all that it did."""
        kept = copy.deepcopy((self.stores, self.sent, self.count, self.letters))
        self.batch(batch)
        self.stores, self.sent, self.count, self.letters = kept

    def _take(self, results: pa.Table) -> None:
        keys = KeyCodec(self.windows.key).decode(results.column("key").combine_chunks())
        starts, ends, regions = (one.to_pylist() for one in (keys[0].cast(pa.int64()), keys[1].cast(pa.int64()), keys[2]))
        assert [end - start for start, end in zip(starts, ends, strict=True)] == [self.size] * len(ends)
        columns = [one.to_pylist() for one in RowCodec(self.fold.schema).decode(results.column("value").combine_chunks())]
        assert set(results.column("operation").to_pylist()) <= {Operation.INSERT}
        for end, region, *row in zip(ends, regions, *columns, strict=True):
            assert (end, region) not in self.sent, "a window has one result"
            self.sent[end, region] = tuple(row)

    @property
    def open(self) -> set[int]:
        """The ends of the windows that the store knows."""
        return {int.from_bytes(key[1:9], "big") - (1 << 63) for key, _ in self.stores[1].items() if key[:1] == b"w"}


def messages(changes: Sequence[Change]) -> pa.Table:
    there = np.array([one.n is not None for one in changes], bool)
    group = [
        pa.array([one.time for one in changes], pa.int64()).cast(TIMESTAMP),
        pa.array([one.region for one in changes], pa.string()),
    ]
    values = [pa.array([one.n for one in changes], pa.int64())]
    return table(
        JOINED,
        as_bytes(pa.array([one.key for one in changes], pa.string())),
        versions.encode(SOURCE, [np.array([one.version for one in changes], np.int64)]),
        contributions(GROUP, group, VALUE, values, there),
        ~there,
        np.array([one.time for one in changes], np.int64),
    )


def ends_of(time: int, size: int, slide: int) -> set[int]:
    """The ends of the windows with the time in them, one by one."""
    return {start + size for start in range(-1000 * slide, 1000 * slide, slide) if start <= time < start + size}


class Model:
    """A plain recomputation, batch by batch: which windows there are, which are closed, and what is in them."""

    def __init__(self, of: Windows) -> None:
        self.of, self.time, self.closed, self.late = of, -math.inf, -math.inf, 0
        self.times = [-math.inf] * of.sources
        self.since: list[int | None] = [None] * of.sources
        self.tick = 0
        self.rows: dict[str, Change] = {}
        self.contents: dict[Window, dict[str, int]] = defaultdict(dict)
        self.sent: dict[Window, tuple[Any, ...]] = {}

    def batch(self, batch: Batch) -> None:
        newest: dict[str, Change] = {}
        for one in batch.changes:
            if one.version > max((known[one.key].version for known in (self.rows, newest) if one.key in known), default=-1):
                newest[one.key] = one
        for key, one in newest.items():
            before = self._contributes(self.rows.get(key))
            after = self._contributes(one)
            self.rows[key] = one
            for window in before.keys() | after.keys():
                if window[0] <= self.closed:
                    self.late += before.get(window) != after.get(window)
                elif window in after:
                    self.contents[window][key] = after[window]
                else:
                    self.contents[window].pop(key, None)
        self.go_on(batch)
        self.closed = max(self.closed, self.time - self.of.closing.grace)
        for window in [one for one in self.contents if one[0] <= self.closed]:
            if found := sorted(self.contents.pop(window).values()):
                self.sent[window] = len(found), sum(found), found[0], len(set(found)), found

    def _contributes(self, one: Change | None) -> dict[Window, int]:
        if one is None or one.n is None:
            return {}
        return {(end, one.region): one.n for end in ends_of(one.time, self.of.size, self.of.slide)}

    def go_on(self, batch: Batch) -> None:
        """Move stream time."""
        idle, tick = self.of.idle, batch.tick
        stood = tick is not None and idle is not None and tick - self.tick > idle
        for number in range(self.of.sources):
            came = [one.time for one in batch.changes if one.source == number]
            if came:
                self.times[number], self.since[number] = max(self.times[number], *came), None
            elif tick is not None:
                since = self.since[number]
                self.since[number] = tick if since is None or stood else min(since, tick)
        self.tick = self.tick if tick is None else tick
        awake = [
            time
            for time, since in zip(self.times, self.since, strict=True)
            if idle is None or since is None or self.tick - since < idle
        ]
        self.time = max(self.time, min(awake) if awake else max(self.times))


CHANGES = st.builds(
    Change,
    key=st.sampled_from("abcd"),
    version=st.integers(0, 30),
    time=st.integers(-30, 60),
    region=st.sampled_from(["", "n"]),
    n=st.none() | st.integers(-2, 2),
    source=st.integers(0, 1),
)
BATCHES = st.lists(
    st.tuples(
        st.lists(CHANGES, max_size=6, unique_by=lambda one: (one.key, one.version)),
        st.none() | st.integers(-5, 12),
        st.sampled_from([None, None, 0, 5, 15, 200]),
    ),
    max_size=10,
)
"""Changes, by how much the clock goes on, and a new grace time."""


@law(
    84,
    batches=BATCHES,
    shape=st.sampled_from([(10, 10), (10, 5), (7, 3), (3, 1)]),
    idle=st.none() | st.integers(1, 10),
    crashes=st.sets(st.integers(0, 9)),
    twice=st.booleans(),
)
def test_a_window_has_one_result_of_all_that_came_before_it_closed(
    batches: list[tuple[list[Change], int | None, int | None]],
    shape: tuple[int, int],
    idle: int | None,
    crashes: set[int],
    twice: bool,
) -> None:
    """Any order, duplicates, batches cut anywhere or lost and done again, sources that are idle, clocks that are set back.

    What has closed stays closed when the grace time becomes longer, and a shorter one closes windows with the next batch.
    """
    stages = Windows(*shape, sources=2, idle=idle)
    model, tick = Model(stages), 0
    for number, (changes, more, grace) in enumerate(batches):
        tick += more or 0
        if grace is not None:
            stages.closing = replace(stages.closing, grace=grace)
        batch = Batch([*changes, *changes] if twice else changes, None if more is None else tick)
        if number in crashes:
            stages.crash(batch)
        stages.batch(batch)
        model.batch(batch)
        assert stages.sent == model.sent
        assert stages.count["late-dropped"] == stages.letters == model.late
        assert stages.open == {end for (end, _), rows in model.contents.items() if rows}
    for number in (0, 1):  # the end of time: all windows close, and nothing of them is left
        last = Batch([Change("z", 99 + number, 10_000, "z", None, source) for source in (0, 1)])
        stages.batch(last)
        model.batch(last)
    assert stages.sent == model.sent
    assert [key for key, _ in stages.stores[1].items()] == [b"h"], "closed windows leave the store, members and all"


def times(*latest: int | None, tick: int | None = None) -> Arrivals:
    return Arrivals({number: time for number, time in enumerate(latest) if time is not None}, tick)


TICKS = st.sampled_from([None, 0, 2, 4, 5, 6, -3])
MOVES = st.tuples(st.dictionaries(st.integers(0, 1), st.integers(0, 50), max_size=1), TICKS)
"""Times by source, and by how much the clock goes on."""


@law(300, moves=st.lists(MOVES, min_size=8, max_size=20), idle=st.sampled_from([None, 5, 10]))
def test_stream_time_is_the_least_of_sources_that_are_not_idle(moves: list[Any], idle: Any) -> None:
    """Clocks are set back, and queries do not run for longer than the idle time."""
    model, time, tick = Model(Windows(sources=2, idle=idle)), StreamTime.read(MemoryStore(), 2), 100
    for latest, more in moves:
        tick += more or 0
        changes = [Change("k", 0, last, "", None, source) for source, last in latest.items()]
        batch, store = Batch(changes, None if more is None else tick), MemoryStore()
        model.go_on(batch)
        time = time.after(batch.arrivals, idle)
        assert time.now == max(model.time, NO_TIMESTAMP)
        assert time.silent_since == tuple(since or 0 for since in model.since)
        time.write(store)
        assert StreamTime.read(store, 2) == time


def test_a_row_from_the_future_is_set_aside_and_closes_nothing() -> None:
    """The last row of its key stays; deletions count whatever their time."""
    running = Windows()
    running.windows = replace(running.windows, ahead=100)
    how: Any = {"now_ms": 1, "retention_ms": 1000, "windows": running.windows, "as_read": True}
    store, letters = MemoryStore(), MemoryStore()
    first, far = Change("a", 1, 1100, "r", 1), Change("a", 2, 1101, "r", 2)

    def sent(*changes: Change) -> list[Any]:
        return regroup(messages(changes), store, running.count, **how).column("new").to_pylist()

    assert len(sent(first)) == 1
    assert sent(far) == []
    assert (running.count["dead-letters"], running.count["stale-dropped"]) == (1, 0)
    assert sent(Change("a", 3, 5000, "r", None)) == [None]
    passed = regroup(messages([first, far]), letters, Counters(), letters=True, **how)
    closed = late(passed, Arrivals(), MemoryStore(), running.closing)
    assert [(one["row"], one["old"], one["new"]) for one in closed.to_pylist()] == [(b"a", None, None)]


def test_only_timestamps_that_are_not_too_far_ahead_move_stream_time() -> None:
    def batch(*times: int) -> pa.RecordBatch:
        problems = pa.nulls(len(times), pa.string())
        return pa.record_batch(
            {"ts": pa.array(times, pa.int64()), "problem": problems, "batch_ms": pa.array([2] * len(times), pa.int64())}
        )

    def greatest(*batches: pa.RecordBatch) -> list[int]:
        made = UntilBatchTime(Reading(), GreatestTime(0, 1, ahead=100))(iter(batches))
        return [one for envelopes in made for one in envelopes.column("count").to_pylist()]

    assert greatest(batch(), batch(5, 2101, 2100), batch(9999)) == [2100]
    assert greatest(batch(9999)) == []
    assert greatest() == []


def test_the_source_that_holds_windows_open_is_named() -> None:
    closing = Closing(TimeWindows(10, 10, GROUP), 0, ("orders", "customers"))

    def holding(*batches: Arrivals) -> dict[str, int]:
        time = StreamTime.read(MemoryStore(), 2)
        for arrivals in batches:
            time = closing.after(time, arrivals)
        return dict(closing.holding(time, batches[-1]))

    assert holding(times(50_000, None)) == {"holds-windows:customers": 1}
    assert holding(times(50_000, 20_000)) == {}, "it is not silent"
    assert holding(times(50_000, 20_000), times(60_000, None)) == {"holds-windows:customers": 40}
    assert holding(times(50_000, 50_000), times(None, None, tick=1)) == {}
    idle = replace(closing, idle_ms=10)
    time = idle.after(idle.after(StreamTime.read(MemoryStore(), 2), times(50_000, 20_000, tick=1)), times(60_000, tick=2))
    time = idle.after(time, times(70_000, tick=12))
    assert not idle.holding(time, times(70_000, tick=12)), "what is idle holds nothing open"
