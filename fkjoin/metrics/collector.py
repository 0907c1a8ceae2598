"""Sums of queries' progress events, for the page, the terminal, the log and Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryProgress

from fkjoin.checkpoint.progress import event_of
from fkjoin.errors import needs_extra
from fkjoin.metrics.report import STATE_SIZES, JobReport, Mode, Numbers, QueryReport, only
from fkjoin.sinks.counts import LEFT_OUT, REPEATED, counted, last_events
from fkjoin.spark.specs import STAGES
from fkjoin.spark.trigger import interval_of
from fkjoin.stages import counters

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    _Kind = type[CounterMetricFamily | GaugeMetricFamily]
else:
    Collector = object

_Labels = Sequence[str]
_Tree = Mapping[str, Any]
"""Numbers in mappings, one for each label, the outermost first."""

COUNTED = {
    counters.LEFT_IN: "Changes of the left table that reached a join.",
    counters.RIGHT_IN: "Changes of the right table that reached a join.",
    counters.ROWS_IN: "Changes that reached another stage.",
    counters.NULL_KEY: "Records without a key.",
    counters.DEAD_LETTERS: "Records that cannot be used.",
    counters.UNAVAILABLE_VALUES: "Events that lack a value which no event before them had.",
    counters.STALE: "Changes dropped since their version is not newer.",
    counters.TIES: "Changes with the version of another change of their key, and another content.",
    counters.RESTARTS: "Rows whose topic is another than before.",
    counters.ANSWERS: "Answers of subscriptions.",
    counters.TOMBSTONES: "Tombstones of rows that were not there.",
    counters.IDEMPOTENT: "Unchanged results that are not sent (KIP-557).",
    counters.OUT: "Results emitted.",
    counters.INDEX_REBUILT: "Local indexes rebuilt from their logs.",
}
"""Prometheus' texts of the counters that all operators have; ``docs/watching.md`` says more."""

_OF_SINKS = (
    ("sink_dead_letters", LEFT_OUT, "Rows that a sink's target cannot store."),
    ("sink_retries", REPEATED, "Work of a sink that was repeated."),
)


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


def families_of(report: JobReport) -> Iterator[Metric]:
    """Yield the metric families of a report."""
    from prometheus_client.core import CounterMetricFamily as Count
    from prometheus_client.core import GaugeMetricFamily as Gauge

    def family(kind: _Kind, name: str, text: str, labels: _Labels, numbers: _Tree) -> Metric:
        metric = kind(f"fkjoin_{name.replace('-', '_')}", text, labels=labels)
        for values, number in _samples(numbers):
            metric.add_metric(values, number)
        return metric

    queries = {name: query for name, query in report.queries.items() if query.batches}

    def tree(metric: Callable[[QueryReport], Any]) -> dict[str, Any]:
        return {name: metric(query) for name, query in queries.items()}

    def column(rows: Callable[[QueryReport], Numbers], item: str) -> dict[str, Any]:
        return tree(lambda query: only(item, rows(query)))

    of_query, of_operator = ["query"], ["query", "operator"]
    of_stage, of_partition = [*of_operator, "stage"], ["query", "topic", "partition"]
    all_starts = {name: (query.started_ms or 0) / 1000 for name, query in report.queries.items()}
    starts = {name: start for name, start in all_starts.items() if start}
    text = "When the query started, since 1970."
    yield family(Gauge, "query_start_time_seconds", text, of_query, starts)
    batches, rows = tree(lambda query: query.batches), tree(lambda query: query.rows)
    yield family(Count, "batches", "Micro-batches that were done.", of_query, batches)
    yield family(Count, "input_rows", "Rows that were read.", of_query, rows)
    phases, text = tree(lambda query: query.batch["phases"]), "The last batch, by Spark's phases."
    yield family(Gauge, "batch_seconds", text, ["query", "phase"], phases)
    lag = tree(lambda query: query.lag.records)
    yield family(Gauge, "lag_records", "Records that are yet to be read.", of_partition, lag)
    # Not of a query that was stopped, since nothing is wrong when this time stands still.
    running = {name: query for name, query in queries.items() if query.ended != ""}
    lag_times = {name: query.lag.as_of for name, query in running.items() if query.lag.records}
    text = "When the lag was so, since 1970."
    yield family(Gauge, "lag_timestamp_seconds", text, of_query, lag_times)
    text = "Records between stages."
    yield family(Gauge, "internal_topic_records", text, ["topic"], report.internal)
    stages, skips = tree(lambda query: query.stages), tree(lambda query: query.skips)
    yield family(Count, "stage_seconds", "Time of stages, of all tasks.", of_stage, stages)
    text = "Unchanged results, by stage."
    yield family(Count, "stage_idempotent_update_skip", text, of_stage, skips)
    fan_out = tree(lambda query: query.fan_out)
    text = "The most answers to one right row in a batch so far."
    yield family(Gauge, "fan_out_max", text, of_operator, fan_out)
    times = tree(lambda query: {name: ms / 1000 for name, ms in query.stream_times_ms.items()})
    text = "Stream time of windows, since 1970."
    yield family(Gauge, "stream_time_seconds", text, of_operator, times)
    texts = dict(COUNTED)
    for kind in STAGES.values():
        texts.update(kind.counts)
    for item, text in texts.items():
        yield family(Count, item, text, of_operator, column(lambda query: query.totals, item))
    for item in STATE_SIZES:
        text = f"{item.replace('-', ' ').capitalize()}."
        yield family(Gauge, item, text, of_operator, column(lambda query: query.state, item))
    for name, item, text in _OF_SINKS:
        yield family(Count, name, text, ["place"], report.of_sinks(item))


def _samples(tree: Any, *labels: str) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the numbers of mappings in mappings, each with its labels, the outermost first."""
    if isinstance(tree, Mapping):
        for label, branch in tree.items():
            yield from _samples(branch, *labels, label)
    elif tree is not None:
        yield labels, tree
