"""The joiner that a user gives, analyzed: what a joined row is made of."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from fkjoin.analysis.attempt import NOTHING, Attempt, attempt, raising
from fkjoin.analysis.bound import Bound, Scope, bind, schema_of
from fkjoin.analysis.checks import Joiner, is_function, require_takes
from fkjoin.analysis.columns import without_stars
from fkjoin.analysis.planned import Planned
from fkjoin.errors import TopologyError, thrown_at
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.names import quoted_if_needed
from fkjoin.spark.returned import as_type, row_function
from fkjoin.spark.schemas import arrow_schema, listed, struct_type_of, text

RETURNS: dict[Any, DataType] = {
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
}
"""Spark's types of Python's."""

_CALLED = "__fkjoin_called"


@dataclass(frozen=True, eq=False)
class BoundJoiner:
    """Columns over answers.

    These have the structs ``left`` and ``right``, ``matched``, and ``named``, the left key.
    """

    name: str
    """The join's."""
    row: Column
    """The joined row, a struct; it may be null."""
    result: StructType
    tried: Attempt
    """The expressions, or what a function returns."""
    bound: tuple[Bound, ...] | None = None
    """The expressions over left and right, analyzed; None of a function, and without a joiner."""
    called: Column | None = None
    """The call of a joiner that is a function."""

    @property
    def both_rows(self) -> bool:
        """Tell whether a joined row is both rows, since there is no joiner."""
        return self.bound is None and self.called is None

    def on(self, answers: DataFrame) -> DataFrame:
        """The answers, and the values that the columns read."""
        if self.called is None:
            return self.tried.on(answers)
        return answers.withColumn(_CALLED, self.called)


def bound_joiner(
    name: str, joiner: Joiner | None, rows: DataFrame, on_error: OnError
) -> BoundJoiner:
    """The joiner of the join with that ``name``; None: both rows as they are.

    ``rows``: an empty frame of answers.
    """
    if joiner is None:
        row = F.struct("left", "right")
        return BoundJoiner(name, row, struct_type_of(rows, row), NOTHING)
    if is_function(joiner):
        return _by_function(name, joiner, rows, on_error)
    sides = pa.schema(
        [field for field in arrow_schema("joiner", rows.schema) if field.name in ("left", "right")]
    )
    bound = bind(
        "joiner", listed(joiner), Scope(rows.select("left", "right"), (), "the joined row", sides)
    )
    kinds = schema_of(bound)
    usable = F.coalesce(F.col("matched"), F.lit(False))
    tried = attempt("joiner", name, bound, on_error, usable=usable, key=F.col("named"))
    if len(kinds) == 1 and isinstance(kinds[0].dataType, StructType):
        row = tried.columns[0]
        result = kinds[0].dataType
    else:
        row = F.struct(
            *[column.alias(field.name) for column, field in zip(tried.columns, kinds, strict=True)]
        )
        result = kinds
    return BoundJoiner(name, row, result, tried, bound)


def written_out(
    joiner: Joiner | None, left: Planned, right: Planned, *, by_key: bool = False
) -> Joiner | None:
    """The joiner, each ``*`` in it written out.

    ``left.*`` is without the key, which the result has anyway.  ``by_key``: of a join by primary
    key, whose ``right.*`` is without it, too.
    """
    if joiner is None or is_function(joiner):
        return joiner
    sides = StructType([StructField("left", left.row_type), StructField("right", right.row_type)])
    rows = left.spark.createDataFrame([], sides)
    of_key = {
        "left": set(map(quoted_if_needed, left.key)),
        "right": set(map(quoted_if_needed, right.key)) if by_key else set(),
    }
    expressions: list[Any] = []
    for item in listed(joiner):
        fields = without_stars(item, rows, rows.columns)
        whole = re.fullmatch(r"`?(left|right)`?(\.\*)+", text(item).strip())
        expressions += [
            field
            for field in fields
            if not (whole and str(field).split(".", 1)[1] in of_key[whole[1]])
        ]
    if not expressions:
        raise TopologyError(
            f"joiner: left table {left.name} has no columns besides its key; name columns of "
            "right, too"
        )
    return expressions


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
    known = RETURNS.get(annotation)
    return _Called(joiner, known or StringType(), known is None)


def _by_function(
    name: str, joiner: Callable[[Any, Any], Any], rows: DataFrame, on_error: OnError
) -> BoundJoiner:
    require_takes("joiner", joiner, "left", "right")
    called = _called(joiner)
    kind = StructType([StructField("value", called.returns), StructField("problem", StringType())])
    function = _catching(called, thrown_at if on_error == "fail" else _in_short)
    call = row_function(function, kind)(F.col("matched"), F.col("left"), F.col("right"))
    value, thrown = F.col(f"{_CALLED}.value"), F.col(f"{_CALLED}.problem")
    row = (
        value
        if isinstance(called.returns, StructType)
        else F.when(value.isNotNull(), F.struct(value.alias("value")))
    )
    problem = thrown
    if on_error == "fail":
        problem = F.when(thrown.isNotNull(), raising(f"joiner of {name}", F.col("named"), thrown))
    result = struct_type_of(rows.withColumn(_CALLED, call), row)
    reason = F.concat(F.lit("joiner: "), thrown)
    tried = Attempt((row,), lambda: problem, lambda: reason)
    return BoundJoiner(name, row, result, tried, None, call)


def _catching(
    called: _Called, explain: Callable[[Exception], str]
) -> Callable[[bool, Any, Any], Any]:
    """The joiner, called for answers that give a row.

    It returns its value, or what it threw.  A value of another type counts as thrown.
    """

    def join(matched: Any, left: Any, right: Any) -> Any:
        if not matched:
            return None, None
        try:
            value = called.function(left, right)
            if called.text and value is not None:
                value = json.dumps(_plain(value), ensure_ascii=False)
            value = as_type(value, called.returns)
        except Exception as error:
            return None, explain(error)
        return value, None

    return join


def _in_short(error: Exception) -> str:
    """Say of an error what a dead letter has."""
    return f"{type(error).__name__}: {error}"


def _plain(value: Any) -> Any:
    """A value with rows as objects, and what JSON cannot write as text."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
