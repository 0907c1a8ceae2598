"""Windows that close, on streaming DataFrames: what all buckets are told of time."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.attempt import as_json
from fkjoin.analysis.planned import Planned
from fkjoin.analysis.windows import Closes, sources_of
from fkjoin.lowering.pace import ticks_for
from fkjoin.lowering.stage import stage
from fkjoin.lowering.workers import read_by_workers
from fkjoin.sessions.plan_sources import analyzed
from fkjoin.spark.arrivals import GreatestTime
from fkjoin.spark.frame import PROBLEM, RAW, TS
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.specs import CloseSpec
from fkjoin.spark.unpacking import UnpackLate
from fkjoin.stages.close import Closing
from fkjoin.stages.time_windows import TimeWindows

_TICKS_AN_IDLE = 4
"""The number of intervals of the clock are in the time after which a source is idle."""


def closing_of(closes: Closes, table: Planned, group: pa.Schema) -> Closing:
    """The times at which windows of the table close; ``group``: the group of a contribution."""
    windows = TimeWindows(closes.window.size_us, closes.window.slide_us, group)
    return Closing(windows, closes.grace_us, len(sources_of(table)), closes.idle_ms)


def late_letters(contributions: DataFrame, spec: CloseSpec, label: str, row_key: pa.Schema) -> DataFrame:
    """The frame that dead letters come from, of changes that come to windows that are closed.

    ``contributions``: with time, for a query of their own, which decides by its own batches what is late.
    """
    unpack = UnpackLate(row_key, spec.closing.windows.key)
    late = stage(contributions, replace(spec, letters=True)).where("counter is null")
    rows = late.mapInArrow(unpack, spark_schema(unpack.schema))
    raw = F.struct(F.lit(label).alias("table"), as_json(F.col("row_key")).alias("key"), as_json(F.col("group")).alias("value"))
    return rows.select(raw.alias(RAW), F.lit(f"group_by {label}: the window was closed").alias(PROBLEM))


def with_time(contributions: DataFrame, table: Planned, spec: CloseSpec) -> DataFrame:
    """Contributions, and to each bucket the greatest timestamps of the sources, and the ends of a clock's intervals."""
    buckets, idle_ms = spec.state.buckets, spec.closing.idle_ms
    told = contributions
    for number, source in enumerate(sources_of(table)):
        told = _with_arrivals(told, source, GreatestTime(number, buckets))
    return told if idle_ms is None else told.unionAll(ticks_for(told.sparkSession, idle_ms // _TICKS_AN_IDLE, buckets))


def _with_arrivals(envelopes: DataFrame, source: Planned, latest: GreatestTime) -> DataFrame:
    """The envelopes, and the source's greatest timestamps, read as the envelopes read the source.

    Else Spark would read it twice, and a batch could have a time without the rows.
    """
    frame = source.bound.frame.select(F.col(TS).alias("ts"), F.col(PROBLEM).alias("problem"))
    by_spark = envelopes.unionAll(frame.mapInArrow(latest, ENVELOPE))
    if source.bound.undecoded is None:
        return by_spark
    by_workers = envelopes.unionAll(read_by_workers(source.bound.undecoded, latest))
    return min((by_workers, by_spark), key=_places_read)


def _places_read(frame: DataFrame) -> int:
    """The number of places that Spark reads for the frame."""
    return int(analyzed(frame).collectLeaves().toSet().size())
