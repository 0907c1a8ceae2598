"""Columns that order and date changes, where what files have was learned from them.

One line that has no number there would make text of the whole column, and the table could not be made any more.  As bigint it
is one line that does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, DoubleType, LongType, StringType, StructField, StructType

from fkjoin.codec.rows import Path
from fkjoin.spark.names import named, quoted
from fkjoin.spark.schemas import struct_column


def with_numbers(read: DataFrame, learned: StructType, given: Sequence[Any]) -> StructType:
    """The columns, those that are plainly ``given`` as bigint where most of what was ``read`` there are whole numbers."""
    for path in (_path(item, learned) for item in given):
        kind = _at(learned, path)
        if isinstance(kind, StringType | DoubleType | DecimalType) and _most_are_whole(read, path, kind):
            learned = _with_number(learned, path)
    return learned


def _path(given: Any, columns: StructType) -> Path:
    """The names that lead to a column, or to a field of one; none where it is no plain name."""
    name = named(given, columns.names)
    if name is not None:
        return (name,)
    return tuple(given.split(".")) if isinstance(given, str) else ()


def _at(kind: DataType, path: Path) -> DataType | None:
    for name in path:
        if not isinstance(kind, StructType) or name not in kind.names:
            return None
        kind = kind[name].dataType
    return kind if path else None


def _most_are_whole(read: DataFrame, path: Path, kind: DataType) -> bool:
    value = F.col(quoted(*path))
    whole = value.try_cast("bigint").isNotNull() if isinstance(kind, StringType) else value == F.floor(value)
    (counted,) = read.agg(F.count_if(whole).alias("whole"), F.count(value).alias("all")).collect()
    return bool(2 * counted["whole"] > counted["all"])


def _with_number(columns: StructType, path: Path) -> StructType:
    name, *below = path
    inner: DataType = LongType()
    if below:
        inner = _with_number(struct_column(columns, name), tuple(below))
    return StructType([StructField(name, inner, one.nullable) if one.name == name else one for one in columns])
