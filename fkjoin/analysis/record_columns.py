"""Columns that order, delete and date a topic's changes: expressions over the records' values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.attempt import attempt
from fkjoin.analysis.bound import Scope, bound_columns
from fkjoin.analysis.change_columns import ChangeColumns
from fkjoin.kafka.formats import Format
from fkjoin.spark.json_lines import no_version
from fkjoin.spark.names import quoted
from fkjoin.spark.schemas import fields_of, listed, text

_NAMES = ("key", "row", "about", "numbers", "gone", "time", "threw")
_KEY, _ROW, _ABOUT, _NUMBERS, _GONE, _TIME, _THREW = (
    f"__fkjoin_of_record_{name}" for name in _NAMES
)


@dataclass(frozen=True)
class RecordChange:
    """The change that a record is: columns over the frame of records with them."""

    numbers: list[Column]
    gone: Column
    time: Column
    kind_of_time: str | None
    problem: Column
    """The reason why the record cannot be used: an expression throws, or its version is null."""


def with_change_columns(
    records: DataFrame,
    columns: ChangeColumns,
    key: Column,
    *,
    row: Column,
    value_format: Format,
    label: str,
) -> tuple[Callable[[DataFrame], DataFrame], RecordChange]:
    """Find what the expressions say of records.

    Return a function that adds it to a frame of records, and the columns to read it by.

    The expressions see the value's columns, and the key's columns that the value lacks.  They also
    see what the format knows of an event besides its row (``Debezium.about``).  A record whose
    version is null cannot be ordered: that is a problem.  Of Debezium's records with a version,
    null values are left out: the delete event before each has said it.
    """
    of_record = [F.col(quoted(name)).alias(f"__record_{name}") for name in records.columns]
    restored = [F.col(f"__record_{name}").alias(name) for name in records.columns]
    about = getattr(value_format, "about", None)
    parts = {_ROW: row, _KEY: key}
    if about is not None:
        parts[_ABOUT] = about(F.col("value"))
    titled = [part.alias(name) for name, part in parts.items()]
    # A tombstone follows a delete event, which has a version.
    only_values = about is not None and columns.version is not None

    def opened(frame: DataFrame) -> DataFrame:
        usable = frame.where(F.col("value").isNotNull()) if only_values else frame
        return usable.select(*of_record, *titled)

    names: dict[str, Column] = {}
    of_records = opened(records)
    for part in parts:
        for name in fields_of(of_records, F.col(part)):
            names.setdefault(name, F.col(part).getField(name).alias(name))
    visible = of_records.select("*", *names.values())
    known = list(names)
    numbers, gone = columns.numbers(visible, known, label), columns.gone(visible, known, label)
    time, kind_of_time = columns.time(visible, known, label)
    ordering = listed(columns.version) if numbers else []
    texts = [*ordering, *columns.others]
    bound = bound_columns(
        texts, [*numbers, gone, time], Scope(visible, tuple(known), label, pa.schema([]))
    )
    tried = attempt("source", label, bound, "skip", usable=F.lit(True), key=F.col(_KEY))
    *numbers, gone, time = tried.columns
    numbered = [number.alias(f"v{index}") for index, number in enumerate(numbers)]
    threw = F.lit(None).cast("string") if tried.reason is None else tried.reason

    def added(frame: DataFrame) -> DataFrame:
        return tried.on(opened(frame).select("*", *names.values())).select(
            *restored,
            F.struct(F.lit(0).alias("none"), *numbered).alias(_NUMBERS),
            F.coalesce(gone, F.lit(False)).alias(_GONE),
            time.alias(_TIME),
            threw.alias(_THREW),
        )

    read = [F.col(_NUMBERS).getField(f"v{index}") for index in range(len(numbers))]
    missing = [
        F.when(number.isNull(), F.lit(no_version(text(item))))
        for item, number in zip(ordering, read, strict=True)
    ]
    problem = F.coalesce(F.col(_THREW), *missing)
    return added, RecordChange(read, F.col(_GONE), F.col(_TIME), kind_of_time, problem)
