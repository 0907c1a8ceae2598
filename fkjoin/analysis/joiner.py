"""The extractor and the joiner that a user gives, analyzed: foreign keys, and joined rows."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from fkjoin.analysis.checks import Extractor, Joiner, is_function, require_takes
from fkjoin.analysis.columns import without_stars
from fkjoin.analysis.planned import Planned
from fkjoin.errors import ColumnTypeError, FkJoinError, TopologyError, thrown_at
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.spark.names import quoted, quoted_if_needed
from fkjoin.spark.returned import as_type, row_function
from fkjoin.spark.schemas import arrow_schema, listed, struct_type_of, text
from fkjoin.stages.answer_rows import thrown_text


@dataclass(frozen=True, eq=False)
class ForeignKey:
    """The foreign keys of a left table's rows, as columns over its frame."""

    extractor: Extractor
    bound: tuple[Bound, ...] | None
    """The expressions, analyzed; None of a function."""
    tried: Attempt

    def on(self, rows: DataFrame) -> DataFrame:
        """A left table's rows with a struct ``foreign_key`` of the right key's types.

        It is null in deletes.
        """
        members = [column.alias(f"k{index}") for index, column in enumerate(self.tried.columns)]
        foreign_key = F.when(~F.col(DELETED), F.struct(*members)).alias("foreign_key")
        problem = self.tried.problems.alias(PROBLEM)
        about = (KEY, ROW, DELETED, VERSION, SOURCE, TS)
        return self.tried.on(rows).select(*about, problem, foreign_key)


def bound_foreign_key(
    left: Planned, right: Planned, extractor: Extractor, argument: str = "extractor"
) -> ForeignKey:
    """The extractor over the rows of ``left``.

    ``TopologyError``, with the ``argument``, if it gives no key of ``right``.
    """
    wanted = right.key_type
    if is_function(extractor):
        require_takes(argument, extractor, "key", "row")
        kind = StructType(
            [StructField(f"k{index}", field.dataType) for index, field in enumerate(wanted)]
        )
        tried = tried_function("extractor", extractor, left, kind, _values_of(len(wanted)))
        return ForeignKey(extractor, None, tried)
    bound = bind(argument, listed(extractor), replace(left.scope, table=f"left table {left.name}"))
    require_key(argument, bound, f"left table {left.name}", right, f"right table {right.name}")
    return ForeignKey(extractor, bound, attempt("extractor", left.name, bound, left.on_error))


def require_key(
    argument: str, bound: Sequence[Bound], whose: str, right: Planned, table: str
) -> None:
    """``TopologyError``, with the ``argument``, if expressions give no key of ``right``.

    ``whose``: what errors call the table of the expressions; ``table``: what they call ``right``.
    """
    wanted = right.key_type
    if len(bound) != len(wanted):
        raise TopologyError(
            f"{argument}: {len(bound)} column{'s' * (len(bound) != 1)} given, but the key of "
            f"{table} has {len(wanted)} ({', '.join(wanted.names)}); give one for each, in that "
            "order"
        )
    for expression, field in zip(bound, wanted, strict=True):
        kind = expression.field.dataType
        if kind.simpleString() != field.dataType.simpleString():
            raise ColumnTypeError(
                f"{argument}: {expression.text} of {whose} is {kind.simpleString()}, but key "
                f"column {field.name} of {table} is {field.dataType.simpleString()}; cast one of "
                f'them, for instance {argument}="cast({expression.text} as '
                f'{field.dataType.simpleString()})"'
            )


def _values_of(columns: int) -> Callable[[Any], tuple[Any, ...]]:
    """Take apart what an extractor returns."""

    def values_of(result: Any) -> tuple[Any, ...]:
        if result is None:
            return (None,) * columns
        if columns == 1:
            return (result,)
        if not isinstance(result, list | tuple):
            raise TypeError(f"{result!r:.200} is not a tuple of {columns}")
        return tuple(result)

    return values_of


def tried_function(
    operator: str,
    function: Callable[[Any, Any], Any],
    table: Planned,
    kind: StructType,
    values_of: Callable[[Any], tuple[Any, ...]],
) -> Attempt:
    """A function of a row's key and the row, called for usable rows of the table only.

    The columns are ``values_of`` what it returns; with ``on_error="fail"`` the query stops where it
    throws.  What is not of its ``kind`` counts as thrown.
    """
    columns, name, fail = len(kind), table.name, table.on_error == "fail"

    # A function of the module would have each worker import the analysis.
    def call(problem: Any, key: Any, row: Any) -> Any:
        if problem is not None or row is None:
            return None
        try:
            values = as_type(values_of(function(key, row)), kind)
        except Exception as error:
            if fail:
                raise FkJoinError(thrown_text(f"{operator} of {name}", key, error)) from error
            return (None,) * columns + (f"{operator}: {type(error).__name__}: {error}",)
        return (*values, None)

    returned = StructType([*kind, StructField("problem", StringType())])
    key = F.col(quoted(KEY, table.key[0])) if len(table.key) == 1 else F.col(KEY)
    row = F.when(~F.col(DELETED), F.col(ROW))
    result = row_function(call, returned)(F.col(PROBLEM), key, row)
    reason = result.getField("problem")
    members = tuple(result.getField(field.name) for field in kind)
    return Attempt(members, lambda: reason, lambda: reason)


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
