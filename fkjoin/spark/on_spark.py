"""A physical plan as a streaming DataFrame, and the columns of its rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, MutableMapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.errors import TopologyError
from fkjoin.plan.physical import (
    BySpark,
    Counted,
    Fed,
    Given,
    InWorkers,
    MessagesOnly,
    Physical,
    Picked,
    Read,
    Stage,
    StatefulOperator,
    Ticks,
    Union,
    below,
    counted_twice,
    operator_of,
)
from fkjoin.spark.buckets import BATCH_MS, ENTRY, ENVELOPE, TICK, bucket_ids, counted_name
from fkjoin.spark.clock import ticks
from fkjoin.spark.operator import StageProcessor
from fkjoin.spark.specs import STAGES, WorkerStage
from fkjoin.stages import counters
from fkjoin.stages.counters import metrics_name, state_metrics_name

_FRAMES: WeakKeyDictionary[Physical, DataFrame] = WeakKeyDictionary()
"""Frames of nodes, one each: Spark tells sources apart by the plan nodes that read them."""
_EMPTY: WeakKeyDictionary[Physical, DataFrame] = WeakKeyDictionary()
"""Frames of nodes that are only analyzed."""


def on_spark(spark: SparkSession, plan: Physical) -> DataFrame:
    """Make the streaming DataFrame of a plan's rows, once for each node.

    ``TopologyError`` if two operators would count under one name, which Spark refuses.
    """
    counted = {node for node in below(plan) if isinstance(node, Counted)}
    names = [node.name for node in counted]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise TopologyError(
            f"name: two operators of one query count their rows as {twice[0]!r}; give one of them "
            "another name="
        )
    apart = counted_twice(plan)
    # Such a plan's operators depend on all of it, so that their frames belong to no other plan.
    return _Frames(spark, {} if apart else _FRAMES, apart).of(plan)


class _Frames(NamedTuple):
    """The frames of a plan's nodes, made once each."""

    spark: SparkSession
    known: MutableMapping[Physical, DataFrame]
    """The frames of nodes that read others."""
    apart: Collection[Physical] = ()
    """See ``operator_of``."""

    def of(self, node: Physical) -> DataFrame:
        known = self.known if node.inputs else _FRAMES
        frame = known.get(node)
        if frame is None:
            frame = known[node] = self._made(node)
        return frame

    def _made(self, node: Physical) -> DataFrame:
        if not isinstance(node, Stage):
            return _MADE[type(node)](self.spark, node, *map(self.of, node.inputs))
        operator = operator_of(node, self.apart)
        return _operator(operator, [self.of(read) for _, read in operator.entries])


def columns_of(spark: SparkSession, plan: Physical) -> StructType:
    """The columns of a plan's rows.

    Only what Spark evaluates is analyzed: other nodes say their columns.
    """
    return _empty(spark, plan).schema


def _empty(spark: SparkSession, node: Physical) -> DataFrame:
    if isinstance(node, Read | Given):
        return _Frames(spark, _FRAMES).of(node)
    if isinstance(node, Union):
        return _empty(spark, node.inputs[0])
    frame = _EMPTY.get(node)
    if frame is None:
        frame = _EMPTY[node] = _analyzed(spark, node)
    return frame


def _analyzed(spark: SparkSession, node: Physical) -> DataFrame:
    if isinstance(node, Picked):
        return _picked(spark, node, _empty(spark, node.input))
    if isinstance(node, BySpark):
        frame: DataFrame = node.transform(*(_empty(spark, read) for read in node.inputs))
        return frame
    columns: Any = ENVELOPE
    if isinstance(node, InWorkers):
        columns = node.schema
    elif isinstance(node, Fed):
        columns = node.columns
    return spark.createDataFrame([], columns)


def _read(spark: SparkSession, node: Read) -> DataFrame:
    reader = spark.readStream.format(node.format).options(**node.options)
    if node.schema is not None:
        reader = reader.schema(node.schema)
    rows = reader.load(node.path)
    return rows if node.tasks is None else rows.coalesce(node.tasks)


def _ticks(spark: SparkSession, node: Ticks) -> DataFrame:
    bucket = F.explode(F.lit(list(bucket_ids(node.buckets)))).alias("bucket")
    payload = F.lit(None).cast("binary")
    return ticks(spark, node.interval_ms).select(bucket, payload, F.lit(TICK), F.col("tick"))


def _picked(_: SparkSession, node: Picked, rows: DataFrame) -> DataFrame:
    return rows.select(*(F.col(name).alias(new) for new, name in node.names.items()))


def _in_workers(_: SparkSession, node: InWorkers, rows: DataFrame) -> DataFrame:
    read = _dated(rows) if node.dated else rows
    return read.mapInArrow(node.function, node.schema)


def _operator(operator: StatefulOperator, frames: list[DataFrame]) -> DataFrame:
    stages = []
    for stage in operator.stages:
        stages.append(WorkerStage(stage.node.spec, stage.reader, stage.counted_as))
    if len(stages) > 1:
        numbers = [number for number, _ in operator.entries]
        pairs = zip(frames, numbers, strict=True)
        frames = [frame.withColumn(ENTRY, F.lit(number)) for frame, number in pairs]
    envelopes = functools.reduce(DataFrame.unionAll, frames)
    grouped, work = _dated(envelopes).groupBy("bucket"), StageProcessor(*stages)
    results = grouped.transformWithStateInPandas(work, ENVELOPE, "append", "None")
    for stage in operator.stages:
        if stage.counted is not None:
            results = _observed(results, stage.counted, counted_name(stage.counted.name, ""))
    return results


def _dated(rows: DataFrame) -> DataFrame:
    """The rows with the time that Spark has logged for their batch.

    Spark writes the time as a number into the code that it generates, and would compile that
    code again in each batch.  ``zip_with`` is one of the functions for which it generates none
    (docs/adr/0068).
    """
    now = F.array(F.current_timestamp())
    time = F.zip_with(now, now, lambda moment, _: F.unix_millis(moment))
    return rows.withColumn(BATCH_MS, time[0])


def _observed(envelopes: DataFrame, node: Counted, prefix: str = "") -> DataFrame:
    """Sum up counters whose names begin with a prefix, in the progress of the query."""
    sums = [*counters.ALL]
    sizes = [*counters.SIZES]
    greatest = [counters.FAN_OUT]
    for stage in node.stages:
        sums += STAGES[stage].counts
        greatest = [*STAGES[stage].greatest, *greatest]
    for end in ("-ms", counters.SKIPS):
        sizes += [f"{stage}{end}" for stage in node.stages]

    def counts(counter: str) -> Column:
        return F.when(F.col("counter") == prefix + counter, F.col("count"))

    def total(counter: str) -> Column:
        return F.sum(counts(counter).otherwise(0)).alias(counter)

    def most(counter: str) -> Column:
        return F.max(counts(counter)).alias(counter)

    def commonest(beginning: str, name: str) -> Column:
        """The end of the counter's name with the greatest count, among names that begin so."""
        counter = F.col("counter")
        is_one = counter.startswith(prefix + beginning)
        end = F.substr(counter, F.lit(len(prefix + beginning) + 1))
        return F.max_by(F.when(is_one, end), F.when(is_one, F.col("count"))).alias(name)

    observed = envelopes.observe(metrics_name(node.name), *map(total, sums))
    return observed.observe(
        state_metrics_name(node.name),
        *map(total, sizes),
        *map(most, greatest),
        commonest(counters.HOT_KEY, "hot-key"),
        commonest(counters.REASON, "dead-letter"),
        commonest(counters.HOLDS, "holds-windows"),
    )


_MADE: dict[type, Callable[..., DataFrame]] = {
    Read: _read,
    Given: lambda _, node: node.frame,
    Ticks: _ticks,
    BySpark: lambda _, node, *rows: node.transform(*rows),
    InWorkers: _in_workers,
    Picked: _picked,
    Counted: lambda _, node, envelopes: _observed(envelopes, node),
    MessagesOnly: lambda _, node, envelopes: envelopes.where("counter is null"),
    Union: lambda _, node, *rows: functools.reduce(DataFrame.unionAll, rows),
}
