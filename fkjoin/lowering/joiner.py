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

from fkjoin.analysis.attempt import attempt, letters, raising
from fkjoin.analysis.columns import resolve_column, without_stars
from fkjoin.analysis.vectorize import vectors
from fkjoin.codec.vectors import Columns
from fkjoin.errors import TopologyError
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.frame import DELETED, KEY, LEFT_GONE, PACKED_KEY, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.spark.names import quoted_if_needed
from fkjoin.spark.returned import as_type
from fkjoin.spark.schemas import listed, spark_schema, text
from fkjoin.spark.unpacking import UnpackAnswers
from fkjoin.table import Joiner, Table

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


def evaluated(name: str, joiner: Joiner, left: pa.Schema, right: pa.Schema, spark: SparkSession) -> Columns | str:
    """The joiner of the join ``name`` for workers, over rows of which so much is kept; or why Spark has to evaluate it."""
    if is_function(joiner):
        return "the joiner is a function"
    rows = spark.createDataFrame(
        [], spark_schema(pa.schema([("left", pa.struct(list(left))), ("right", pa.struct(list(right)))]))
    )
    columns = joiner_columns(joiner, rows)
    kinds = rows.select(*columns).schema
    if len(kinds) == 1 and isinstance(kinds[0].dataType, StructType):
        return "its one column is a struct, and may be null"
    found = vectors(dict(zip(kinds.names, columns, strict=True)), rows, rows.columns, f"joiner of {name}")
    return found or "the joiner is left to Spark"


class Joining(NamedTuple):
    """What makes joined rows of answers: the joiner of a join, and what becomes of an answer on which it throws."""

    name: str
    """The join's."""
    joiner: Joiner | None
    on_error: OnError

    def joined(self, answers: DataFrame, unpack: UnpackAnswers) -> DataFrame:
        """Answers with the joiner's struct ``row``, or one of both rows; null where there is no result.

        With a ``problem`` where the joiner throws, and, of answers that have their keys' columns, a ``letter``: why it does.
        ``on_error="fail"`` needs these columns.
        """
        rows = answers.mapInArrow(unpack, spark_schema(unpack.schema))
        made = self._made(rows)
        named = [] if unpack.named is None else ["named"]
        keep = [*named, *(["left", "right"] if named else []), "key", "version", "ts", "gone"]
        problem = F.lit(None).cast("string") if made.problem is None else made.problem
        letter = [made.reason.alias("letter")] if named and made.reason is not None else []
        row = F.when(F.col("matched"), made.row).alias("row")
        return made.rows.select(*keep, row, problem.alias("problem"), *letter, "counter", "count")

    def before_resolve(self, answers: DataFrame, unpack: UnpackAnswers) -> DataFrame:
        """The joined rows before resolve: a table's frame with ``PACKED_KEY`` and ``LEFT_GONE``; ``unpack`` names the key."""
        row = F.col("row")
        return self.joined(answers, unpack).select(
            F.col("named").alias(KEY),
            row.alias(ROW),
            row.isNull().alias(DELETED),
            F.col("version").alias(VERSION),
            F.lit(None).cast("binary").alias(SOURCE),
            F.col("ts").alias(TS),
            F.col("problem").alias(PROBLEM),
            F.col("key").alias(PACKED_KEY),
            F.col("gone").alias(LEFT_GONE),
        )

    def letters(self, answers: DataFrame, unpack: UnpackAnswers) -> tuple[DataFrame, ...]:
        """The frame that dead letters come from, of answers on which the joiner throws; ``unpack`` names the key."""
        rows = self.joined(answers, unpack)
        if "letter" not in rows.columns:
            return ()
        rows = rows.select(F.col("named").alias(KEY), "left", "right", "letter")
        return (letters(rows, F.col("letter"), self.name, F.struct("left", "right")),)

    def _made(self, rows: DataFrame) -> _Row:
        if self.joiner is None:
            return _Row(rows, F.struct("left", "right"), None, None)
        if is_function(self.joiner):
            return self._by_function(rows, self.joiner)
        columns = joiner_columns(self.joiner, rows)
        kinds = rows.select(*columns).schema
        matched = F.col("matched")
        usable = F.coalesce(matched, F.lit(False))
        tried = attempt(
            *("joiner", self.name, listed(self.joiner), columns, rows, self.on_error), usable=usable, key=F.col("named")
        )
        found = tried.columns
        if len(kinds) == 1 and isinstance(kinds[0].dataType, StructType):
            row = found[0]
        else:
            row = F.struct(*[column.alias(field.name) for column, field in zip(found, kinds, strict=True)])
        return _Row(tried.on(rows), row, tried.problem, tried.reason)

    def _by_function(self, rows: DataFrame, joiner: Callable[[Any, Any], Any]) -> _Row:
        called = _called(joiner)
        kind = StructType([StructField("value", called.returns), StructField("problem", StringType())])
        made = F.udf(_catching(called), kind)(F.col("matched"), F.col("left"), F.col("right"))
        rows = rows.withColumn(_CALLED, made)
        value, thrown = F.col(f"{_CALLED}.value"), F.col(f"{_CALLED}.problem")
        row = value if isinstance(called.returns, StructType) else F.when(value.isNotNull(), F.struct(value.alias("value")))
        problem = thrown
        if self.on_error == "fail":
            problem = F.when(thrown.isNotNull(), raising(f"joiner of {self.name}", F.col("named"), thrown))
        return _Row(rows, row, problem, F.concat(F.lit("joiner: "), thrown))


_CALLED = "__fkjoin_called"


class _Row(NamedTuple):
    """Rows with what the other columns are of; the joined row, and why there is none: short, and in full."""

    rows: DataFrame
    row: Column
    problem: Column | None
    reason: Column | None


def _catching(called: _Called) -> Callable[[bool, Any, Any], Any]:
    """The joiner, called for answers that give a row; returns its value, or what it threw: so does one of another type."""

    def join(there: Any, left: Any, right: Any) -> Any:
        if not there:
            return None, None
        try:
            found = called.function(left, right)
            if called.text and found is not None:
                found = json.dumps(_plain(found), ensure_ascii=False)
            found = as_type(found, called.returns)
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        return found, None

    return join


def _plain(value: Any) -> Any:
    """A value with rows as objects, and what JSON cannot write as text."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
