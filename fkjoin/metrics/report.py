"""A job at one moment, as plain data: terminal, log lines, page and Prometheus show it."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fkjoin.checkpoint.progress import several, span
from fkjoin.errors import shortened
from fkjoin.metrics.health import Health, of_job
from fkjoin.metrics.query_report import QueryReport, only
from fkjoin.sinks.counts import LEFT_OUT, REPEATED, Occurrence
from fkjoin.stages import counters

_TROUBLES = {
    counters.DEAD_LETTERS: ("dead letter", "dead letters"),
    counters.NULL_KEY: ("row without a key", "rows without a key"),
    counters.RESTARTS: ("row started over", "rows started over"),
    counters.INDEX_REBUILT: ("index rebuilt", "indexes rebuilt"),
}
"""Counters that a person wants to hear of, one and several."""
_LONGEST_REASON = 200
"""The number of characters of a reason that are shown."""


class Mode(enum.Enum):
    """The states of a job."""

    RUNS = "runs"
    STOPS = "stops when the batches at work are done; Ctrl-C again ends it at once"
    FAILS = "fails when the batches at work are done; Ctrl-C twice ends it at once"
    STOPPED = "stopped"
    CUT = "ended at once,"
    DONE = "has read all that was there"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        """Tell whether nothing of the job runs any more."""
        return self not in (Mode.RUNS, Mode.STOPS, Mode.FAILS)


@dataclass(frozen=True)
class JobReport:
    """A job, or the queries of a program, at one moment."""

    now_ms: int
    """This moment, or the job's end."""
    queries: Mapping[str, QueryReport] = field(default_factory=dict)
    began_ms: int | None = None
    """The beginning of the job, or of its first query."""
    mode: Mode = Mode.RUNS
    why: str = ""
    """The reason of a failure."""
    tables: Collection[str] = ()
    """The names of tables, by which operators are told from what they run for."""
    internal: Mapping[str, int] = field(default_factory=dict)
    """The numbers of records of the topics between stages."""
    sinks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The counts of sinks, by what is counted and place."""
    events: Sequence[Occurrence] = ()
    """The last ones of these with their reasons, oldest first."""
    name: str = ""
    flow: str = ""
    """The topology in a line."""
    notes: tuple[str, ...] = ()
    """Places where there is more to see."""

    @property
    def now(self) -> float:
        """Return this moment in seconds since 1970."""
        return self.now_ms / 1000

    @property
    def lasted(self) -> str:
        """Say for how long the job has run."""
        return span((self.now_ms - (self.began_ms or self.now_ms)) / 1000)

    @property
    def ending(self) -> str:
        """Say how the job ended, and after how long."""
        word = "in" if self.mode is Mode.DONE else "after"
        more = "; the next start repeats the batches at work" if self.mode is Mode.CUT else ""
        return f"{self.mode.value} {word} {self.lasted}{more}"

    @property
    def begun(self) -> dict[str, QueryReport]:
        """Return the queries that have been started."""
        return {
            query.name: query
            for query in self.queries.values()
            if query.started_ms is not None or query.batches
        }

    @property
    def health(self) -> Health:
        """Tell how all are."""
        healths = {name: query.health for name, query in self.begun.items()}
        ended_ms = max((query.ended_ms for query in self.queries.values()), default=0)
        return of_job(healths, self.events, ended_ms, self.now_ms)

    def by_table(self, numbers: Callable[[QueryReport], Mapping[str, int]]) -> dict[str, int]:
        """Return numbers by table, of the ``numbers`` of each query's operators.

        An operator that several queries run, or that runs for several readers, counts the same rows
        each time: the most hold.
        """
        most: dict[str, int] = {}
        for query in self.queries.values():
            for operator, number in numbers(query).items():
                table = table_of(operator, self.tables)
                most[table] = max(most.get(table, 0), number)
        return most

    def totals(self, item: str) -> dict[str, int]:
        """Return by table what a counter has counted since the start."""
        return self.by_table(lambda query: only(item, query.totals))

    def of_sinks(self, item: str) -> dict[str, int]:
        """Return by place what sinks have counted."""
        counts = self.sinks.items()
        return {target: number for (counted, target), number in counts if counted == item}

    @property
    def troubles(self) -> tuple[str, ...]:
        """Say what went wrong since the start."""
        words = []
        for item, (singular, plural) in _TROUBLES.items():
            totals = sorted(self.totals(item).items())
            words += [f"{several(number, singular, plural)} in {table}" for table, number in totals]
        reasons = {event.target: event.words for event in self.events if event.item != LEFT_OUT}
        for target, number in sorted(self.of_sinks(LEFT_OUT).items()):
            words.append(f"{several(number, 'row', 'rows')} that {target} cannot store")
        for target, number in sorted(self.of_sinks(REPEATED).items()):
            words.append(f"work on {target} repeated {several(number, 'time', 'times')}")
            if (reason := reasons.get(target)) is not None:
                words[-1] += f", the last time because of: {shortened(reason, _LONGEST_REASON)}"
        return tuple(words)


def table_of(operator: str, tables: Collection[str]) -> str:
    """Find the table that an operator makes, without the reader that it runs for."""
    name = re.sub(r"(-answers|-regroup)?(-for-.+)?$", "", operator)
    return name if operator not in tables and name in tables else operator
