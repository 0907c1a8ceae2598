"""The health of queries in words: is it well, how far behind, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fkjoin.checkpoint.progress import span
from fkjoin.metrics.history import WAIT_MS, History, Point
from fkjoin.sinks.counts import REPEATED, Occurrence

BEHIND_S = 30.0
"""Seconds of work left to read from which on a query may be behind."""
STILL_S = 60.0
"""Seconds without a word from which on a query may stand still."""
PATIENCE = 3
"""Batches of work that may be left to read, and longest silences that a silence may last."""
RETRIED_MS, LONG_RETRIED_MS = 20_000, 300_000
"""The time after a retry for which a sink is failing: while batches end, and while none does."""

ORDER = ("failing", "still", "behind", "starting", "healthy", "idle", "ended")
"""The states, worst first; of several queries, the headline is the first one in this order."""

_STARTING = (
    "It has started, and no batch has ended yet. "
    "The first takes longest, as Spark and its workers start."
)
_SILENT = (
    "no batch has ended, and it has not said that it waits: "
    "a batch takes long, or its sources do not answer."
)
_IDLE = "It has read all that there is, and waits for more."
_SEVERAL = {
    "starting": ("has not ended a batch yet", "have not ended a batch yet"),
    "healthy": ("keeps up", "keep up"),
    "idle": (
        "has read all that there is, and waits for more",
        "have read all that there is, and wait for more",
    ),
    "ended": ("has ended", "have ended"),
}
"""States of several queries that are told together, of one and of more."""


@dataclass(frozen=True)
class Health:
    """A state of a query or of a job, and what to say of it."""

    state: str
    words: str
    since_ms: int
    query: str | None = None


def of_query(history: History, started_ms: int, ended: str | None, now_ms: int) -> Health:
    """Tell how a query is.

    ``ended``: why it ended, empty if it was stopped, None while it runs.

    A query that has said that it waits before its first batch is idle.  After its first batch, the
    first of these that holds of a query that runs:

    - *still*: it has been silent for over a minute, and for three times its usual silence;
    - *behind*: what is left to read is more than 30 seconds of work, and than three batches;
    - *idle*: it has said that it waits, and nothing is left to read;
    - *healthy*.

    A query is silent while no batch of it ends, and it does not say that it waits.  Its usual
    silence is the longest of those before the last ten batches and its last wait, and of its
    trigger's interval.
    """
    last = history.points[-1] if history.points else None
    if ended is not None:
        ended_ms = now_ms if last is None else last.ended_ms
        if ended:
            return Health("failing", f"It has failed: {ended}", ended_ms)
        return Health("ended", "It has ended.", ended_ms)
    if last is None:
        if history.waited_ms and not history.lag:
            return Health("idle", _IDLE, started_ms)
        return Health("starting", _STARTING, started_ms)
    passed, usual = (now_ms - history.spoke_ms) / 1000, _usual_silence(history)
    if passed > max(STILL_S, PATIENCE * usual):
        words = f"For {span(passed)} {_SILENT} Before, it was silent for {span(usual)} at most."
        return Health("still", words, history.spoke_ms)
    if _is_behind(_work(history), last):
        return Health("behind", _how_far(history), _since(history))
    if history.waits and not history.lag:
        return Health("idle", _IDLE, last.ended_ms)
    words = f"It keeps up: {_rate(last.rate)} rows read a second, "
    words += f"and results at most {span(last.delay)} after their records."
    return Health("healthy", words, _since(history))


def of_job(
    queries: Mapping[str, Health], events: Iterable[Occurrence], ended_ms: int, now_ms: int
) -> Health:
    """Tell how all are.

    ``events``: the sinks' notes, oldest first.  ``ended_ms``: the end of the last batch of all.
    """
    retries = [event for event in events if event.item == REPEATED]
    if retries:
        last = retries[-1]
        within = RETRIED_MS if ended_ms > last.at_ms else LONG_RETRIED_MS
        if now_ms - last.at_ms < within:
            times = [event.at_ms for event in retries if event.at_ms > ended_ms]
            since_ms = times[0] if times else last.at_ms
            words = f"Writing fails, and is tried again: {last.target}: {last.words}"
            return Health("failing", words, since_ms)
    if not queries:
        return Health("starting", "No query has started yet.", now_ms)
    name = min(queries, key=lambda name: (ORDER.index(queries[name].state), queries[name].since_ms))
    worst = queries[name]
    if len(queries) == 1:
        return worst
    if worst.state not in _SEVERAL:
        return replace(worst, query=name)
    same = [health for health in queries.values() if health.state == worst.state]
    since_ms = max(health.since_ms for health in same)
    singular, plural = _SEVERAL[worst.state]
    verb = plural if len(same) > 1 else singular
    which = f"{len(same)} of {len(queries)}"
    if len(same) == len(queries):
        which = "Both" if len(same) == 2 else f"All {len(same)}"
    words = f"{which} queries {verb}"
    idle = sum(health.state == "idle" for health in queries.values())
    if worst.state == "healthy" and idle:
        words += f"; {idle} {'waits' if idle == 1 else 'wait'} for more"
    return Health(worst.state, f"{words}.", since_ms)


def _usual_silence(history: History) -> float:
    """Return the longest silence in seconds that is usual for a query of this trigger."""
    recent = max(point.silent for point in list(history.points)[-10:])
    return max(history.interval_s, recent, history.quiet_ms / 1000 if history.waits else 0.0)


def _reading(history: History) -> Point:
    """Return the last point that read rows: its rate says how long the lag takes."""
    reading = (point for point in reversed(history.points) if point.read)
    return next(reading, history.points[-1])


def _work(history: History) -> float:
    """Return the seconds of work that the lag is."""
    return _reading(history).seconds_for(history.lag)


def _is_behind(work: float, point: Point) -> bool:
    """Tell whether so much work is too much after batches like this point's.

    One is at work, and records come meanwhile.
    """
    return work > max(BEHIND_S, PATIENCE * point.slowest)


def _how_far(history: History) -> str:
    work = _work(history)
    words = f"{history.lag:,} records are left to read"
    if work < float("inf"):
        words += f", {span(work)} of work at {_rate(_reading(history).rate)} rows a second"
    return f"{words}. It falls further behind." if _grows(history) else f"{words}."


def _grows(history: History) -> bool:
    """Tell whether the lag is greater than before, and was one before.

    What comes at once to a query that keeps up is none.
    """
    now = history.lag or 0
    points = [point for point in history.points if point.ended_ms > history.waited_ms]
    before = [point.lag or 0 for point in points if (point.lag or 0) != now]
    return bool(before) and now > before[-1] > 0


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def _since(history: History) -> int:
    """Return since when the query is in its state, which is behind or not, without a wait."""
    is_behind, since = _is_behind(_work(history), history.points[-1]), history.spoke_ms
    for point in reversed(history.points):
        if since - point.ended_ms > WAIT_MS or _is_behind(point.catch_up, point) != is_behind:
            break
        since = point.begun_ms
    return since
