"""The law of ``fkjoin.testing.driven``: what is left out of a clock's way makes no difference."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from fkjoin.codec.messages import NO_TIMESTAMP
from fkjoin.spark.in_memory import MemoryBatch
from fkjoin.stages.stream_time import Arrivals, StreamTime
from fkjoin.testing.driven import ends_between

SOURCES = 2


class Paced(NamedTuple):
    """A chain of tables that are emitted periodically, with the numbers of what waits in each, and of what came out."""

    waiting: tuple[tuple[int, ...], ...]
    out: tuple[int, ...] = ()

    def after(self, batch: MemoryBatch, came: tuple[int, ...], intervals: list[int]) -> Paced:
        waiting = []
        for interval, held in zip(intervals, self.waiting, strict=True):
            over = batch.end_of(interval) is not None
            waiting.append(() if over else (*held, *came))
            came = (*held, *came) if over else ()
        return Paced(tuple(waiting), self.out + came)


class State(NamedTuple):
    """State of a table whose windows close, and whose results are emitted periodically."""

    time: StreamTime
    paced: Paced

    def after(self, batch: MemoryBatch, latest: dict[int, int], idle_ms: int, intervals: list[int]) -> State:
        time = self.time.after(Arrivals(latest, batch.end_of(idle_ms // 4)), idle_ms)
        closed = (time.closed,) if time.closed > self.time.closed else ()
        return State(time, self.paced.after(batch, closed, intervals))

    def shown(self, idle_ms: int) -> object:
        silent = [since > 0 and self.time.tick_ms - since >= idle_ms for since in self.time.silent_since]
        return self.time.now, self.time.closed, self.time.times, self.time.tick_ms, silent, self.paced


def driven(moves: list[tuple[int, dict[int, int]]], idle_ms: int, intervals: list[int], *, every: bool) -> list[object]:
    """Return what is shown after each move, whose rows come at the new time; ``every``: all ends are heard."""
    new = StreamTime(NO_TIMESTAMP, 0, (NO_TIMESTAMP,) * SOURCES, (0,) * SOURCES)
    state, before, shown, clocks = State(new, Paced(((),) * len(intervals))), 0, [], [idle_ms // 4, *intervals]
    for by, latest in moves:
        now = before + by
        all_of_them = sorted({end for one in clocks for end in range(before - before % one + one, now, one)})
        for at in [*(all_of_them if every else ends_between(before, now, clocks)), now]:
            rows = latest if at == now else {}
            state, before = state.after(MemoryBatch(lambda _: None, at, before), rows, idle_ms, intervals), at
        shown.append(state.shown(idle_ms))
    return shown


MOVES = st.tuples(
    st.sampled_from([1, 7, 30, 61]) | st.integers(100, 2_000), st.dictionaries(st.integers(0, SOURCES - 1), st.integers(0, 50))
)


@given(
    moves=st.lists(MOVES, min_size=1, max_size=6),
    idle_ms=st.integers(12, 90),
    intervals=st.lists(st.integers(3, 200), max_size=2),
)
@settings(max_examples=40, deadline=None)
def test_ends_that_are_left_out_make_no_difference(
    moves: list[tuple[int, dict[int, int]]], idle_ms: int, intervals: list[int]
) -> None:
    assert driven(moves, idle_ms, intervals, every=False) == driven(moves, idle_ms, intervals, every=True)


def test_a_long_way_has_few_ends_and_one_without_a_clock_none() -> None:
    day = 24 * 60 * 60 * 1000
    assert ends_between(0, day, []) == []
    assert ends_between(0, 10_000, [2_500]) == [2_500, 5_000, 7_500]
    assert len(ends_between(3, day, [2_500])) == 12 - 1
    assert 12 < len(ends_between(0, day, [2_500, 60_000])) < 200
