"""The last hour of a query: what is kept of its batches, and for how long."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fkjoin.metrics.history import HOUR_MS, STEP_MS, WAIT_MS, History, Point


def batch(begun_ms: int, seconds: float = 1.0, read: int = 100, lag: int | None = 0, **more: Any) -> Point:
    given: dict[str, Any] = {"out": {"joined": 50}, "stored": {"joined": 9000}, "dead": {}} | more
    return Point(begun_ms, begun_ms + round(1000 * seconds), read=read, slowest=seconds, lag=lag, **given)


def history(*points: Point) -> History:
    made = History()
    for point in points:
        made.add(point)
    return made


def test_batches_of_five_seconds_are_one_point() -> None:
    """Rows and dead letters are sums, times are the worst, sizes are the last ones."""
    made = history(
        batch(10_000, dead={"joined": 1}),
        batch(11_000, 2.5, 400, lag=7, stored={"joined": 9500}, dead={"joined": 2}),
        batch(15_000, lag=None),
    )
    first, second = made.points
    assert (first.begun_ms, first.ended_ms, first.batches, first.read, first.slowest) == (10_000, 13_500, 2, 500, 2.5)
    assert (first.lag, dict(first.stored), dict(first.out), dict(first.dead)) == (
        7,
        {"joined": 9500},
        {"joined": 100},
        {"joined": 3},
    )
    assert (second.batches, second.lag) == (1, None)
    assert made.dead(12_500) == {"joined": 3}


def test_dead_letters_are_those_of_the_last_hour_also_while_a_query_waits() -> None:
    made = history(batch(10_000, dead={"joined": 5}), batch(20_000, dead={"joined": 2}))
    made.wait(HOUR_MS, 0)
    assert made.dead(HOUR_MS) == {"joined": 7}
    assert made.dead(HOUR_MS + 15_000) == {"joined": 2}
    assert made.dead(5 * HOUR_MS) == {}


def test_a_rate_counts_the_time_between_batches_but_not_the_time_in_which_there_was_nothing_to_read() -> None:
    made = history(batch(0), batch(5_000), batch(5_000 + 1_000 + WAIT_MS + 1))
    assert [point.rate for point in made.points] == [100.0, 100 / 5, 100.0]
    told = history(batch(0))
    told.wait(4_000, 0)
    told.add(batch(6_000))
    assert [point.rate for point in told.points] == [100.0, 100.0], "it said that it waited"


def test_a_delay_is_that_of_a_record_that_came_right_after_the_batch_before_had_begun() -> None:
    made = history(batch(0, 3.0), batch(3_000, 4.0))
    assert [point.delay for point in made.points] == [3.0, 7.0]
    made.wait(20_000, 0)
    made.add(batch(25_000, 2.0))
    assert made.points[-1].delay == 7.0, "after it had looked last, five seconds before it began"
    made.add(batch(27_000, 4.0, read=400, lag=300))
    assert made.points[-1].delay == 6.0 + 3.0, "and the lag is worked off first: three seconds at 100 rows a second"


def test_a_lag_of_a_query_that_reads_nothing_is_no_delay_in_figures() -> None:
    made = history(batch(0, read=0, lag=5))
    assert (made.points[0].catch_up, made.points[0].delay) == (float("inf"), 1.0)


def test_curves_are_zero_while_a_query_waits() -> None:
    made = history(batch(0), batch(60_000))
    columns = made.columns(61_000)
    assert columns["time"] == [1.0, 1.001, 60.0, 61.0]
    assert columns["read"] == [100.0, 0.0, 0.0, 100.0]
    assert columns["out"] == {"joined": [50.0, 0.0, 0.0, 50.0]}
    assert columns["batch"] == [1.0, None, None, 1.0], "there was none"
    assert columns["state"] == {"joined": [9000, 9000, 9000, 9000]}
    made.wait(75_000, 4)
    columns = made.columns(76_000)
    assert (columns["time"][-2:], columns["read"][-2:], columns["lag"][-2:]) == ([61.001, 75.001], [0.0, 0.0], [0, 4])
    assert made.waits


def test_a_long_batch_is_no_wait() -> None:
    made = history(batch(0), batch(1_000, 600.0, read=6000))
    assert made.columns(700_000)["read"] == [100.0, 10.0]


def test_after_a_clock_went_back_times_still_grow() -> None:
    made = history(batch(0), batch(90_000), batch(30_000))
    assert made.columns(HOUR_MS)["time"] == [1.0, 1.001, 30.0, 31.0]


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 400_000)), max_size=300))
def test_an_hour_is_kept_in_a_bounded_number_of_points(steps: list[tuple[int, int]]) -> None:
    made, now, read = History(), 0, 0
    for pause_ms, took_ms in steps:
        made.add(batch(now + pause_ms, took_ms / 1000))
        now += pause_ms + took_ms
        read += 100
    points = list(made.points)
    assert len(points) <= HOUR_MS // STEP_MS + 1
    assert [point.ended_ms for point in points] == sorted({point.ended_ms for point in points})
    assert all(point.ended_ms >= now - HOUR_MS for point in points)
    assert sum(point.read for point in points) == read or now > HOUR_MS, "no batch is lost within the hour"
    times = made.columns(now)["time"]
    assert times == sorted(times)


def test_a_busy_hour_has_a_point_every_five_seconds() -> None:
    made = history(*(batch(1_000 * second) for second in range(70 * 60)))
    assert len(made.points) == HOUR_MS // STEP_MS + 1
    assert len(made.columns(4_200_000)["time"]) <= HOUR_MS // STEP_MS + 1
