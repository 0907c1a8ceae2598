"""Windows that close: what all buckets are told of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.attempt import as_json
from fkjoin.analysis.planned import Planned
from fkjoin.analysis.windows import Closes, sources_of
from fkjoin.lowering.workers import read_by_workers
from fkjoin.plan.physical import (
    InWorkers,
    MessagesOnly,
    Physical,
    Stage,
    Ticks,
    Union,
    by_spark,
    reads,
)
from fkjoin.spark.arrivals import GreatestTime, UntilBatchTime
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.frame import PROBLEM, RAW, TS
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.specs import CloseSpec
from fkjoin.spark.stepped import RowsAsTheyAre
from fkjoin.spark.unpacking import UnpackLate
from fkjoin.stages.close import Closing
from fkjoin.stages.time_windows import TimeWindows

_TICKS_AN_IDLE = 4
"""The number of the clock's intervals in the time after which a source is idle."""


def closing_of(closes: Closes, table: Planned, group: pa.Schema) -> Closing:
    """The times at which windows of the table close; ``group``: the group of a contribution."""
    windows = TimeWindows(closes.window.size_us, closes.window.slide_us, group, closes.ahead_us)
    sources = tuple(source.name for source in sources_of(table))
    return Closing(windows, closes.grace_us, sources, closes.idle_ms)


def late_letters(
    contributions: Physical, spec: CloseSpec, label: str, row_key: pa.Schema
) -> Physical:
    """The rows that dead letters come from, of changes that come to windows that are closed.

    ``contributions``: with time, for a query of their own, which decides by its own batches what
    is late.
    """
    windows = spec.closing.windows
    early = F.lit(None).cast("string") if windows.ahead is None else F.lit(windows.ahead_text)
    unpack = UnpackLate(row_key, windows.key)
    late = MessagesOnly(Stage(contributions, replace(spec, letters=True)))

    def letters(rows: DataFrame) -> DataFrame:
        raw = F.struct(
            F.lit(label).alias("table"),
            as_json(F.col("row_key")).alias("key"),
            as_json(F.col("group")).alias("value"),
        )
        why = F.when(F.col("early"), early).otherwise(F.lit("the window was closed"))
        problem = F.concat(F.lit(f"group_by {label}: "), why)
        return rows.select(raw.alias(RAW), problem.alias(PROBLEM))

    return by_spark(letters, InWorkers(late, unpack, spark_schema(unpack.schema)))


def with_time(contributions: Physical, table: Planned, spec: CloseSpec) -> Physical:
    """Contributions, and what each bucket is told of time.

    It is told the greatest timestamps of the sources, and the ends of a clock's intervals.
    """
    buckets, idle_ms = spec.state.buckets, spec.closing.idle_ms
    timed = contributions
    for number, source in enumerate(sources_of(table)):
        latest = GreatestTime(number, buckets, spec.closing.windows.ahead)
        timed = _with_arrivals(timed, source, latest)
    if idle_ms is None:
        return timed
    return Union((timed, Ticks(idle_ms // _TICKS_AN_IDLE, buckets)))


def _with_arrivals(envelopes: Physical, source: Planned, latest: GreatestTime) -> Physical:
    """The envelopes, and the source's greatest timestamps, read as the envelopes read the source.

    Else Spark would read it twice, and a batch could have a time without the rows.
    """
    times = by_spark(_times, source.bound.rows)
    undecoded = source.bound.undecoded
    dated = latest.ahead is not None
    as_rows: Physical = InWorkers(times, latest, ENVELOPE)
    if dated:
        as_rows = _until(times, RowsAsTheyAre(), latest)
    by_rows = Union((envelopes, as_rows))
    if undecoded is None:
        return by_rows
    # A snapshot's rows have no timestamps: what is bounded leaves them out.
    by_lines = Union((envelopes, _until(undecoded.lines, undecoded.reading, latest)))
    if not dated:
        by_lines = Union((envelopes, read_by_workers(undecoded, latest)))
    return min((by_lines, by_rows), key=lambda plan: len(reads(plan)))


def _times(rows: DataFrame) -> DataFrame:
    return rows.select(F.col(TS).alias("ts"), F.col(PROBLEM).alias("problem"))


def _until(rows: Physical, reading: Any, latest: GreatestTime) -> Physical:
    """Envelopes with the greatest timestamps that are not too far ahead of the batch."""
    return InWorkers(rows, UntilBatchTime(reading, latest), ENVELOPE, dated=True)
