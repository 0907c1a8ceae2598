"""Windows that close, on streaming DataFrames: what all buckets are told of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.attempt import as_json
from fkjoin.analysis.planned import Planned
from fkjoin.analysis.windows import Closes, sources_of
from fkjoin.lowering.pace import ticks_for
from fkjoin.lowering.stage import dated, stage
from fkjoin.lowering.workers import read_by_workers
from fkjoin.sessions.plan_sources import analyzed
from fkjoin.spark.arrivals import GreatestTime, UntilBatchTime
from fkjoin.spark.frame import PROBLEM, RAW, TS
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.specs import CloseSpec
from fkjoin.spark.stepped import RowsAsTheyAre
from fkjoin.spark.unpacking import UnpackLate
from fkjoin.stages.close import Closing
from fkjoin.stages.time_windows import TimeWindows

_TICKS_AN_IDLE = 4
"""The number of intervals of the clock are in the time after which a source is idle."""


def closing_of(closes: Closes, table: Planned, group: pa.Schema) -> Closing:
    """The times at which windows of the table close; ``group``: the group of a contribution."""
    windows = TimeWindows(closes.window.size_us, closes.window.slide_us, group, closes.ahead_us)
    return Closing(windows, closes.grace_us, tuple(one.name for one in sources_of(table)), closes.idle_ms)


def late_letters(contributions: DataFrame, spec: CloseSpec, label: str, row_key: pa.Schema) -> DataFrame:
    """The frame that dead letters come from, of changes that come to windows that are closed.

    ``contributions``: with time, for a query of their own, which decides by its own batches what is late.
    """
    unpack = UnpackLate(row_key, spec.closing.windows.key)
    late = stage(contributions, replace(spec, letters=True)).where("counter is null")
    rows = late.mapInArrow(unpack, spark_schema(unpack.schema))
    raw = F.struct(F.lit(label).alias("table"), as_json(F.col("row_key")).alias("key"), as_json(F.col("group")).alias("value"))
    windows = spec.closing.windows
    early = None if windows.ahead is None else windows.ahead_text
    problem = F.concat(F.lit(f"group_by {label}: "), F.when(F.col("early"), early).otherwise("the window was closed"))
    return rows.select(raw.alias(RAW), problem.alias(PROBLEM))


def with_time(contributions: DataFrame, table: Planned, spec: CloseSpec) -> DataFrame:
    """Contributions, and to each bucket the greatest timestamps of the sources, and the ends of a clock's intervals."""
    buckets, idle_ms = spec.state.buckets, spec.closing.idle_ms
    told = contributions
    for number, source in enumerate(sources_of(table)):
        told = _with_arrivals(told, source, GreatestTime(number, buckets, spec.closing.windows.ahead))
    return told if idle_ms is None else told.unionAll(ticks_for(told.sparkSession, idle_ms // _TICKS_AN_IDLE, buckets))


def _with_arrivals(envelopes: DataFrame, source: Planned, latest: GreatestTime) -> DataFrame:
    """The envelopes, and the source's greatest timestamps, read as the envelopes read the source.

    Else Spark would read it twice, and a batch could have a time without the rows.
    """
    frame = source.bound.frame.select(F.col(TS).alias("ts"), F.col(PROBLEM).alias("problem"))
    undecoded = source.bound.undecoded
    undated = latest.ahead is None
    by_spark = envelopes.unionAll(frame.mapInArrow(latest, ENVELOPE) if undated else _until(frame, RowsAsTheyAre(), latest))
    if undecoded is None:
        return by_spark
    # A snapshot's rows have no timestamps: what is bounded leaves them out.
    told = read_by_workers(undecoded, latest) if undated else _until(undecoded.frame, undecoded.reading, latest)
    by_workers = envelopes.unionAll(told)
    return min((by_workers, by_spark), key=_places_read)


def _until(frame: DataFrame, reading: Any, latest: GreatestTime) -> DataFrame:
    """Envelopes with the greatest timestamps that are not too far ahead of the batch."""
    return dated(frame).mapInArrow(UntilBatchTime(reading, latest), ENVELOPE)


def _places_read(frame: DataFrame) -> int:
    """The number of places that Spark reads for the frame."""
    return int(analyzed(frame).collectLeaves().toSet().size())
