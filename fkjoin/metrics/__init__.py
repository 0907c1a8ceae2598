"""What running queries say of themselves, from Spark's progress events: counters, times, lag, sizes of state, hot keys.

``watch`` is for queries that a program starts itself, ``fkjoin run`` has the same for its own.  As JSON lines (``Metrics.take``
returns them), and for Prometheus under ``fkjoin_…``; the names of counters are Kafka Streams' where it has them.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryProgress

from fkjoin.metrics.server import Access, Page, PageServer
from fkjoin.sinks.counts import LEFT_OUT, REPEATED, counted
from fkjoin.stages import counters
from fkjoin.stages.counters import metrics_name, state_metrics_name

__all__ = ["Metrics", "watch"]

_COUNTERS, _STATE = metrics_name(""), state_metrics_name("")
_RECENT = 50
_SIZES = (counters.STATE_ROWS, counters.STATE_BYTES, counters.LOG_BYTES, counters.INDEX_BYTES)


@dataclass
class _Operator:
    """What is known of an operator."""

    totals: Counter[str] = field(default_factory=Counter)
    last: dict[str, int] = field(default_factory=dict)
    """The counters of the last batch."""
    skips: Counter[str] = field(default_factory=Counter)
    """Unchanged results, by stage."""
    last_skips: dict[str, int] = field(default_factory=dict)
    """Those of the last batch."""
    sizes: dict[str, int] = field(default_factory=dict)
    buckets: int = 0
    stage_seconds: Counter[str] = field(default_factory=Counter)
    """Of all tasks together."""
    fan_out: int = 0
    hot: dict[str, int] = field(default_factory=dict)
    """The hot keys, as JSON, with their last fan-out."""


@dataclass
class _Query:
    """What is known of a query."""

    batches: int = 0
    inputs: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    since_ms: int = 0
    """The end of the batch before the last one, or the beginning of the first, in milliseconds since 1970."""
    ended_ms: int = 0
    """The end of the last batch."""
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    operators: dict[str, _Operator] = field(default_factory=dict)

    def rates(self, now_ms: int) -> dict[str, dict[str, dict[str, float]]]:
        """Counters and skips of the last batch, by operator, for a second of the time since the batch before it ended.

        When no batch has ended for longer than that, the time up to ``now_ms`` counts: a query that waits does not go on at
        its last rates.
        """
        passed = max(self.ended_ms - self.since_ms, now_ms - self.ended_ms) / 1000
        rates: dict[str, dict[str, dict[str, float]]] = {"rates": {}, "skip_rates": {}}
        for operator, known in self.operators.items() if passed > 0 else ():
            for kind, row in zip(rates.values(), (known.last, known.last_skips), strict=True):
                if row:
                    kind[operator] = {item: round(value / passed, 1) for item, value in row.items()}
        return rates


class Metrics(Collector):
    """Sums up progress events; may be read by another thread meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}

    def take(self, progress: StreamingQueryProgress, name: str | None = None) -> dict[str, Any]:
        """Add a batch; returns what there is to say of it, as JSON.

        Keys: ``time, query, batch, inputs, seconds``; ``counters`` of the batch, ``totals`` since the start and ``rates`` a
        second of the time since the end of the batch before, by operator, those that are not 0; ``skip_rates`` (unchanged
        results, by operator and stage, a second); ``phases`` (Spark's, seconds); ``stages`` (by operator; seconds of all tasks
        since the start); ``state`` (by operator: rows, about, and bytes); ``lag`` (records, by topic and partition);
        ``fan_out`` and ``hot_keys`` by operator.
        """
        return self.take_json(progress.json, name)

    def take_json(self, progress: str, name: str | None = None) -> dict[str, Any]:
        """The same, of the progress as Spark's JSON."""
        about: dict[str, Any] = json.loads(progress)
        seconds = about["durationMs"].get("triggerExecution", 0) / 1000
        observed: dict[str, dict[str, Any]] = about.get("observedMetrics", {})
        found = {
            name.removeprefix(_COUNTERS): {item: value for item, value in row.items() if value}
            for name, row in observed.items()
            if name.startswith(_COUNTERS)
        }
        states = {name.removeprefix(_STATE): row for name, row in observed.items() if name.startswith(_STATE)}
        query_name = name or about["name"] or about["id"]
        with self._lock:
            query = self._queries.setdefault(query_name, _Query())
            query.batches += 1
            query.inputs += about["numInputRows"]
            began = datetime.fromisoformat(about["timestamp"].replace("Z", "+00:00"))
            began_ms = round(1000 * began.timestamp())
            query.since_ms, query.ended_ms = query.ended_ms or began_ms, began_ms + round(1000 * seconds)
            for known in query.operators.values():
                known.last, known.last_skips = {}, {}
            for operator, row in found.items():
                known = query.operators.setdefault(operator, _Operator())
                known.totals.update(row)
                known.last = row
            for operator, row in states.items():
                _take_state(query.operators.setdefault(operator, _Operator()), row)
            query.last = self._line(query_name, query, about, seconds, found)
            query.recent.append({name: query.last[name] for name in ("time", "batch", "inputs", "seconds", "phases")})
            return query.last

    def _line(
        self, name: str, query: _Query, about: Mapping[str, Any], seconds: float, found: Mapping[str, Mapping[str, int]]
    ) -> dict[str, Any]:
        operators = query.operators
        return {
            "time": about["timestamp"],
            "query": name,
            "batch": about["batchId"],
            "inputs": about["numInputRows"],
            "seconds": seconds,
            "counters": found,
            "totals": {operator: dict(known.totals) for operator, known in operators.items() if operator in found},
            **query.rates(query.ended_ms),
            "phases": {phase: ms / 1000 for phase, ms in about["durationMs"].items()},
            "stages": {operator: dict(known.stage_seconds) for operator, known in operators.items()},
            "state": {operator: known.sizes for operator, known in operators.items() if known.sizes},
            "lag": _lag(about["sources"]),
            "fan_out": {operator: known.fan_out for operator, known in operators.items() if known.fan_out},
            "hot_keys": {operator: dict(known.hot) for operator, known in operators.items() if known.hot},
        }

    def snapshot(self) -> dict[str, Any]:
        """All queries: their last batch, as ``take`` returned it, and ``recent`` ones, newest first.

        ``rates`` fall while a query waits.
        """
        now_ms = round(1000 * time.time())
        with self._lock:
            return {
                name: {
                    **query.last,
                    **query.rates(now_ms),
                    "recent": list(reversed(query.recent)),
                    "batches": query.batches,
                    "all_inputs": query.inputs,
                }
                for name, query in self._queries.items()
            }

    def collect(self) -> Iterator[Metric]:
        """For a registry of ``prometheus_client``."""
        with self._lock:
            families = list(_families(self._queries))
        yield from families

    def prometheus(self) -> bytes:
        """Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


class _Events(JStreamingQueryListener):
    """A listener as the JVM calls it, with progress as one text; PySpark's asks for each number of it, 0.4 s for a join's."""

    def __init__(self, listener: Listener, metrics: Metrics) -> None:
        super().__init__(listener)
        self._metrics = metrics

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        self._metrics.take_json(jevent.progress().json())


class Listener(StreamingQueryListener):
    """Give the progress of all queries of a session to ``Metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    @functools.cached_property
    def _jlistener(self) -> Any:
        """What PySpark registers."""
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(_Events(self, self._metrics))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._metrics.take(event.progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def progress_since(query: StreamingQuery, batch: int) -> list[StreamingQueryProgress]:
    """Progress of the query's batches after ``batch`` (-1: of all), oldest first, as far back as Spark keeps it.

    Cheap to ask again and again: Spark writes out the progress of all of its last hundred batches for whoever wants the recent
    ones, so the last one is asked for first.
    """
    last = query.lastProgress
    if last is None or last.batchId <= batch:
        return []
    if last.batchId == batch + 1:
        return [last]
    return [progress for progress in query.recentProgress if progress.batchId > batch]


def watch(
    spark: SparkSession,
    port: int | None = None,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    names: Iterable[str] = (),
) -> Metrics:
    """The metrics of all queries that run in the session from now on; for Prometheus at ``/metrics`` of ``port``, if given.

    ``host``: the address to listen on, this machine's own by default; ``"0.0.0.0"``: everybody that reaches the machine may
    ask.  ``token``: whoever asks must send the header ``Authorization: Bearer TOKEN``.  ``names``: of the machine, as a
    caller writes them; ``localhost`` and the address that a question comes to are always right, other names are refused.
    Raises ``FkJoinError`` when nobody may listen there.
    """
    metrics = Metrics()
    access = Access(host, tuple(names), token)
    if port is not None:
        PageServer({"/metrics": Page(metrics.prometheus, CONTENT_TYPE_LATEST)}, port, access, "port")
    spark.streams.addListener(Listener(metrics))
    return metrics


def _take_state(known: _Operator, row: Mapping[str, Any]) -> None:
    """What an operator says of its state; sizes only if all buckets said theirs, as far as is known."""
    for item, value in row.items():
        if item.endswith("-ms") and value:
            known.stage_seconds[item.removesuffix("-ms")] += value / 1000
        if item.endswith(counters.SKIPS) and value:
            known.last_skips[item.removesuffix(counters.SKIPS)] = value
    known.skips.update(known.last_skips)
    if (reporting := row.get(counters.BUCKETS) or 0) and reporting >= known.buckets:
        known.buckets = reporting
        known.sizes = {item: row[item] for item in _SIZES}
    known.fan_out = max(known.fan_out, row.get(counters.FAN_OUT) or 0)
    if (key := row.get("hot-key")) is not None:
        known.hot.pop(key, None)
        known.hot[key] = row[counters.FAN_OUT]
        while len(known.hot) > 10:
            del known.hot[next(iter(known.hot))]


def _lag(sources: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How many records of each topic's partitions are yet to be read."""
    lag: dict[str, dict[str, int]] = {}
    for source in sources:
        end, latest = source.get("endOffset"), source.get("latestOffset")
        if isinstance(end, dict) and isinstance(latest, dict):
            for topic in end.keys() & latest.keys():
                if isinstance(end[topic], dict):
                    lag[topic] = {part: at - end[topic].get(part, 0) for part, at in latest[topic].items()}
    return lag


def _families(queries: Mapping[str, _Query]) -> Iterator[Metric]:
    batches = CounterMetricFamily("fkjoin_batches", "Micro-batches that were done.", labels=["query"])
    inputs = CounterMetricFamily("fkjoin_input_rows", "Rows that were read.", labels=["query"])
    phases = GaugeMetricFamily("fkjoin_batch_seconds", "The last batch, by Spark's phases.", labels=["query", "phase"])
    lag = GaugeMetricFamily("fkjoin_lag_records", "Records that are yet to be read.", labels=["query", "topic", "partition"])
    where = ["query", "operator"]
    stages = CounterMetricFamily("fkjoin_stage_seconds", "Time of stages, of all tasks.", labels=[*where, "stage"])
    skips = CounterMetricFamily("fkjoin_stage_idempotent_update_skip", "Unchanged results, by stage.", labels=[*where, "stage"])
    fan_out = GaugeMetricFamily("fkjoin_fan_out_max", "The most answers to one right row in a batch so far.", labels=where)
    totals = {
        name: CounterMetricFamily(f"fkjoin_{name.replace('-', '_')}", f"Kafka Streams' and fkjoin's {name}.", labels=where)
        for name in counters.ALL
    }
    sizes = {
        name: GaugeMetricFamily(f"fkjoin_{name.replace('-', '_')}", f"{name.replace('-', ' ').capitalize()}.", labels=where)
        for name in _SIZES
    }
    for name, query in queries.items():
        batches.add_metric([name], query.batches)
        inputs.add_metric([name], query.inputs)
        for phase, seconds in query.last["phases"].items():
            phases.add_metric([name, phase], seconds)
        for topic, partitions in query.last["lag"].items():
            for partition, records in partitions.items():
                lag.add_metric([name, topic, partition], records)
        for operator, known in query.operators.items():
            for stage, seconds in known.stage_seconds.items():
                stages.add_metric([name, operator, stage], seconds)
            for stage, number in known.skips.items():
                skips.add_metric([name, operator, stage], number)
            if known.fan_out:
                fan_out.add_metric([name, operator], known.fan_out)
            for item, value in known.totals.items():
                totals[item].add_metric([name, operator], value)
            for item, size in known.sizes.items():
                sizes[item].add_metric([name, operator], size)
    sinks = {
        LEFT_OUT: CounterMetricFamily("fkjoin_sink_dead_letters", "Rows that a sink's place cannot have.", labels=["place"]),
        REPEATED: CounterMetricFamily("fkjoin_sink_retries", "Work of a sink that was repeated.", labels=["place"]),
    }
    for (what, place), number in counted().items():
        sinks[what].add_metric([place], number)
    yield from (batches, inputs, phases, lag, stages, skips, fan_out, *totals.values(), *sizes.values(), *sinks.values())


def __dir__() -> list[str]:
    return __all__
