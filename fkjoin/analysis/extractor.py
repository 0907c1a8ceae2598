"""The extractor that a user gives, analyzed: the foreign keys of a left table's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin.analysis.attempt import Attempt, attempt
from fkjoin.analysis.bound import Bound, bind
from fkjoin.analysis.checks import Extractor, is_function, require_takes
from fkjoin.analysis.planned import Planned
from fkjoin.errors import ColumnTypeError, FkJoinError, TopologyError
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.spark.names import quoted
from fkjoin.spark.returned import as_type, row_function
from fkjoin.spark.schemas import listed
from fkjoin.stages.answer_rows import thrown_text

THROWN = "__fkjoin_thrown"


@dataclass(frozen=True, eq=False)
class ForeignKey:
    """The foreign keys of a left table's rows, as columns over its frame."""

    extractor: Extractor
    bound: tuple[Bound, ...] | None
    """The expressions, analyzed; None of a function."""
    tried: Attempt

    def on(self, rows: DataFrame) -> DataFrame:
        """A left table's rows with a struct ``foreign_key`` of the right key's types.

        It is null in deletes.  Where the extractor can throw, ``THROWN`` is why it did.
        """
        members = [column.alias(f"k{index}") for index, column in enumerate(self.tried.columns)]
        foreign_key = F.when(~F.col(DELETED), F.struct(*members)).alias("foreign_key")
        thrown = [] if self.tried.reason is None else [self.tried.reason.alias(THROWN)]
        raw = [RAW] if RAW in rows.columns else []
        about = (KEY, ROW, DELETED, VERSION, SOURCE, TS)
        return self.tried.on(rows).select(
            *about, self.tried.problems.alias(PROBLEM), *thrown, *raw, foreign_key
        )


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
