"""The last hour of a query, of which its health is told: what is kept of its batches, its words, and since when it holds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fkjoin.metrics.health import Health, of_job, of_query
from fkjoin.metrics.history import HOUR_MS, STEP_MS, WAIT_MS, History, Point
from fkjoin.sinks.counts import LEFT_OUT, REPEATED, Occurrence


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
    assert (first.lag, first.stored, first.out, first.dead) == (7, {"joined": 9500}, {"joined": 100}, {"joined": 3})
    assert (second.batches, second.lag) == (1, None)
    assert made.dead(12_500) == {"joined": 3}


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


MINUTE = 60_000


BUSY = [batch(1_000 * second) for second in range(120)]


def test_a_query_is_healthy_since_it_works_without_a_wait() -> None:
    found = of_query(history(*BUSY), 0, None, 121_000)
    assert (found.state, found.since_ms) == ("healthy", 0)
    assert found.words == "It keeps up: 100 rows read a second, and results at most 2 s after their records."
    later = [batch(10 * MINUTE + 1_000 * second) for second in range(9)]
    assert of_query(history(*BUSY, *later), 0, None, 10 * MINUTE + 9_000).since_ms == 10 * MINUTE


def test_a_query_that_waits_is_idle_since_its_last_batch() -> None:
    made = history(*BUSY)
    made.wait(130_000, 0)
    found = of_query(made, 0, None, 150_000)
    assert (found.state, found.words, found.since_ms) == ("idle", "It has read all that there is, and waits for more.", 120_000)
    behind = history(batch(0, lag=90_000))
    behind.wait(20_000, 0)
    assert of_query(behind, 0, None, 21_000).state == "idle", "what was left is gone, as records of a deleted topic are"


def test_a_query_that_no_longer_says_that_it_waits_stands_still() -> None:
    """Spark says every ten seconds, or at each turn, that a query waits; not while it hangs in a batch, or asks a source."""
    made = history(*BUSY)
    for at_ms in range(130_000, 200_000, 10_000):
        made.wait(at_ms, 0)
        made.wait(at_ms, 0)
    assert of_query(made, 0, None, 190_000 + MINUTE).state == "idle"
    found = of_query(made, 0, None, 190_000 + 2 * MINUTE)
    assert (found.state, found.since_ms) == ("still", 190_000)
    assert found.words == (
        "For 2 min no batch has ended, and it has not said that it waits: a batch takes long, or its sources do not answer. "
        "Before, it was silent for 10 s at most."
    )


def test_a_query_is_behind_from_half_a_minute_of_work_on() -> None:
    """Records come in time as long as the query works off its lag faster than that."""
    growing = history(*BUSY, *(batch(120_000 + 5_000 * n, 5.0, 500, lag=4_000 + 1_000 * n) for n in range(3)))
    found = of_query(growing, 0, None, 136_000)
    assert (found.state, found.since_ms) == ("behind", 120_000)
    assert found.words == "6,000 records are left to read, 1 min of work at 100 rows a second. It falls further behind."
    shrinking = history(*(batch(5_000 * n, 5.0, 500, lag=60_000 - 1_000 * n) for n in range(4)))
    words = of_query(shrinking, 0, None, 21_000).words
    assert words == "57,000 records are left to read, 9 min 30 s of work at 100 rows a second."
    nothing = history(batch(0, read=0, lag=5))
    assert of_query(nothing, 0, None, 2_000).words == "5 records are left to read."


def waiting(*points: Point, until_ms: int) -> History:
    """A query that says every ten seconds, from one batch to the next and then up to a time, that it waits."""
    made = History()
    for place, point in enumerate(points):
        made.add(point)
        end_ms = points[place + 1].begun_ms if place + 1 < len(points) else until_ms
        for at_ms in range(point.ended_ms + 10_000, end_ms, 10_000):
            made.wait(at_ms, 0)
    return made


WORKED = history(*BUSY)
TWICE = history(batch(0), batch(60 * MINUTE))
HOURLY = history(batch(0))
HOURLY.interval_s = 3600.0
WAITED = waiting(*BUSY, until_ms=140_000)
LONG = history(*(batch(MINUTE * minute, 60.0, 6000) for minute in range(12)))
SHORT = history(*(batch(700 * number, 0.5) for number in range(4)))
PAUSED = waiting(batch(0), batch(50 * MINUTE), until_ms=50 * MINUTE + 12_000)
UNPAUSED = waiting(batch(0), batch(50 * MINUTE), until_ms=0)
IN_VAIN = history(*BUSY, batch(125_000, read=0))

JUDGED: dict[str, tuple[History, int | None, int, str]] = {
    "a batch that takes much longer than others": (WORKED, 0, 120_000 + 5 * MINUTE, "still"),
    "within its usual pace": (TWICE, 0, 119 * MINUTE, "healthy"),
    "its trigger lets it": (HOURLY, 0, 59 * MINUTE, "healthy"),
    "three turns without a word": (HOURLY, 0, 181 * MINUTE, "still"),
    "far behind amid a batch": (WORKED, 1_000_000, 170_000, "behind"),
    "30 s of work": (WORKED, 3_000, 170_000, "healthy"),
    "more than 30 s of work": (WORKED, 3_001, 170_000, "behind"),
    "far behind after a wait": (WAITED, 1_000_000, 185_000, "behind"),
    "waits": (WAITED, 0, 185_000, "idle"),
    "waits for files": (WAITED, None, 185_000, "idle"),
    "far behind amid a long batch": (LONG, 1_000_000, 12 * MINUTE + 170_000, "behind"),
    "two long batches left": (LONG, 12_000, 12 * MINUTE + 59_000, "healthy"),
    "a batch three times as long": (LONG, None, 12 * MINUTE + 181_000, "still"),
    "batches of a moment and a hang": (SHORT, 0, 600 * MINUTE, "still"),
    "waits and a hang": (PAUSED, 1_000_000, 150 * MINUTE, "still"),
    "waits, a batch and a hang": (UNPAUSED, 1_000_000, 150 * MINUTE, "still"),
    "a batch without rows has no rate": (IN_VAIN, 3_000, 127_000, "healthy"),
}


def test_a_query_is_judged_by_what_is_left_at_this_moment() -> None:
    """Waits are no part of its usual silence."""
    for case, (past, left, now_ms, state) in JUDGED.items():
        past.lag = left
        assert of_query(past, 0, None, now_ms).state == state, case


def test_a_query_that_ended_has_failed_or_was_stopped() -> None:
    for why, state, words in (("no number", "failing", "It has failed: no number"), ("", "ended", "It has ended.")):
        assert of_query(history(*BUSY), 0, why, 130_000) == Health(state, words, 120_000)
        assert of_query(History(), 0, why, 130_000).since_ms == 130_000


def of(**states: str) -> Health:
    found = {name: Health(state, f"words of {name}", number) for number, (name, state) in enumerate(states.items())}
    return of_job(found, [], 0, 1_000)


def test_a_job_is_as_its_worst_query() -> None:
    assert of(a="healthy", b="behind", c="failing") == Health("failing", "words of c", 2, "c")
    assert of(a="idle", b="still", c="behind") == Health("still", "words of b", 1, "b")
    assert of(a="idle", b="behind", c="behind") == Health("behind", "words of b", 1, "b"), "since the first of them is"
    assert of(a="behind") == Health("behind", "words of a", 0)
    assert of().state == "starting"


def test_queries_that_are_well_are_told_together() -> None:
    assert of(a="healthy", b="healthy") == Health("healthy", "Both queries keep up.", 1), "since the last of them is"
    twenty = {f"q{number}": "healthy" for number in range(20)}
    assert of(**twenty).words == "All 20 queries keep up."
    assert of(a="idle", b="healthy", c="idle").words == "1 of 3 queries keeps up; 2 wait for more."
    assert of(a="idle", b="idle", c="idle").words == "All 3 queries have read all that there is, and wait for more."
    assert of(a="healthy", b="idle").words == "1 of 2 queries keeps up; 1 waits for more."
    assert of(a="healthy", b="starting", c="starting").words == "2 of 3 queries have not ended a batch yet."


def test_a_job_whose_sink_is_tried_again_fails_since_the_first_attempt() -> None:
    well = {"a": Health("healthy", "", 0)}
    letter = Occurrence(95_000, "postgres shop.orders", LEFT_OUT, "too long")
    tries = [Occurrence(at, "postgres shop.orders", REPEATED, f"refused {at}") for at in (50_000, 100_000, 110_000)]
    found = of_job(well, [*tries, letter], 90_000, 115_000)
    assert found == Health("failing", "Writing fails, and is tried again: postgres shop.orders: refused 110000", 100_000)
    assert of_job(well, tries, 90_000, 110_000 + 4 * MINUTE).state == "failing", "no batch has ended since"
    assert of_job(well, tries, 120_000, 125_000).state == "failing", "another query's batch may have ended"
    assert of_job(well, tries, 120_000, 110_000 + MINUTE).state == "healthy"
    assert of_job(well, [letter], 90_000, 96_000).state == "healthy"


def test_a_query_that_waits_before_its_first_batch_is_idle() -> None:
    made = History()
    made.wait(8_000, 0)
    found = of_query(made, 7_000, None, 9_000)
    assert (found.state, found.words, found.since_ms) == ("idle", "It has read all that there is, and waits for more.", 7_000)
    made.wait(9_000, 5)
    assert of_query(made, 7_000, None, 10_000).state == "starting", "records have come, and it has not read them"


def test_a_query_that_works_off_what_came_at_once_does_not_fall_behind() -> None:
    made = history(batch(0), batch(5_000, 5.0, 500, lag=20_000))
    assert "falls further behind" not in of_query(made, 0, None, 11_000).words
    made.add(batch(10_000, 5.0, 500, lag=16_000))
    assert "falls further behind" not in of_query(made, 0, None, 16_000).words
    made.lag = 17_000
    assert of_query(made, 0, None, 16_000).words.endswith("It falls further behind.")
    made.wait(17_000, 90_000)
    assert "falls further behind" not in of_query(made, 0, None, 18_000).words
