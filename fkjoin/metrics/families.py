"""Metrics of queries as Prometheus has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fkjoin.metrics.query_metrics import STATE_SIZES, QueryMetrics
from fkjoin.sinks.counts import LEFT_OUT, REPEATED, counted
from fkjoin.spark.specs import STAGES
from fkjoin.stages import counters

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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
"""The texts of the counters that all operators have, for Prometheus; ``docs/watching.md`` says more."""


def families_of(
    queries: Mapping[str, QueryMetrics], started_ms: Mapping[str, int], internal: Mapping[str, int]
) -> Iterator[Metric]:
    """Yield the metric families of queries, by name, of when these last started, and of the records of internal topics."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    starts = GaugeMetricFamily("fkjoin_query_start_time_seconds", "When the query started, since 1970.", labels=["query"])
    batches = CounterMetricFamily("fkjoin_batches", "Micro-batches that were done.", labels=["query"])
    inputs = CounterMetricFamily("fkjoin_input_rows", "Rows that were read.", labels=["query"])
    phases = GaugeMetricFamily("fkjoin_batch_seconds", "The last batch, by Spark's phases.", labels=["query", "phase"])
    lag = GaugeMetricFamily("fkjoin_lag_records", "Records that are yet to be read.", labels=["query", "topic", "partition"])
    as_of = GaugeMetricFamily("fkjoin_lag_timestamp_seconds", "When the lag was so, since 1970.", labels=["query"])
    between = GaugeMetricFamily("fkjoin_internal_topic_records", "Records between stages.", labels=["topic"])
    where = ["query", "operator"]
    stages = CounterMetricFamily("fkjoin_stage_seconds", "Time of stages, of all tasks.", labels=[*where, "stage"])
    skips = CounterMetricFamily("fkjoin_stage_idempotent_update_skip", "Unchanged results, by stage.", labels=[*where, "stage"])
    fan_out = GaugeMetricFamily("fkjoin_fan_out_max", "The most answers to one right row in a batch so far.", labels=where)
    stream_time = GaugeMetricFamily("fkjoin_stream_time_seconds", "Stream time of windows, since 1970.", labels=where)
    texts = dict(COUNTED)
    for kind in STAGES.values():
        texts.update(kind.counts)
    totals = {name: CounterMetricFamily(f"fkjoin_{name.replace('-', '_')}", text, labels=where) for name, text in texts.items()}
    sizes = {
        name: GaugeMetricFamily(f"fkjoin_{name.replace('-', '_')}", f"{name.replace('-', ' ').capitalize()}.", labels=where)
        for name in STATE_SIZES
    }
    for topic, records in internal.items():
        between.add_metric([topic], records)
    for name, ms in started_ms.items():
        starts.add_metric([name], ms / 1000)
    for name, query in queries.items():
        batches.add_metric([name], query.batches)
        inputs.add_metric([name], query.inputs)
        for phase, seconds in query.last["phases"].items():
            phases.add_metric([name, phase], seconds)
        if query.last["lag"]:
            as_of.add_metric([name], query.last["lag_ms"] / 1000)
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
            if known.stream_time_ms is not None:
                stream_time.add_metric([name, operator], known.stream_time_ms / 1000)
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
    yield from (
        starts,
        batches,
        inputs,
        phases,
        lag,
        as_of,
        between,
        stages,
        skips,
        fan_out,
        stream_time,
        *totals.values(),
        *sizes.values(),
        *sinks.values(),
    )
