"""Sums of queries' progress events, for the page, the terminal, the log and Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryProgress

from fkjoin.checkpoint.progress import event_of
from fkjoin.errors import needs_extra
from fkjoin.metrics.families import families_of
from fkjoin.metrics.query_report import QueryReport
from fkjoin.metrics.report import JobReport, Mode
from fkjoin.sinks.counts import counted, last_events
from fkjoin.spark.trigger import interval_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
else:
    Collector = object


class Metrics(Collector):
    """Sums of the progress events of queries. Other threads may read them meanwhile.

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
        """Add a batch, and return its figures as a dict for JSON.

        Parameters
        ----------
        progress : pyspark.sql.streaming.StreamingQueryProgress
            The event.
        name : str, optional
            The name of the query. By default the name that Spark has.

        Returns
        -------
        dict or None
            None if the event does not belong to a batch. Keys:

            - ``time``, ``query``, ``batch``, ``inputs`` and ``seconds``
            - ``counters`` of the batch by operator, without counters that are 0
            - ``totals`` of the counters since the start, and ``rates`` per second since the end of
              the previous batch
            - ``skip_rates``: unchanged results per second, by operator and stage
            - ``phases``: seconds of Spark's phases
            - ``stages``: seconds of all tasks since the start, by operator
            - ``state``: estimated rows, and bytes, by operator
            - ``lag``: records by topic and partition; ``lag_ms``: the time of that lag, in
              milliseconds since 1970
            - ``fan_out`` and ``hot_keys`` by operator

        Examples
        --------
        >>> line = metrics.take(query.lastProgress)
        """
        return self.take_json(progress.json, name)

    def take_json(self, progress: str, name: str | None = None) -> dict[str, Any] | None:
        """Add a batch from an event in JSON, and return its figures as ``take`` does.

        Parameters
        ----------
        progress : str
            The event, as Spark's JSON.
        name : str, optional
            The name of the query. By default the name that Spark has.

        Returns
        -------
        dict or None
            The keys of ``take``.

        Examples
        --------
        >>> line = metrics.take_json(query.lastProgress.json)
        """
        return self._take(event_of(progress), name)

    def _take(self, event: Mapping[str, Any], name: str | None = None) -> dict[str, Any] | None:
        """Add an event, see ``take``."""
        query = self._query(name or event["name"] or event["id"])
        with self._lock:
            return query.take(event)

    def snapshot(self) -> dict[str, Any]:
        """Return the last batches of all queries; their ``rates`` fall while a query waits.

        Returns
        -------
        dict of str to dict
            For each query by name, its last batch as ``take`` returned it, and under ``recent`` the
            recent batches, newest first.

        Examples
        --------
        >>> Metrics().snapshot()
        {}
        """
        queries = self._report().queries
        return {name: query.snapshot() for name, query in queries.items() if query.batches}

    def collect(self) -> Iterator[Metric]:
        """Return the metrics, for a registry of ``prometheus_client``.

        Returns
        -------
        iterator of prometheus_client.Metric

        Examples
        --------
        >>> from prometheus_client import REGISTRY
        >>> REGISTRY.register(metrics)
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

        Examples
        --------
        >>> print(metrics.prometheus().decode())
        """
        with needs_extra("Prometheus", "cli"):
            from prometheus_client import CollectorRegistry, generate_latest
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
