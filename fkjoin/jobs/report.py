"""The queries of a job, followed as they run: a view for the screen, and a line of JSON for each batch."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.progress import QueryPhase, doing_of, is_batch, progress_since, several, start_of
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_order import in_order
from fkjoin.jobs.job_sections import JobSection
from fkjoin.jobs.screen import Screen
from fkjoin.jobs.view import AT_WORK, BatchView, Flow, JobView, Mode, QueryView, batches_of, doing, ended, rate_of
from fkjoin.metrics import Metrics
from fkjoin.metrics.flows import table_of
from fkjoin.sinks.counts import LEFT_OUT, counted, last_events
from fkjoin.stages import counters

_TROUBLES = {
    counters.DEAD_LETTERS: ("dead letter", "dead letters"),
    counters.NULL_KEY: ("row without a key", "rows without a key"),
    counters.RESTARTS: ("row started over", "rows started over"),
    counters.INDEX_REBUILT: ("index rebuilt", "indexes rebuilt"),
}
"""Counters that a person wants to hear of, one and several."""

_ANSWER_S = 30.0
"""The time within which the sources of a query should answer."""

_REASON = 200
"""So many characters of a reason are shown."""

_TASKS_EVERY_S = 1.0
"""The time between two counts of the tasks of a batch."""


def flow_of(spec: JobSection) -> Flow:
    """The topology of a job file."""
    operators = [(name, spec.operators[kind, name]) for kind, name in in_order(spec)]
    reads = tuple((name, tuple(section.reads.values())) for name, section in operators)
    return Flow((*spec.tables, *spec.events), reads, tuple(spec.sinks))


def troubles_of(totals: Iterable[Mapping[str, Mapping[str, int]]], tables: Collection[str]) -> tuple[str, ...]:
    """Say what went wrong since the start, by the ``totals`` of each query's operators.

    An operator that several queries run, or that runs for several of the ``tables``, counts the same rows each time, so the
    largest number holds.
    """
    found: dict[tuple[str, str], int] = {}
    for operators in totals:
        for operator, numbers in operators.items():
            name = table_of(operator, tables)
            for item in _TROUBLES.keys() & numbers.keys():
                found[item, name] = max(found.get((item, name), 0), numbers[item])
    return tuple(
        f"{several(found[item, name], *words)} in {name}"
        for item, words in _TROUBLES.items()
        for of, name in sorted(found)
        if of == item
    )


class Report:
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
        self._name, self._flow, self._began = spec.name, flow_of(spec), screen.began
        metrics._began_ms = round(1000 * screen.began)
        self._tables = {name for name, _ in self._flow.made}
        self._metrics, self._log, self._screen = metrics, log, screen
        self._seen: dict[str, int] = {}
        self._batches: dict[str, list[BatchView]] = {}
        self._queries = {name: QueryView(name) for name in names}
        self._counted: dict[str, float] = {}
        self._jobs: dict[str, dict[int, tuple[int, int]]] = {}
        """Spark's jobs of the batch at work, each with its tasks, by query: a batch has several, one after the other."""
        self._alive: dict[str, float] = {}
        self._events: dict[str, tuple[str, bool]] = {}
        self._troubles: tuple[str, ...] = ()
        self._mode, self._notes = Mode.RUNS, tuple(notes)
        self._stops: Callable[[], bool] = lambda: False
        self._ended: float | None = None

    def view(self) -> JobView:
        """The job at this moment, as any thread may ask for it."""
        now = time.time() if self._ended is None else self._ended
        queries = tuple(
            replace(query, rate=rate_of(self._batches.get(query.name, ()), now)) for query in self._queries.values()
        )
        troubles = (*self._troubles, *_of_sinks())
        silences = (silence for of_query in self._metrics._silences().values() for silence in of_query)
        silent = tuple(dict.fromkeys(silence.words(now) for silence in silences)) if self._ended is None else ()
        mode = Mode.STOPS if self._mode is Mode.RUNS and self._stops() else self._mode
        return JobView(self._name, self._flow, self._began, now, queries, mode, troubles, self._notes, silent)

    def take_internal(self, records: Mapping[str, int]) -> None:
        """Take the numbers of records that internal topics have, from any thread."""
        self._metrics._internal = dict(records)

    def stops_when(self, asked: Callable[[], bool]) -> None:
        """Show that the job stops as soon as it is ``asked`` to, also while the start of a query waits."""
        self._stops = asked

    def turn(self, mode: Mode, why: str = "") -> None:
        """Note that the job stops, or has ended, and how; ``why``: the reason of a failure."""
        self._mode = mode
        if mode is Mode.FAILS:
            self._screen.say(why)
        if mode in (Mode.STOPS, Mode.FAILS):
            self._screen.refresh()
            return
        self._ended = time.time()
        for name, query in self._queries.items():
            if query.doing in AT_WORK:
                refused = mode is Mode.FAILED and query.doing is QueryPhase.STARTS
                self.ends(name, QueryPhase.FAILED if refused else QueryPhase.STOPPED, why)
        self._metrics._end_job(failed=mode is Mode.FAILED, words=f"{ended(self.view())}{': ' if why else '.'}{why}")

    def starts(self, name: str, start: str) -> None:
        """Note that a query is about to be started; ``start``: what that works on until Spark has the query."""
        self._alive[name] = time.time()
        self._metrics._start(name)
        self._queries[name] = replace(self._queries[name], doing=QueryPhase.STARTS, since=self._alive[name], start=start)
        self._say_work(self._queries[name])
        self._screen.refresh()

    def refresh(self) -> None:
        """Show what is new."""
        self._screen.refresh()

    def look(self, name: str, query: StreamingQuery) -> None:
        """Take what is new of a query."""
        self._metrics._learn_topics(name, str(query.runId), lambda: _with_sources(query))
        for progress in progress_since(query, self._seen.get(name, -1), idle=True):
            event = progress.timestamp, is_batch(progress.durationMs)
            if self._events.get(name) == event:  # a query that waits has the same last event for ten seconds
                continue
            self._events[name], self._alive[name] = event, time.time()
            if (line := self._metrics.take(progress, name)) is not None:
                self._seen[name] = progress.batchId
                self._take(name, line)
        if self._queries[name].batches:
            behind, at = self._metrics._left(name)
            self._queries[name] = replace(self._queries[name], behind=behind, behind_at=at)
        if query.isActive:
            status = query.status
            known = replace(self._queries[name], start=start_of(status))
            self._queries[name] = self._now_doing(known, self._does(name, status), lambda: _tasks(query))
        self._say_work(self._queries[name])
        self._screen.refresh()

    def ends(self, name: str, how: QueryPhase, why: str = "") -> None:
        """Note that a query has ended, and how; ``why``: the reason of a failure."""
        self._metrics._end(name, why if how is QueryPhase.FAILED else None)
        self._queries[name] = replace(self._queries[name], doing=how, tasks=None)
        self._say_work(self._queries[name])

    def _say_work(self, query: QueryView) -> None:
        """Tell the page what a query works on; without the time of a start, amid which this is not called."""
        words = doing(query, time.time()) if query.doing in (QueryPhase.BATCH, QueryPhase.ASKS) else ""
        self._metrics._work(query.name, f"starts: {query.start}" if query.doing is QueryPhase.STARTS else words)

    def _does(self, name: str, status: Mapping[str, Any]) -> QueryPhase:
        """Tell what a query does; one that asks its sources waits, until it has got no answer for long.

        It asks many times a second, and says every ten seconds that it waits.
        """
        found = doing_of(status)
        if found is not QueryPhase.ASKS:
            self._alive[name] = time.time()
        elif time.time() - self._alive[name] < _ANSWER_S:
            known = self._queries[name]
            keeps = known.doing is QueryPhase.DUE or (known.doing is QueryPhase.STARTS and known.last is None)
            return known.doing if keeps else QueryPhase.WAITS
        return found

    def _now_doing(self, query: QueryView, does: QueryPhase, tasks: Callable[[], dict[int, tuple[int, int]]]) -> QueryView:
        now = time.time()
        if does is not query.doing:
            self._jobs[query.name] = {}
            since = self._alive[query.name] if does is QueryPhase.ASKS else now
            if does is QueryPhase.WAITS and query.last is not None:
                since = query.last.ended
            return replace(query, doing=does, since=since, tasks=None)
        if does is not QueryPhase.BATCH or now - max(query.since, self._counted.get(query.name, 0)) < _TASKS_EVERY_S:
            return query
        self._counted[query.name] = now
        jobs = self._jobs[query.name]
        jobs |= {number: (of, of) for number, (_, of) in jobs.items()} | tasks()  # those that are not at work have ended
        done, of = sum(done for done, _ in jobs.values()), sum(of for _, of in jobs.values())
        return replace(query, tasks=(done, of) if of else None)

    def _take(self, name: str, line: dict[str, Any]) -> None:
        if self._log is not None:
            self._write(self._log, json.dumps(line))
        for operator, counted_now in line["counters"].items():
            if restarted := counted_now.get(counters.RESTARTS):
                self._screen.say(
                    f"{name}: batch {line['batch']}: {operator}: {restarted:,} rows started over: their topic was created "
                    "again, or is another one; what came last counts"
                )
            late, came = counted_now.get(counters.LATE, 0), counted_now.get(counters.ROWS_IN, 0)
            if 2 * late > came:
                self._screen.say(
                    f"{name}: batch {line['batch']}: {operator}: {late:,} of {came:,} changes came to windows that were "
                    'closed. A row with a timestamp far ahead closes them: set ahead, such as ahead = "1 hour", or a longer '
                    "grace"
                )
        known = self._metrics.snapshot()
        about = known[name]
        self._batches[name] = batches = batches_of(about["recent"])
        query, last, self._jobs[name] = self._queries[name], batches[-1], {}
        since = last.ended if query.doing in (QueryPhase.WAITS, QueryPhase.BATCH) else query.since
        self._queries[name] = replace(
            query,
            since=since,
            tasks=None,
            last=last,
            batches=about["batches"],
            rows=about["all_inputs"],
        )
        self._troubles = troubles_of((one["totals"] for one in known.values()), self._tables)

    def _write(self, log: TextIO, line: str) -> None:
        try:
            print(line, file=log, flush=True)
        except BrokenPipeError:  # standard output has no reader any more
            raise
        except OSError as error:
            raise JobError(
                f"log: {log.name} cannot be written to: {error.strerror}; make room on that disk, or name another file"
            ) from error


def _with_sources(query: StreamingQuery) -> StreamingQuery | None:
    """The query; None until its sources are there."""
    return None if doing_of(query.status) is QueryPhase.STARTS else query


def _of_sinks() -> list[str]:
    """Say what sinks count, and why work was repeated the last time."""
    reasons = {event.place: event.words for event in last_events() if event.what != LEFT_OUT}
    return [
        f"{several(number, 'row', 'rows')} that {place} cannot have"
        if what == LEFT_OUT
        else f"work on {place} repeated {several(number, 'time', 'times')}" + _last(reasons.get(place))
        for (what, place), number in sorted(counted().items())
    ]


def _last(reason: str | None) -> str:
    if reason is None:
        return ""
    return f", the last time because of: {reason if len(reason) <= _REASON else f'{reason[:_REASON]}…'}"


def _tasks(query: StreamingQuery) -> dict[int, tuple[int, int]]:
    """Count the tasks of the query's jobs at work, those that are done and all; none where Spark does not say."""
    context: Any = SparkContext._active_spark_context
    found = {}
    with contextlib.suppress(Exception):  # the job has ended meanwhile, or Spark keeps it elsewhere
        for number in context.statusTracker().getActiveJobsIds():
            job = context._jsc.sc().statusStore().job(number)
            if job.jobGroup().isDefined() and job.jobGroup().get() == str(query.runId):
                found[number] = job.numCompletedTasks(), job.numTasks() - job.numSkippedTasks()
    return found
