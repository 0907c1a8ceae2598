"""Metrics of running queries, from Spark's progress events: counters, times, lag, state, hot keys.

``watch`` is for queries that a program starts itself, ``fkjoin run`` has the same for its own.  As
JSON lines (``Metrics.take`` returns them), and for Prometheus under ``fkjoin_…``; the names of
counters are Kafka Streams' where it has them.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

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

from fkjoin.checkpoint.progress import event_of
from fkjoin.errors import needs_extra
from fkjoin.metrics.families import families_of
from fkjoin.metrics.query_report import QueryReport
from fkjoin.metrics.report import JobReport, Mode
from fkjoin.metrics.server import ClientAccess, PageServer
from fkjoin.sinks.counts import counted, last_events
from fkjoin.spark.cause import innermost
from fkjoin.spark.trigger import interval_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
else:
    Collector = object

__all__ = ["Metrics", "watch"]


class Metrics(Collector):
    """Sums of queries' progress events; another thread may read them meanwhile.

    Examples
    --------
    >>> metrics = Metrics()
    >>> line = metrics.take(query.lastProgress)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, QueryReport] = {}
        self._began_ms: int | None = None
        """The beginning of the job, or of its first query."""
        self._mode, self._why = Mode.RUNS, ""
        self._ended_ms: int | None = None
        self._internal: Mapping[str, int] = {}
        """The numbers of records of the topics between stages."""

    def __repr__(self) -> str:
        return f"Metrics[queries: {', '.join(self._queries) or 'none'}]"

    def _query(self, name: str) -> QueryReport:
        with self._lock:
            return self._queries.setdefault(name, QueryReport(name))

    def _learn_interval(
        self, name: str, run_id: str, running: Callable[[], StreamingQuery | None]
    ) -> None:
        """Find out once in a run how far a query's batches are apart."""
        known = self._query(name)
        if known.run_id != run_id and (query := running()) is not None:
            known.run_id, known.history.interval_s = run_id, interval_of(query)

    def _start(self, name: str) -> None:
        """Take down that a query has started, or will soon."""
        query = self._query(name)
        query.started_ms, query.ended = round(1000 * time.time()), None
        self._began_ms = self._began_ms or query.started_ms

    def _end(self, name: str, why: str | None) -> None:
        """Take down that a query has ended."""
        self._query(name).ended = why or ""

    def _turn(self, mode: Mode, why: str = "") -> None:
        """Take down that the job stops, or has ended; open pages show it when it is gone."""
        self._mode, self._why = mode, why
        self._ended_ms = round(1000 * time.time()) if mode.is_end else None

    def _report(self, tables: Collection[str] = ()) -> JobReport:
        """Return all as it is at this moment; ``tables``: their names, as far as they are known."""
        now_ms = self._ended_ms or round(1000 * time.time())
        with self._lock:
            return JobReport(
                now_ms=now_ms,
                queries={name: query.copy(now_ms) for name, query in self._queries.items()},
                began_ms=self._began_ms,
                mode=self._mode,
                why=self._why,
                tables=tables,
                internal=self._internal,
                sinks=counted(),
                events=last_events(),
            )

    def take(
        self, progress: StreamingQueryProgress, name: str | None = None
    ) -> dict[str, Any] | None:
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
            - ``counters`` of the batch, ``totals`` since the start and ``rates`` a second since the
              end of the previous batch, by operator, those that are not 0;
            - ``skip_rates`` (unchanged results, by operator and stage, a second);
            - ``phases`` (Spark's, seconds); ``stages`` (by operator; seconds of all tasks since the
              start);
            - ``state`` (by operator: rows, about, and bytes); ``lag`` (records, by topic and
              partition) and ``lag_ms``, the time as of which it is, in milliseconds since 1970;
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
        event = event_of(progress)
        query = self._query(name or event["name"] or event["id"])
        with self._lock:
            return query.take(event)

    def snapshot(self) -> dict[str, Any]:
        """Return the last batches of all queries; their ``rates`` fall while a query waits.

        Returns
        -------
        dict of str to dict
            By the query's name its last batch, as ``take`` returned it, and ``recent`` ones, newest
            first.
        """
        queries = self._report().queries
        return {name: query.snapshot() for name, query in queries.items() if query.batches}

    def collect(self) -> Iterator[Metric]:
        """Return the metrics, for a registry of ``prometheus_client``.

        Returns
        -------
        iterator of prometheus_client.Metric
        """
        return families_of(self._report())

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


class _Events(JStreamingQueryListener):
    """A listener as the JVM calls it, with progress as one text.

    PySpark's asks for each number of it, 0.4 s for a join's.
    """

    def __init__(self, listener: Listener, metrics: Metrics) -> None:
        super().__init__(listener)
        self._own, self._metrics = listener, metrics

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        progress = jevent.progress().json()
        self._own._learn_interval(progress)
        self._metrics.take_json(progress)


class Listener(StreamingQueryListener):
    """Give the progress of all queries of a session to ``Metrics``."""

    def __init__(self, metrics: Metrics, spark: SparkSession | None = None) -> None:
        self._metrics, self._spark = metrics, spark
        self._names: dict[str, str] = {}

    def _learn_interval(self, progress: str) -> None:
        """Find out how far the batches of an event's query are apart."""
        about = event_of(progress)
        if self._spark is not None:
            streams, query_id = self._spark.streams, about["id"]
            name = about["name"] or query_id
            self._metrics._learn_interval(name, about["runId"], lambda: streams.get(query_id))

    @functools.cached_property
    def _jlistener(self) -> Any:
        """Make the object that PySpark registers."""
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(_Events(self, self._metrics))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._names[str(event.runId)] = name = event.name or str(event.id)
        self._metrics._start(name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._metrics.take(event.progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if (name := self._names.pop(str(event.runId), None)) is not None:
            self._metrics._end(name, event.exception and innermost([event.exception]).text)


def watch(
    spark: SparkSession,
    port: int | None = None,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    names: Iterable[str] = (),
) -> Metrics:
    """Take in the metrics of a session's queries from now on; perhaps serve a page and Prometheus.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session.
    port : int, optional
        The port at which ``/`` is a page for people and ``/metrics`` is for Prometheus; if left
        out, there is none.
    host : str, default "127.0.0.1"
        The address to listen on.  The default is for this machine alone; ``"0.0.0.0"`` is for all
        that reach the machine.
    token : str, optional
        The token that a client must send, in the header ``Authorization: Bearer TOKEN``.
    names : iterable of str, optional
        Names of the machine, as a client writes them.  ``localhost`` and the address that a
        question comes to are always right, other names are refused.

    Returns
    -------
    Metrics

    Raises
    ------
    FkJoinError
        If nothing can listen there, no client can send the token or a name, or the extra ``cli`` is
        not installed.

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

        shown = ShownJob(spark.conf.get("spark.app.name", "fkjoin") or "fkjoin")
        PageServer(pages(shown, metrics), port, access, "port")
    spark.streams.addListener(Listener(metrics, spark))
    return metrics


def __dir__() -> list[str]:
    return __all__
