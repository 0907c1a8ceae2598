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
