"""Metrics of queries as Prometheus has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fkjoin.metrics.query_report import STATE_SIZES, Numbers, QueryReport, only
from fkjoin.metrics.report import JobReport
from fkjoin.sinks.counts import LEFT_OUT, REPEATED
from fkjoin.spark.specs import STAGES
from fkjoin.stages import counters

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

    _Kind = type[CounterMetricFamily | GaugeMetricFamily]

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
