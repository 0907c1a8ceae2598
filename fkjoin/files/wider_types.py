"""Columns of Parquet files, read in the widest type of their kind, and narrowed to the table's.

Spark's reader stops at a wider whole number than it is told to read, and cuts bits off where a
table has bytes or shorts.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from fkjoin.spark.names import quoted


def wider(kind: DataType) -> DataType:
    """The type, with whole numbers as bigint and fractions as double.

    Maps cannot be compared, and stay.
    """
    if isinstance(kind, ByteType | ShortType | IntegerType):
        return LongType()
    if isinstance(kind, FloatType):
        return DoubleType()
    if isinstance(kind, StructType):
        return wider_fields(kind)
    return ArrayType(wider(kind.elementType)) if isinstance(kind, ArrayType) else kind


def wider_fields(fields: StructType) -> StructType:
    """The fields, each in its wider type."""
    return StructType([StructField(field.name, wider(field.dataType)) for field in fields])


def narrowed(read: DataFrame, fields: StructType, misfit: str, whole: str) -> DataFrame:
    """The columns in the types of ``fields``, null where a value is of none.

    ``misfit``: the column that says which value; ``whole``: the one with all of such a row, as
    JSON.
    """
    kinds = {field.name: field.dataType for field in fields}
    own = {name: kind for name, kind in kinds.items() if wider(kind) != kind}
    problem = F.coalesce(*(_misfit(name, kind) for name, kind in own.items()))
    values = {name: F.col(quoted(name)) for name in read.columns}
    narrow = {name: values[name].try_cast(kind).alias(name) for name, kind in own.items()}
    row = F.to_json(F.struct(*(F.col(quoted(name)) for name in fields.names)))
    raw = F.when(problem.isNotNull(), row).alias(whole)
    return read.select(*(values | narrow).values(), problem.alias(misfit), raw)


def _misfit(name: str, kind: DataType) -> Column:
    value = F.col(quoted(name))
    words = f"column {name}: ", f" is no {kind.simpleString()}"
    problem = F.concat(F.lit(words[0]), value.cast("string"), F.lit(words[1]))
    return F.when(~value.eqNullSafe(value.try_cast(kind).cast(wider(kind))), problem)
