"""A job at one moment, as its terminal and its log lines show it: plain data, and the words for it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fkjoin.checkpoint.progress import QueryPhase, moment, seconds_of, several, span

AT_WORK = (QueryPhase.STARTS, QueryPhase.BATCH, QueryPhase.WAITS, QueryPhase.DUE, QueryPhase.ASKS)


class Mode(enum.Enum):
    """The states of a job."""

    RUNS = "runs"
    STOPS = "stops when the batches at work are done; Ctrl-C again ends it at once"
    FAILS = "fails when the batches at work are done; Ctrl-C twice ends it at once"
    STOPPED = "stopped"
    CUT = "ended at once,"
    DONE = "has read all that was there"
    FAILED = "failed"


@dataclass(frozen=True)
class BatchView:
    """A batch that is done."""

    number: int
    rows: int
    seconds: float
    ended: float
    """Its end, in seconds since 1970."""


@dataclass(frozen=True)
class QueryView:
    """A query of the job, at one moment."""

    name: str
    doing: QueryPhase = QueryPhase.PLANNED
    since: float = 0.0
    """The time from which on it does that."""
    last: BatchView | None = None
    rate: float = 0.0
    """Rows a second."""
    behind: int | None = None
    """Records that are yet to be read; None where that cannot be known."""
    batches: int = 0
    rows: int = 0
    tasks: tuple[int, int] | None = None
    """Tasks of the batch at work: those that are done, and all."""
    behind_at: float | None = None
    """The time as of which it is known what is yet to be read; None: this moment."""
    start: str = ""
    """The words for what its start works on or waits for."""


@dataclass(frozen=True)
class Flow:
    """A topology, to be drawn in one line."""

    sources: tuple[str, ...]
    made: tuple[tuple[str, tuple[str, ...]], ...]
    """Tables that are made of others, in order, each with those that it reads."""
    sinks: tuple[str, ...]

    def line(self, width: int) -> str:
        """Draw it, sources first; an arrow between two operators says that the second reads the first.

        A line that would be longer than ``width`` has numbers in place of names.
        """
        between = ""
        for place, (name, reads) in enumerate(self.made):
            arrow = " → " if place and self.made[place - 1][0] in reads else ", "
            between += (arrow if place else "") + name
        whole = _arrows(", ".join(self.sources), between, ", ".join(self.sinks))
        if len(whole) <= width:
            return whole
        return _arrows(
            several(len(self.sources), "table", "tables"),
            several(len(self.made), "operator", "operators") if self.made else "",
            several(len(self.sinks), "sink", "sinks"),
        )


def _arrows(*parts: str) -> str:
    return " → ".join(filter(None, parts))


@dataclass(frozen=True)
class JobView:
    """The job, at one moment."""

    name: str
    flow: Flow
    began: float
    now: float
    queries: tuple[QueryView, ...]
    mode: Mode = Mode.RUNS
    troubles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Places where there is more to see."""
    silent: tuple[str, ...] = ()
    """Words about brokers that do not answer."""


def batches_of(recent: Sequence[Mapping[str, Any]]) -> list[BatchView]:
    """Return a query's last two batches, the newest last; ``recent`` has them newest first, as ``Metrics.snapshot`` does."""
    return [
        BatchView(one["batch"], one["inputs"], one["seconds"], seconds_of(one["time"]) + one["seconds"])
        for one in reversed(recent[:2])
    ]


def rate_of(batches: Sequence[BatchView], now: float) -> float:
    """Compute rows a second: of the last batch, over the time since the end of the one before it.

    When no batch has ended for longer than that, the time up to ``now`` counts, so that the rate of a query that waits falls.
    ``batches`` are the last two or fewer, the newest last.
    """
    if not batches:
        return 0.0
    last = batches[-1]
    since = batches[-2].ended if len(batches) > 1 else last.ended - last.seconds
    passed = max(last.ended - since, now - last.ended)
    return last.rows / passed if passed > 0 else 0.0


def doing(query: QueryView, now: float) -> str:
    """Say what a query does, and since when."""
    if query.doing is QueryPhase.BATCH:
        which = "first batch" if query.last is None else f"batch {query.last.number + 1:,}"
        tasks = "" if query.tasks is None else f", {query.tasks[0]:,} of {query.tasks[1]:,} tasks"
        return f"{which} for {span(int(now - query.since))}{tasks}"
    if query.doing is QueryPhase.WAITS:
        return f"{query.doing.value} since {moment(query.since, now)}"
    if query.doing is QueryPhase.STARTS:
        return f"{query.doing.value} for {span(int(now - query.since))}" + (f": {query.start}" if query.start else "")
    if query.doing is QueryPhase.ASKS:
        return f"has no answer from its sources for {span(int(now - query.since))}"
    return query.doing.value


def ended(view: JobView) -> str:
    """Say how a job ended, and after how long."""
    word = "in" if view.mode is Mode.DONE else "after"
    more = "; the next start repeats the batches at work" if view.mode is Mode.CUT else ""
    return f"{view.mode.value} {word} {span(view.now - view.began)}{more}"
