"""Stages applied to a streaming DataFrame: their specs, their counters, and the frame of the table that they make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from fkjoin.analysis.planned import Settings
from fkjoin.plan.nodes import Node, join_below, read_from
from fkjoin.spark.frame import DELETED, KEY, NUMBERS, OPERATION, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.spark.identity import identity_text
from fkjoin.spark.operator import BATCH_MS, ENVELOPE, StageName, StageProcessor
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.specs import STAGES, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages import counters
from fkjoin.stages.counters import metrics_name, state_metrics_name


def state_spec(
    settings: Settings,
    kind: type[StageSpec],
    operator: str,
    *,
    bound_to: Mapping[str, Any],
    about: Mapping[str, Any],
    tables: Mapping[str, str],
    spread: int = 1,
) -> StateSpec:
    """Make what a stage of the operator says of its state, under the settings that were there when it was applied.

    ``bound_to``: facts that its checkpoint is bound to, besides name, stage and buckets; ``about``: what is kept for tools
    that read the state, types among it; ``tables``: names of the tables that these types are of, the operator's left out.
    """
    facts = {"join": operator, "stage": kind.stage, "buckets": settings.buckets, **bound_to}
    if spread > 1:
        facts["spread"] = spread
    kept = {name: json.loads(item.json()) if isinstance(item, DataType) else item for name, item in about.items()}
    common = settings.buckets, settings.retention_ms, settings.index_dir
    return StateSpec(operator, *common, identity_text(facts, kept), settings.validate, spread, dict(tables))


def let_through(node: Node) -> bool:
    """Tell whether changes of the node come to an operator in the order in which another one has let them through.

    Not of a source, nor of a staged join: its answers may be read in the place of its rows, and overtake each other in a topic.
    """
    join = join_below(node)
    return read_from(node) is None and (join is None or join.topics is None)


def made_by_operators(*nodes: Node) -> tuple[bool, ...]:
    """Tell which of the tables come as an operator of the query makes them: see ``let_through``."""
    return tuple(map(let_through, nodes))


def stage(rows: DataFrame, spec: StageSpec) -> DataFrame:
    """Envelopes through a stage, which gets the time of the batch with them."""
    return dated(rows).groupBy("bucket").transformWithStateInPandas(StageProcessor(spec), ENVELOPE, "append", "None")


def dated(rows: DataFrame) -> DataFrame:
    """The rows with the time that Spark has logged for their batch.

    Spark writes the time as a number into the code that it generates, and would compile that code again in each batch.
    ``zip_with`` is one of the functions for which it generates none (docs/adr/0068).
    """
    now = F.array(F.current_timestamp())
    return rows.withColumn(BATCH_MS, F.zip_with(now, now, lambda time, _: F.unix_millis(time))[0])


def counted(envelopes: DataFrame, name: str, *stages: StageName) -> DataFrame:
    """The envelopes; in the progress of the query, their counters summed up, and what else is said of the ``stages``."""
    counter, count = F.col("counter"), F.col("count")

    def total(item: str) -> Column:
        return F.sum(F.when(counter == item, count).otherwise(0)).alias(item)

    def most(beginning: str) -> Column:
        named = counter.startswith(beginning)
        return F.max_by(F.when(named, F.substr(counter, F.lit(len(beginning) + 1))), F.when(named, count))

    of_stages = [f"{stage}{what}" for what in ("-ms", counters.SKIPS) for stage in stages]
    greatest = [item for stage in stages for item in STAGES[stage].greatest]
    about = [total(item) for item in (*counters.SIZES, *of_stages)]
    about += [F.max(F.when(counter == item, count)).alias(item) for item in greatest]
    about += [
        F.max(F.when(counter == counters.FAN_OUT, count)).alias(counters.FAN_OUT),
        most(counters.HOT_KEY).alias("hot-key"),
        most(counters.REASON).alias("dead-letter"),
        most(counters.HOLDS).alias("holds-windows"),
    ]
    items = [*counters.ALL, *(item for stage in stages for item in STAGES[stage].counts)]
    observed = envelopes.observe(metrics_name(name), *map(total, items))
    return observed.observe(state_metrics_name(name), *about)


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
        F.col("operation").alias(OPERATION),
        *(F.col(f"numbers_{name}").alias(f"{NUMBERS}{name}") for name, _ in unpack.versions),
    )


INTERNAL = {"key": KEY, "row": ROW, "deleted": DELETED, "version": VERSION, "source": SOURCE, "ts": TS, "problem": PROBLEM}


def packing_columns(**more: Column) -> list[Column]:
    """Columns of a table's frame under the names that packing knows them by; ``more`` come in the place of some, or after."""
    chosen = {outer: F.col(internal) for outer, internal in INTERNAL.items()} | more
    return [column.alias(outer) for outer, column in chosen.items()]


def once(frames: Iterable[DataFrame]) -> tuple[DataFrame, ...]:
    """The frames, each once: several tables may be made of the same."""
    distinct: list[DataFrame] = []
    for frame in frames:
        if all(frame is not known for known in distinct):
            distinct.append(frame)
    return tuple(distinct)
