"""Reports, as plain data that terminal, log lines, page and Prometheus show.

A query's is what its progress events say: each event adds to it.  A job's is of one moment.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from fkjoin.checkpoint.progress import (
    QueryPhase,
    is_batch,
    lag_of,
    moment,
    records_of,
    seconds_of,
    several,
    span,
)
from fkjoin.errors import shortened
from fkjoin.metrics.health import Health, of_job, of_query
from fkjoin.metrics.history import History, Point
from fkjoin.sinks.counts import LEFT_OUT, REPEATED, Occurrence
from fkjoin.stages import counters

STATE_SIZES = (counters.STATE_ROWS, counters.STATE_BYTES, counters.LOG_BYTES, counters.INDEX_BYTES)
"""Sizes of state that an operator tells."""

BUSY_PHASES = (QueryPhase.STARTS, QueryPhase.BATCH, QueryPhase.ASKS)
"""Phases of a query that works, or has no answer."""
IDLE_PHASES = (QueryPhase.WAITS, QueryPhase.DUE)

_OF_RECENT = ("time", "batch", "inputs", "seconds", "phases")
"""The items of a recent batch."""
_RECENT, _MOST = 50, 10
"""The numbers of batches, and of hot keys and of reasons, that are kept."""
_COUNTERS, _STATE = counters.metrics_name(""), counters.state_metrics_name("")

_TROUBLES = {
    counters.DEAD_LETTERS: ("dead letter", "dead letters"),
    counters.NULL_KEY: ("row without a key", "rows without a key"),
    counters.RESTARTS: ("row started over", "rows started over"),
    counters.INDEX_REBUILT: ("index rebuilt", "indexes rebuilt"),
}
"""Counters that a person wants to hear of, one and several."""
_LONGEST_REASON = 200
"""The number of characters of a reason that are shown."""

_Key = TypeVar("_Key")
Numbers = Mapping[str, Mapping[str, Any]]
"""Numbers by operator, and by what they count."""


class Lag(NamedTuple):
    """Records that a query has left to read."""

    records: Mapping[str, Mapping[str, int]]
    """By topic and partition."""
    as_of: float
    """The time of Spark's event, in seconds since 1970: a batch began, or the query waited."""


class Activity(NamedTuple):
    """Activity of a query of a job at this moment."""

    phase: QueryPhase = QueryPhase.PLANNED
    since: float = 0.0
    """The time at which that was first seen, in seconds since 1970."""
    start: str = ""
    """The words for what its start works on or waits for."""
    tasks: tuple[int, int] | None = None
    """Tasks of the batch at work: those that are done, and all."""


_NO_ACTIVITY, _NO_LAG = Activity(), Lag({}, 0.0)


@dataclass
class QueryReport:
    """A query; values are replaced and never changed, so that a copy stays as it is."""

    name: str
    now_ms: int = 0
    """The moment of a copy, in milliseconds since 1970 as all times here."""
    started_ms: int | None = None
    ended: str | None = None
    """The reason why it ended, empty if it was stopped; None while it runs."""
    run_id: str = ""
    activity: Activity = _NO_ACTIVITY
    batches: int = 0
    rows: int = 0
    since_ms: int = 0
    """The end of the batch before the last one, or the beginning of the first."""
    ended_ms: int = 0
    """The end of the last batch."""
    batch: Mapping[str, Any] = field(default_factory=dict)
    """The last batch alone, as JSON; empty before the first."""
    recent: tuple[Mapping[str, Any], ...] = ()
    """The last batches, newest first."""
    history: History = field(default_factory=History)
    lag: Lag = _NO_LAG
    totals: Numbers = field(default_factory=dict)
    skipped: Numbers = field(default_factory=dict)
    """Unchanged results of the last batch, by stage."""
    skips: Numbers = field(default_factory=dict)
    """All of these since the start."""
    stages: Numbers = field(default_factory=dict)
    """Seconds of all tasks together, by stage."""
    state: Numbers = field(default_factory=dict)
    buckets: Mapping[str, int] = field(default_factory=dict)
    """The number of buckets that said the sizes of an operator's state."""
    fan_out: Mapping[str, int] = field(default_factory=dict)
    stream_times_ms: Mapping[str, int] = field(default_factory=dict)
    """The stream times of aggregates by windows."""
    holding: Mapping[str, str] = field(default_factory=dict)
    """The sources without rows in the last batch that hold windows open."""
    hot_keys: Numbers = field(default_factory=dict)
    """The hot keys, as JSON, with their last fan-out."""
    reasons: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By operator and reason the end of the last batch with dead letters that had it most often."""

    def take(self, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """Add what an event says; return a batch as JSON, or None for any other event."""
        begun = seconds_of(event["timestamp"])
        self.lag = Lag(lag_of(event["sources"]), begun)
        if not is_batch(event["durationMs"]):
            self.history.wait(round(1000 * begun), records_of(self.lag.records))
            return None
        self._take_batch(event, round(1000 * begun))
        return self.line(self.ended_ms)

    def copy(self, now_ms: int) -> QueryReport:
        """Return the query as it is now."""
        return replace(self, now_ms=now_ms, history=self.history.copy())

    def _take_batch(self, event: Mapping[str, Any], begun_ms: int) -> None:
        phases, rows = event["durationMs"], event["numInputRows"]
        observed = event.get("observedMetrics", {})
        seconds = phases.get("triggerExecution", 0) / 1000
        counted = {operator: _not_zero(row) for operator, row in _named(_COUNTERS, observed)}
        states = dict(_named(_STATE, observed))
        stages = {operator: _ending("-ms", row, 1000) for operator, row in states.items()}
        self.batches, self.rows = self.batches + 1, self.rows + rows
        self.since_ms, self.ended_ms = self.ended_ms or begun_ms, begun_ms + round(1000 * seconds)
        self.skipped = {operator: _ending(counters.SKIPS, row) for operator, row in states.items()}
        self.totals, self.skips = _sums(self.totals, counted), _sums(self.skips, self.skipped)
        self.stages = _sums(self.stages, stages)
        for operator, row in states.items():
            self._take_state(operator, row)
        self.batch = {
            "time": event["timestamp"],
            "query": self.name,
            "batch": event["batchId"],
            "inputs": rows,
            "seconds": seconds,
            "counters": counted,
            "phases": {phase: ms / 1000 for phase, ms in phases.items()},
        }
        recent = {item: self.batch[item] for item in _OF_RECENT}
        worked = {operator: times for operator, times in stages.items() if times}
        self.recent = ({**recent, "stages": worked}, *self.recent)[:_RECENT]
        point = Point(
            begun_ms,
            self.ended_ms,
            read=rows,
            slowest=seconds,
            lag=records_of(self.lag.records),
            out=only(counters.OUT, counted),
            stored=only(counters.STATE_BYTES, self.state),
            dead=only(counters.DEAD_LETTERS, counted),
        )
        self.history.add(point)

    def _take_state(self, operator: str, row: Mapping[str, Any]) -> None:
        """Take what an operator says of its state.

        Sizes count only if all buckets said theirs, as far as is known.
        """
        fan_out, key = row.get(counters.FAN_OUT) or 0, row.get("hot-key")
        buckets = row.get(counters.BUCKET_COUNT) or 0
        if buckets >= max(1, self.buckets.get(operator, 0)):
            self.buckets = {**self.buckets, operator: buckets}
            self.state = {**self.state, operator: {item: row[item] for item in STATE_SIZES}}
        if fan_out > self.fan_out.get(operator, 0):
            self.fan_out = {**self.fan_out, operator: fan_out}
        if key is not None:
            known = self.hot_keys.get(operator, {})
            self.hot_keys = {**self.hot_keys, operator: _last(known, key, fan_out)}
        if (time_ms := row.get(counters.STREAM_TIME)) is not None:
            self.stream_times_ms = {**self.stream_times_ms, operator: time_ms}
        self.holding = {**self.holding, operator: row.get("holds-windows") or ""}
        if (reason := row.get("dead-letter")) is not None:
            self.reasons = _last(self.reasons, (operator, reason), self.ended_ms)

    def line(self, now_ms: int) -> dict[str, Any]:
        """Return the last batch as JSON: see ``Metrics.take``."""
        batch = dict(self.batch)
        phases, counted = batch.pop("phases"), batch["counters"]
        return {
            **batch,
            "totals": self.totals,
            "rates": self._a_second(counted, now_ms),
            "skip_rates": self._a_second(self.skipped, now_ms),
            "phases": phases,
            "stages": self.stages,
            "state": self.state,
            "lag": self.lag.records,
            "lag_ms": round(1000 * self.lag.as_of),
            "fan_out": self.fan_out,
            "hot_keys": self.hot_keys,
        }

    def snapshot(self) -> dict[str, Any]:
        """Return the last batch as it is now, recent ones, and sums."""
        more = {"recent": list(self.recent), "batches": self.batches, "all_inputs": self.rows}
        return {**self.line(self.now_ms), **more}

    def _a_second(self, numbers: Numbers, now_ms: int) -> dict[str, dict[str, float]]:
        """Return rates of the last batch, by operator.

        It counts for the seconds since the batch before it ended.  When no batch has ended for
        longer than that, the time up to ``now_ms`` counts: a query that waits does not continue at
        its last rates.
        """
        passed = max(self.ended_ms - self.since_ms, now_ms - self.ended_ms) / 1000
        rates = {}
        for operator, row in numbers.items() if passed > 0 else ():
            if row:
                rates[operator] = {item: round(number / passed, 1) for item, number in row.items()}
        return rates

    @property
    def behind(self) -> int | None:
        """Return the records that are left to read; None where that cannot be known."""
        return records_of(self.lag.records) if self.batches else None

    @property
    def phase(self) -> QueryPhase:
        """Return what the query does; that is known of the queries of a job."""
        return self.activity.phase

    @property
    def doing(self) -> str:
        """Say what the query does, and since when."""
        phase, since, start, tasks = self.activity
        now, ended = self.now_ms / 1000, self.ended_ms / 1000
        if phase is QueryPhase.WAITS:
            return f"{phase.value} since {moment(ended or since, now)}"
        if phase is QueryPhase.BATCH:
            # Without a pause, a batch begins where the one before it ended.
            which = f"batch {self.batch['batch'] + 1:,}" if self.batch else "first batch"
            progress = "" if tasks is None else f", {tasks[0]:,} of {tasks[1]:,} tasks"
            return f"{which} for {span(int(now - max(since, ended)))}{progress}"
        if phase is QueryPhase.STARTS:
            return f"{phase.value} for {span(int(now - since))}" + (f": {start}" if start else "")
        if phase is QueryPhase.ASKS:
            return f"has no answer from its sources for {span(int(now - since))}"
        return phase.value

    @property
    def read(self) -> float:
        """Return the rows read a second in the last seconds; they fall when no batch ends.

        They are 0 while the query waits.
        """
        past = self.history
        if self.ended is not None or past.waits or not past.points:
            return 0.0
        passed = max(past.points[-1].passed, (self.now_ms - self.ended_ms) / 1000)
        return past.points[-1].read / passed if passed > 0 else 0.0

    @property
    def delay(self) -> float:
        """Return the delay of the last batches in seconds: see ``Point.delay``."""
        return self.history.points[-1].delay if self.history.points else 0.0

    @cached_property
    def health(self) -> Health:
        """Tell how it is, and for which sources its windows wait."""
        started_ms = self.now_ms if self.started_ms is None else self.started_ms
        health = of_query(self.history, started_ms, self.ended, self.now_ms)
        words = health.words
        for name, source in self.holding.items():
            if source and self.ended is None:
                words += f" Windows of {name} stay open until {source} has rows: "
                words += "its time is behind, and it has none now."
        return replace(health, words=words)


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


def _named(prefix: str, observed: Numbers) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what is observed under a prefix, by operator."""
    for name, row in observed.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), row


def _ending(suffix: str, row: Mapping[str, Any], unit: int = 1) -> dict[str, Any]:
    """Return the numbers whose names end so, without that, but those that are 0 or unknown."""
    numbers = {item: number for item, number in row.items() if number and item.endswith(suffix)}
    return {item.removesuffix(suffix): number / unit for item, number in numbers.items()}


def _not_zero(row: Mapping[str, int]) -> dict[str, int]:
    return {item: number for item, number in row.items() if number}


def only(item: str, numbers: Numbers) -> dict[str, int]:
    """Return one number of each operator that has it."""
    return {operator: row[item] for operator, row in numbers.items() if item in row}


def _sums(before: Numbers, more: Numbers) -> Numbers:
    sums = dict(before)
    for operator, row in more.items():
        known = before.get(operator, {})
        more_of_it = {item: known.get(item, 0) + number for item, number in row.items()}
        if row:
            sums[operator] = {**known, **more_of_it}
    return sums


def _last(before: Mapping[_Key, int], key: _Key, number: int) -> dict[_Key, int]:
    """Return the last numbers with one more, each key once."""
    others = [item for item in before.items() if item[0] != key]
    return dict([*others, (key, number)][-_MOST:])
