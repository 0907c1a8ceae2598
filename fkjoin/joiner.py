"""The joiner that a user gives, applied to answers between subscription and resolve."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeGuard, Union, get_args, get_origin

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from fkjoin.columns import listed, resolve_column, spark_schema, text, without_stars
from fkjoin.errors import TopologyError
from fkjoin.frame import DELETED, KEY, LEFT_GONE, PACKED_KEY, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.names import quoted_if_needed
from fkjoin.spark.unpacking import UnpackAnswers
from fkjoin.spark.vectorized import vectors
from fkjoin.table import Joiner, Table
from fkjoin.vectors import Columns

_RETURNS: dict[Any, DataType] = {bool: BooleanType(), int: LongType(), float: DoubleType(), str: StringType()}


def is_function(given: Any) -> TypeGuard[Callable[[Any, Any], Any]]:
    """Whether an extractor or joiner is a Python callable; a Column, which can be called too, is not one."""
    return callable(given) and not isinstance(given, Column)


class _Called(NamedTuple):
    """A Python joiner and what it returns; ``text`` where it is JSON."""

    function: Callable[[Any, Any], Any]
    returns: DataType
    text: bool


def _called(joiner: Callable[[Any, Any], Any]) -> _Called:
    if (returns := getattr(joiner, "returnType", None)) is not None:
        return _Called(joiner.func, returns, False)  # type: ignore[attr-defined]  # a Spark UDF
    try:
        annotation = inspect.signature(joiner, eval_str=True).return_annotation
    except (TypeError, ValueError, NameError):
        annotation = None
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        annotation = kinds[0] if len(kinds) == 1 else None
    known = _RETURNS.get(annotation)
    return _Called(joiner, known or StringType(), known is None)


def written_out(joiner: Joiner | None, left: Table, right: Table) -> Joiner | None:
    """The joiner, each ``*`` in it written out; ``left.*`` is without the key, which the result has anyway."""
    if joiner is None or is_function(joiner):
        return joiner
    sides = StructType([StructField("left", left.row_type), StructField("right", right.row_type)])
    rows = left.frame.sparkSession.createDataFrame([], sides)
    of_key = {quoted_if_needed(name) for name in left.key}
    found: list[Any] = []
    for item in listed(joiner):
        fields = without_stars(item, rows, rows.columns)
        whole = re.fullmatch(r"(left|`left`)(\.\*)+", text(item).strip())
        found += [field for field in fields if not (whole and str(field).split(".", 1)[1] in of_key)]
    if not found:
        raise TopologyError(f"joiner: left table {left.name} has no columns besides its key; name columns of right, too")
    joiner_columns(found, rows)  # what is wrong with one is said now
    return found


def joiner_columns(joiner: Joiner, rows: DataFrame) -> list[Column]:
    """The columns of a joiner that is no function, over ``rows`` with the structs left and right."""
    sides = rows.select("left", "right")
    return [resolve_column("joiner", item, sides, [], "(left, right)") for item in listed(joiner)]


def evaluated(joiner: Joiner, left: pa.Schema, right: pa.Schema, spark: SparkSession) -> Columns | str:
    """The joiner for workers, over rows of which so much is kept; or why Spark has to evaluate it."""
    if is_function(joiner):
        return "the joiner is a function"
    rows = spark.createDataFrame(
        [], spark_schema(pa.schema([("left", pa.struct(list(left))), ("right", pa.struct(list(right)))]))
    )
    columns = joiner_columns(joiner, rows)
    kinds = rows.select(*columns).schema
    if len(kinds) == 1 and isinstance(kinds[0].dataType, StructType):
        return "its one column is a struct, and may be null"
    found = vectors(dict(zip(kinds.names, columns, strict=True)), rows, rows.columns)
    return found or "the joiner is left to Spark"


def joined(answers: DataFrame, unpack: UnpackAnswers, joiner: Joiner | None) -> DataFrame:
    """Answers with the joiner's struct ``row``, or one of both rows; null where there is no result."""
    rows = answers.mapInArrow(unpack, spark_schema(unpack.schema))
    matched = F.col("matched")
    named = [] if unpack.named is None else ["named"]
    if joiner is None:
        joiner = F.struct("left", "right")
    if is_function(joiner):
        function, returns, as_json = _called(joiner)

        def join(there: bool, left: Any, right: Any) -> Any:
            found = function(left, right) if there else None
            return json.dumps(_plain(found), ensure_ascii=False) if as_json and found is not None else found

        columns = [F.udf(join, returns)(matched, F.col("left"), F.col("right")).alias("value")]
    else:
        columns = joiner_columns(joiner, rows)
    kinds = rows.select(*columns).schema
    if len(kinds) == 1 and isinstance(kinds[0].dataType, StructType):
        row = columns[0]
    else:
        whole = F.struct(*[column.alias(field.name) for column, field in zip(columns, kinds, strict=True)])
        row = F.when(columns[0].isNotNull(), whole) if is_function(joiner) else whole
    return rows.select(*named, "key", "version", "ts", "gone", F.when(matched, row).alias("row"), "counter", "count")


def before_resolve(answers: DataFrame, unpack: UnpackAnswers, joiner: Joiner | None) -> DataFrame:
    """The joined rows before resolve, as a table's frame with ``PACKED_KEY`` and ``LEFT_GONE``; ``unpack`` names the key."""
    row = F.col("row")
    return joined(answers, unpack, joiner).select(
        F.col("named").alias(KEY),
        row.alias(ROW),
        row.isNull().alias(DELETED),
        F.col("version").alias(VERSION),
        F.lit(None).cast("binary").alias(SOURCE),
        F.col("ts").alias(TS),
        F.lit(None).cast("string").alias(PROBLEM),
        F.col("key").alias(PACKED_KEY),
        F.col("gone").alias(LEFT_GONE),
    )


def _plain(value: Any) -> Any:
    """A value with rows as objects, and what JSON cannot write as text."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
