"""A physical plan as a streaming DataFrame, and the columns of its rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
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
    Ticks,
    Union,
    below,
)
from fkjoin.spark.buckets import BATCH_MS, ENVELOPE, TICK, bucket_ids
from fkjoin.spark.clock import ticks
from fkjoin.spark.operator import StageProcessor
from fkjoin.spark.specs import STAGES
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
    return _frame(spark, plan)


def _frame(spark: SparkSession, plan: Physical) -> DataFrame:
    frame = _FRAMES.get(plan)
    if frame is None:
        inputs = [_frame(spark, node) for node in plan.inputs]
        frame = _FRAMES[plan] = _MADE[type(plan)](spark, plan, *inputs)
    return frame


def columns_of(spark: SparkSession, plan: Physical) -> StructType:
    """The columns of a plan's rows.

    Only what Spark evaluates is analyzed: other nodes say their columns.
    """
    return _empty(spark, plan).schema


def _empty(spark: SparkSession, node: Physical) -> DataFrame:
    if isinstance(node, Read | Given):
        return _frame(spark, node)
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


def _stage(_: SparkSession, node: Stage, envelopes: DataFrame) -> DataFrame:
    grouped = _dated(envelopes).groupBy("bucket")
    return grouped.transformWithStateInPandas(StageProcessor(node.spec), ENVELOPE, "append", "None")


def _dated(rows: DataFrame) -> DataFrame:
    """The rows with the time that Spark has logged for their batch.

    Spark writes the time as a number into the code that it generates, and would compile that
    code again in each batch.  ``zip_with`` is one of the functions for which it generates none
    (docs/adr/0068).
    """
    now = F.array(F.current_timestamp())
    time = F.zip_with(now, now, lambda moment, _: F.unix_millis(moment))
    return rows.withColumn(BATCH_MS, time[0])


def _counted(_: SparkSession, node: Counted, envelopes: DataFrame) -> DataFrame:
    sums = [*counters.ALL]
    sizes = [*counters.SIZES]
    greatest = [counters.FAN_OUT]
    for stage in node.stages:
        sums += STAGES[stage].counts
        greatest = [*STAGES[stage].greatest, *greatest]
    for end in ("-ms", counters.SKIPS):
        sizes += [f"{stage}{end}" for stage in node.stages]
    observed = envelopes.observe(metrics_name(node.name), *map(_sum, sums))
    return observed.observe(
        state_metrics_name(node.name),
        *map(_sum, sizes),
        *map(_greatest, greatest),
        _commonest(counters.HOT_KEY).alias("hot-key"),
        _commonest(counters.REASON).alias("dead-letter"),
        _commonest(counters.HOLDS).alias("holds-windows"),
    )


def _sum(counter: str) -> Column:
    return F.sum(F.when(F.col("counter") == counter, F.col("count")).otherwise(0)).alias(counter)


def _greatest(counter: str) -> Column:
    return F.max(F.when(F.col("counter") == counter, F.col("count"))).alias(counter)


def _commonest(beginning: str) -> Column:
    """The end of the counter's name with the greatest count, among names with this beginning."""
    name = F.col("counter")
    is_one = name.startswith(beginning)
    end = F.substr(name, F.lit(len(beginning) + 1))
    return F.max_by(F.when(is_one, end), F.when(is_one, F.col("count")))


_MADE: dict[type, Callable[..., DataFrame]] = {
    Read: _read,
    Given: lambda _, node: node.frame,
    Ticks: _ticks,
    BySpark: lambda _, node, *rows: node.transform(*rows),
    InWorkers: _in_workers,
    Picked: _picked,
    Stage: _stage,
    Counted: _counted,
    MessagesOnly: lambda _, node, envelopes: envelopes.where("counter is null"),
    Union: lambda _, node, *rows: functools.reduce(DataFrame.unionAll, rows),
}
