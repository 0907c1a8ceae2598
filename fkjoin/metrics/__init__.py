"""Metrics of running queries, from Spark's progress events: counters, times, lag, sizes of state, hot keys.

``watch`` is for queries that a program starts itself, ``fkjoin run`` has the same for its own.  As JSON lines (``Metrics.take``
returns them), and for Prometheus under ``fkjoin_…``; the names of counters are Kafka Streams' where it has them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryProgress

from fkjoin.checkpoint.progress import event_of, is_batch, records_of, seconds_of
from fkjoin.checkpoint.source_topics import source_topics
from fkjoin.errors import needs_extra
from fkjoin.kafka.end_offsets import Silence, read_ends
from fkjoin.metrics.families import families_of
from fkjoin.metrics.history import History
from fkjoin.metrics.listener import Listener
from fkjoin.metrics.query_metrics import OperatorMetrics, QueryMetrics, Run
from fkjoin.metrics.server import ClientAccess, PageServer
from fkjoin.spark.trigger import interval_of
from fkjoin.stages.counters import metrics_name, state_metrics_name

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
else:
    Collector = object

__all__ = ["Metrics", "watch"]

_T = TypeVar("_T")
_COUNTERS, _STATE = metrics_name(""), state_metrics_name("")


class Metrics(Collector):
    """Sums of queries' progress events; another thread may read them meanwhile.

    Examples
    --------
    >>> metrics = Metrics()
    >>> line = metrics.take(query.lastProgress)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, QueryMetrics] = {}
        self._waiting: dict[str, QueryMetrics] = {}
        """Queries that have said that they wait, and have not ended a batch."""
        self._started_ms: dict[str, int] = {}
        self._began_ms: int | None = None
        """The beginning of the job, or of its first query."""
        self._ended: dict[str, str] = {}
        """The reasons why queries ended; nothing where they were stopped."""
        self._works: dict[str, str] = {}
        """The work of each query at this moment, in words."""
        self._end_of_job: dict[str, Any] | None = None
        self._internal: dict[str, int] = {}
        """The numbers of records of the topics between stages."""
        self._runs: dict[str, Run] = {}

    def __repr__(self) -> str:
        return f"Metrics[queries: {', '.join({**self._started_ms, **self._queries}) or 'none'}]"

    def _learn_topics(self, name: str, run: str, running: Callable[[], StreamingQuery | None]) -> None:
        """Find out once in a run which topics a query reads, and how far its batches are apart; its sources must be there."""
        if self._run(name).run_id != run and (query := running()) is not None:
            found = Run(run, source_topics(query), interval_of(query))
            with self._lock:
                self._runs[name] = found

    def _run(self, name: str) -> Run:
        return self._runs.get(name, Run())

    def _silences(self) -> dict[str, list[Silence]]:
        """Return the topics of running queries whose brokers do not answer."""
        with self._lock:
            reading = {name: run.topics for name, run in self._runs.items() if name not in self._ended}
        return {name: silent for name, topics in reading.items() if (silent := read_ends(topics)[1])}

    def _left(self, name: str) -> tuple[int | None, float]:
        """Return how many records a query has left to read, and the time as of which that is."""
        with self._lock:
            self._count_left()
            last = self._queries[name].last
            return records_of(last["lag"]), last["lag_ms"] / 1000

    def _count_left(self) -> None:
        """Bring the lag of running queries up to date; the lock is held."""
        for name, query in self._queries.items():
            if name not in self._ended:
                query.last = {**query.last, **query.lag(self._run(name).topics)}
                query.history.lag, query.history.interval_s = records_of(query.last["lag"]), self._run(name).interval_s

    def _start(self, name: str) -> None:
        """Take down that a query has started, or will soon."""
        with self._lock:
            self._started_ms[name] = round(1000 * time.time())
            self._began_ms = self._began_ms or self._started_ms[name]
            self._ended.pop(name, None)

    def _end(self, name: str, why: str | None) -> None:
        """Take down that a query has ended."""
        with self._lock:
            self._ended[name] = why or ""

    def _work(self, name: str, words: str) -> None:
        """Take down what a query works on at this moment; nothing while it waits."""
        with self._lock:
            self._works[name] = words

    def _end_job(self, *, failed: bool, words: str) -> None:
        """Take down how the job has ended; pages that are open show it when the job's process is gone."""
        with self._lock:
            self._end_of_job = {"state": "failed" if failed else "ended", "words": words, "at_ms": round(1000 * time.time())}

    def _ended_job(self) -> dict[str, Any] | None:
        """Return how the job has ended; None while it runs."""
        with self._lock:
            return self._end_of_job

    def _doing(self) -> dict[str, str]:
        """Return what queries work on."""
        with self._lock:
            return dict(self._works)

    def _look(self, look: Callable[[Mapping[str, QueryMetrics], Mapping[str, int], Mapping[str, str]], _T]) -> _T:
        """Return what ``look`` makes of the queries, of when they started, and of why they ended."""
        with self._lock:
            self._count_left()
            return look(self._queries, self._started_ms, self._ended)

    def take(self, progress: StreamingQueryProgress, name: str | None = None) -> dict[str, Any] | None:
        """Add a batch, and say as JSON what there is to say of it.

        Parameters
        ----------
        progress : pyspark.sql.streaming.StreamingQueryProgress
            The event.
        name : str, optional
            The query's name; if left out, what Spark calls it.

        Returns
        -------
        dict or None
            None of an event that is no batch's.  Keys:

            - ``time, query, batch, inputs, seconds``;
            - ``counters`` of the batch, ``totals`` since the start and ``rates`` a second since the end of the previous batch,
              by operator, those that are not 0;
            - ``skip_rates`` (unchanged results, by operator and stage, a second);
            - ``phases`` (Spark's, seconds); ``stages`` (by operator; seconds of all tasks since the start);
            - ``state`` (by operator: rows, about, and bytes); ``lag`` (records, by topic and partition) and
              ``lag_ms``, the time as of which it is, in milliseconds since 1970;
            - ``fan_out`` and ``hot_keys`` by operator.
        """
        return self.take_json(progress.json, name)

    def take_json(self, progress: str, name: str | None = None) -> dict[str, Any] | None:
        """Add a batch, see ``take``.

        Parameters
        ----------
        progress : str
            The event, as Spark's JSON.
        name : str, optional
            See ``take``.

        Returns
        -------
        dict or None
            See ``take``.
        """
        about = event_of(progress)
        if not is_batch(about["durationMs"]):
            self._wait(about, name or about["name"] or about["id"])
            return None
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
            query = self._queries.setdefault(query_name, self._waiting.pop(query_name, QueryMetrics()))
            query.batches += 1
            query.inputs += about["numInputRows"]
            began_ms = round(1000 * seconds_of(about["timestamp"]))
            query.since_ms, query.ended_ms = query.ended_ms or began_ms, began_ms + round(1000 * seconds)
            query.forget_last()
            query.take_sources(about)
            for operator, row in found.items():
                known = query.operators.setdefault(operator, OperatorMetrics())
                known.totals.update(row)
                known.last = row
            for operator, row in states.items():
                query.operators.setdefault(operator, OperatorMetrics()).take_state(row, query.ended_ms)
            query.last = self._line(query_name, query, about, seconds, found)
            query.remember()
            return query.last

    def _wait(self, about: Mapping[str, Any], name: str) -> None:
        """Take in what changes while a query waits; all else is as its last batch left it."""
        with self._lock:
            query = self._queries.get(name) or self._waiting.setdefault(name, QueryMetrics())
            query.take_sources(about)
            query.last = {**query.last, **query.lag(self._run(name).topics)}
            query.history.wait(round(1000 * seconds_of(about["timestamp"])), records_of(query.last["lag"]))

    def _waits_first(self) -> dict[str, History]:
        """Return the histories of queries that have said that they wait, and have not ended a batch."""
        with self._lock:
            return {name: query.history for name, query in self._waiting.items()}

    def _line(
        self, name: str, query: QueryMetrics, about: Mapping[str, Any], seconds: float, found: Mapping[str, Mapping[str, int]]
    ) -> dict[str, Any]:
        operators = query.operators
        return {
            "time": about["timestamp"],
            "query": name,
            "batch": about["batchId"],
            "inputs": about["numInputRows"],
            "seconds": seconds,
            "counters": found,
            "totals": {operator: dict(known.totals) for operator, known in operators.items() if known.totals},
            **query.rates(query.ended_ms),
            "phases": {phase: ms / 1000 for phase, ms in about["durationMs"].items()},
            "stages": {operator: dict(known.stage_seconds) for operator, known in operators.items()},
            "state": {operator: known.sizes for operator, known in operators.items() if known.sizes},
            **query.lag(self._run(name).topics),
            "fan_out": {operator: known.fan_out for operator, known in operators.items() if known.fan_out},
            "hot_keys": {operator: dict(known.hot) for operator, known in operators.items() if known.hot},
        }

    def snapshot(self) -> dict[str, Any]:
        """Return the last batches of all queries; their ``rates`` fall while a query waits.

        Returns
        -------
        dict of str to dict
            By the query's name its last batch, as ``take`` returned it, and ``recent`` ones, newest first.
        """
        now_ms = round(1000 * time.time())
        with self._lock:
            self._count_left()
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
        """Yield the metrics, for a registry of ``prometheus_client``.

        Yields
        ------
        prometheus_client.Metric
        """
        with self._lock:
            self._count_left()
            found = list(families_of(self._queries, self._started_ms, self._internal))
        yield from found

    def prometheus(self) -> bytes:
        """Write the metrics in Prometheus' text format.

        Returns
        -------
        bytes

        Raises
        ------
        FkJoinError
            If the extra ``cli`` is not installed.
        """
        with needs_extra("Prometheus", "cli"):
            from prometheus_client import CollectorRegistry, generate_latest
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


def watch(
    spark: SparkSession,
    port: int | None = None,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    names: Iterable[str] = (),
) -> Metrics:
    """Take in the metrics of all queries that run in the session from the call on; perhaps serve a page and Prometheus.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session.
    port : int, optional
        The port at which ``/`` is a page for people and ``/metrics`` is for Prometheus; if left out, there is none.
    host : str, default "127.0.0.1"
        The address to listen on.  The default is for this machine alone; ``"0.0.0.0"`` is for all that reach the machine.
    token : str, optional
        The token that a client must send, in the header ``Authorization: Bearer TOKEN``.
    names : iterable of str, optional
        Names of the machine, as a client writes them.  ``localhost`` and the address that a question comes to are always right,
        other names are refused.

    Returns
    -------
    Metrics

    Raises
    ------
    FkJoinError
        If nothing can listen there, no client can send the token or a name, or the extra ``cli`` is not installed.

    Examples
    --------
    >>> metrics = watch(spark, 9464)
    >>> print(metrics.prometheus().decode())
    """
    metrics = Metrics()
    access = ClientAccess(host, tuple(names), token)
    if port is not None:
        with needs_extra("watch(port=)", "cli"):
            import prometheus_client  # noqa: F401
        from fkjoin.metrics.page import ShownJob, pages

        PageServer(pages(ShownJob(spark.conf.get("spark.app.name", "fkjoin") or "fkjoin"), metrics), port, access, "port")
    spark.streams.addListener(Listener(metrics, spark))
    return metrics


def __dir__() -> list[str]:
    return __all__
