"""The queries of a job, followed as they run: reports, and a line of JSON for each batch."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.progress import QueryPhase, doing_of, is_batch, progress_since, start_of
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_sections import JobSection
from fkjoin.jobs.screen import Screen
from fkjoin.metrics import Metrics
from fkjoin.metrics.report import BUSY_PHASES, IDLE_PHASES, Activity, JobReport, Mode, QueryReport
from fkjoin.spark.spark_api import java_context, running_context
from fkjoin.stages import counters

_ANSWER_S = 30.0
"""The time within which the sources of a query should answer."""

_TASKS_EVERY_S = 1.0
"""The time between two counts of the tasks of a batch."""


@dataclass
class _Followed:
    """A query, as far as it has been followed."""

    report: QueryReport
    batch: int = -1
    """The last batch that was taken."""
    event: tuple[str, bool] | None = None
    """The time of the last event, and whether it was of a batch."""
    alive: float = 0.0
    """The last time at which it did anything but ask its sources."""
    counted: float = 0.0
    """The time of the last count of tasks."""
    jobs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Spark's jobs of the batch at work, each with its tasks.

    A batch has several, one after the other.
    """

    def phase(self, status: Mapping[str, Any]) -> QueryPhase:
        """Tell what it does; a query that asks its sources waits, until no answer comes for long.

        It asks many times a second, and says every ten seconds that it waits.
        """
        phase, before = doing_of(status), self.report.phase
        if phase is not QueryPhase.ASKS:
            self.alive = time.time()
            return phase
        if time.time() - self.alive >= _ANSWER_S:
            return phase
        is_first = before is QueryPhase.STARTS and self.batch < 0
        return before if is_first or before is QueryPhase.DUE else QueryPhase.WAITS

    def see(self, query: StreamingQuery) -> None:
        """Note what it does, since when, and how far its batch is."""
        before, now, status = self.report.activity, time.time(), query.status
        phase, start = self.phase(status), start_of(status)
        if phase is not before.phase:
            self.jobs, self.counted = {}, now
            since = self.alive if phase is QueryPhase.ASKS else now
            self.report.activity = Activity(phase, since, start)
            return
        if phase is QueryPhase.BATCH and now - self.counted >= _TASKS_EVERY_S:
            ended = {number: (tasks, tasks) for number, (_, tasks) in self.jobs.items()}
            self.jobs, self.counted = ended | _tasks(query), now
        done = sum(done for done, _ in self.jobs.values())
        tasks = sum(tasks for _, tasks in self.jobs.values())
        self.report.activity = before._replace(start=start, tasks=(done, tasks) if tasks else None)


class StopAskedError(BaseException):
    """The end of a start that waits, because the job is to stop.

    Nothing on the way takes it for a failure.
    """


class Follower:
    """Follower of a job's queries: it takes each batch down once."""

    def __init__(
        self,
        spec: JobSection,
        names: Sequence[str],
        notes: Sequence[str],
        *,
        metrics: Metrics,
        log: TextIO | None,
        screen: Screen,
    ) -> None:
        self._name, self._notes = spec.name, tuple(notes)
        sections = spec.operators
        operators = [(key[1], sections[key].reads.values()) for key in spec.in_order()]
        self._flow = _flow([*spec.tables, *spec.events], operators, list(spec.sinks))
        self._tables = {name for name, _ in operators}
        self._metrics, self._log, self._screen = metrics, log, screen
        self._queries = {name: _Followed(metrics._query(name)) for name in names}
        self._stops: Callable[[], bool] = lambda: False
        metrics._began_ms = round(1000 * screen.began)

    def report(self) -> JobReport:
        """The job at this moment, as any thread may ask for it."""
        report = self._metrics._report(self._tables)
        stops = report.mode is Mode.RUNS and self._stops()
        mode = Mode.STOPS if stops else report.mode
        return replace(report, mode=mode, name=self._name, flow=self._flow, notes=self._notes)

    def take_internal(self, records: Mapping[str, int]) -> None:
        """Take the numbers of records that internal topics have, from any thread."""
        self._metrics._internal = dict(records)

    def stops_when(self, asked: Callable[[], bool]) -> None:
        """Show that the job stops as soon as it is ``asked`` to, also while a start waits."""
        self._stops = asked

    def turn(self, mode: Mode, why: str = "") -> None:
        """Note that the job stops, or has ended, and how; ``why``: the reason of a failure."""
        self._metrics._turn(mode, why)
        if mode is Mode.FAILS:
            self._screen.say(why)
        for name, known in self._queries.items():
            if mode.is_end and known.report.phase in (*BUSY_PHASES, *IDLE_PHASES):
                refused = mode is Mode.FAILED and known.report.phase is QueryPhase.STARTS
                self.ends(name, QueryPhase.FAILED if refused else QueryPhase.STOPPED, why)
        self._screen.refresh()

    def starts(self, name: str, start: str) -> None:
        """Note that a query is about to be started.

        ``start``: what that works on until Spark has the query.
        """
        known = self._queries[name]
        known.alive = time.time()
        known.report.activity = Activity(QueryPhase.STARTS, known.alive, start)
        self._metrics._start(name)
        self._screen.refresh()

    def look_around(self) -> None:
        """Show what is new while the start of a query waits; end it when the job is to stop."""
        self._screen.refresh()
        if self._stops():
            raise StopAskedError

    def look(self, name: str, query: StreamingQuery) -> None:
        """Take what is new of a query."""
        known = self._queries[name]
        self._metrics._learn_interval(name, str(query.runId), lambda: query)
        for progress in progress_since(query, known.batch, idle=True):
            event = progress.timestamp, is_batch(progress.durationMs)
            if event == known.event:  # a query that waits has the same last event for ten seconds
                continue
            known.event, known.alive = event, time.time()
            if (line := self._metrics.take(progress, name)) is not None:
                known.batch, known.jobs = progress.batchId, {}
                self._say_batch(name, line)
        if query.isActive:
            known.see(query)
        self._screen.refresh()

    def ends(self, name: str, how: QueryPhase, why: str = "") -> None:
        """Note that a query has ended, and how; ``why``: the reason of a failure."""
        self._metrics._end(name, why if how is QueryPhase.FAILED else None)
        self._queries[name].report.activity = Activity(how)

    def _say_batch(self, name: str, line: dict[str, Any]) -> None:
        """Write a batch to the log, and say what a person should know of it at once."""
        if self._log is not None:
            self._write(self._log, json.dumps(line))
        for operator, counted in line["counters"].items():
            batch = f"{name}: batch {line['batch']}: {operator}"
            if restarted := counted.get(counters.RESTARTS):
                self._screen.say(
                    f"{batch}: {restarted:,} rows started over: their topic was created again, or "
                    "is another one; what came last counts"
                )
            late, came = counted.get(counters.LATE, 0), counted.get(counters.ROWS_IN, 0)
            if 2 * late > came:
                self._screen.say(
                    f"{batch}: {late:,} of {came:,} changes came to windows that were closed. "
                    "A row with a timestamp far ahead closes them: set ahead, such as "
                    'ahead = "1 hour", or a longer grace'
                )

    def _write(self, log: TextIO, line: str) -> None:
        try:
            print(line, file=log, flush=True)
        except BrokenPipeError:  # standard output has no reader any more
            raise
        except OSError as error:
            raise JobError(
                f"log: {log.name} cannot be written to: {error.strerror}; make room on that disk, "
                "or name another file"
            ) from error


def _flow(
    sources: Sequence[str], operators: Sequence[tuple[str, Collection[str]]], sinks: Sequence[str]
) -> str:
    """Draw a topology in a line; an arrow says that the second operator reads the first."""
    between, before = "", ""
    for name, reads in operators:
        arrow = " → " if before in reads else ", "
        between += f"{arrow if between else ''}{name}"
        before = name
    return " → ".join(filter(None, (", ".join(sources), between, ", ".join(sinks))))


def _tasks(query: StreamingQuery) -> dict[int, tuple[int, int]]:
    """Count the tasks of the query's jobs at work, those that are done and all.

    None where Spark does not say.
    """
    context, tasks = running_context(), {}
    with contextlib.suppress(Exception):  # the job has ended meanwhile, or Spark keeps it elsewhere
        for number in context.statusTracker().getActiveJobsIds():
            job = java_context(context).sc().statusStore().job(number)
            if job.jobGroup().isDefined() and job.jobGroup().get() == str(query.runId):
                tasks[number] = job.numCompletedTasks(), job.numTasks() - job.numSkippedTasks()
    return tasks
