"""What joins and aggregates share: stages on a streaming DataFrame, their counters, and the frame of a table that they make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.columns import spark_schema
from fkjoin.errors import TopologyError
from fkjoin.frame import DELETED, KEY, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.spark.operator import ENVELOPE, StageProcessor, StageSpec
from fkjoin.spark.packing import UnpackResults
from fkjoin.stages import counters
from fkjoin.topology import Node

Emit = Literal["on-change", "on-update"]
"""When a result is sent: if it differs from what was sent last, or whenever what it is made of was updated."""


Deployment = Literal["fused", "staged"]
"""All stages in one query, or each one a query of its own, with topics between them."""


def require_emit(given: str) -> None:
    if given not in get_args(Emit):
        raise TopologyError(f'emit: {given!r} is not one of "on-change", "on-update"')


def stage(rows: DataFrame, spec: StageSpec) -> DataFrame:
    """Envelopes through a stage."""
    return rows.groupBy("bucket").transformWithStateInPandas(StageProcessor(spec), ENVELOPE, "append", "None")


def counted(envelopes: DataFrame, name: str) -> DataFrame:
    """The envelopes, their counters summed up in the progress of the query."""
    sums = [F.sum(F.when(F.col("counter") == item, F.col("count")).otherwise(0)).alias(item) for item in counters.ALL]
    return envelopes.observe(metrics_name(name), *sums)


def metrics_name(operator: str) -> str:
    """Under which name an operator's counters stand in a query progress' ``observedMetrics``."""
    return f"fkjoin:{operator}"


def frame_of(results: DataFrame, unpack: UnpackResults) -> DataFrame:
    """The frame of a table, from the last stage's results."""
    return results.mapInArrow(unpack, spark_schema(unpack.schema)).select(
        F.col("key").alias(KEY),
        F.col("row").alias(ROW),
        (F.col("operation") == "delete").alias(DELETED),
        F.col("version").alias(VERSION),
        F.lit(None).cast("binary").alias(SOURCE),
        F.col("ts").alias(TS),
        F.lit(None).cast("string").alias(PROBLEM),
        F.col("operation").alias("_operation"),
        *(F.col(f"numbers_{name}").alias(f"_{name}") for name, _ in unpack.versions),
    )


INTERNAL = {"key": KEY, "row": ROW, "deleted": DELETED, "version": VERSION, "source": SOURCE, "ts": TS, "problem": PROBLEM}


def packing_columns(**more: Column) -> list[Column]:
    """Columns of a table's frame under the names that packing knows them by; ``more`` come in the place of some, or after."""
    chosen = {outer: F.col(internal) for outer, internal in INTERNAL.items()} | more
    return [column.alias(outer) for outer, column in chosen.items()]


def refuse_same_name(name: str, nodes: Iterable[Node], what: str) -> None:
    """``TopologyError`` if ``name`` already names something below the new operator."""
    for node in nodes:
        if node.name == name:
            raise TopologyError(f"name: {name!r} already names an input of this {what}; choose another")
        refuse_same_name(name, node.inputs, what)
