"""Columns of Parquet files whose stored number Spark's reader takes for a value of another kind, and says nothing."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fkjoin.errors import TopologyError

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_MISREAD: tuple[tuple[tuple[type[DataType], ...], tuple[type[DataType], ...]], ...] = (
    (_WHOLE, (DateType, TimestampType, TimestampNTZType, DecimalType)),
    ((DateType,), _WHOLE),
    ((TimestampType,), (TimestampNTZType,)),
    ((TimestampNTZType,), (TimestampType,)),
)
"""Types of a table, each with the types of files that Spark reads as other values."""


def require_kinds(spark: SparkSession, pattern: str, options: dict[str, str], schema: StructType) -> None:
    """Refuse a schema that one of the files there, the one whose footer Spark reads, contradicts without Spark's notice."""
    try:
        there = spark.read.format("parquet").options(**options).load(pattern).schema
    except Exception:  # no file yet, or one whose footer cannot be read, which the query names; Spark raises several kinds
        return
    for name, given, found in _misread("", schema, there):
        raise TopologyError(
            f"schema: {name} is {given.simpleString()}, and {found.simpleString()} in the files of {pattern}; give it that "
            f"type, and convert it with with_columns: Spark would read other values"
        )


def _misread(name: str, given: DataType, found: DataType) -> Iterator[tuple[str, DataType, DataType]]:
    """Yield the columns and fields that are misread, each with its type in the table and in the files."""
    if isinstance(given, StructType) and isinstance(found, StructType):
        there = {one.name.lower(): one.dataType for one in found}
        for one in given:
            if one.name.lower() in there:
                yield from _misread(f"{name}.{one.name}".lstrip("."), one.dataType, there[one.name.lower()])
    elif isinstance(given, ArrayType) and isinstance(found, ArrayType):
        yield from _misread(f"{name}[]", given.elementType, found.elementType)
    elif isinstance(given, MapType) and isinstance(found, MapType):
        yield from _misread(f"{name}.key", given.keyType, found.keyType)
        yield from _misread(f"{name}.value", given.valueType, found.valueType)
    elif any(isinstance(given, ours) and isinstance(found, theirs) for ours, theirs in _MISREAD):
        yield name, given, found
