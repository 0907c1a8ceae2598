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
        value = F.col(quoted(KEY, left.key[0])) if len(left.key) == 1 else F.col(KEY)
        members = StructType(
            [StructField(f"k{index}", field.dataType) for index, field in enumerate(wanted)]
        )
        kind = StructType([*members, StructField("problem", StringType())])
        function = _extracting(extractor, members, left.name, fail=left.on_error == "fail")
        called = row_function(function, kind)(F.col(PROBLEM), value, F.col(ROW))
        values = tuple(called.getField(member.name) for member in members)
        reason = called.getField("problem")
        return ForeignKey(extractor, None, Attempt(values, lambda: reason, lambda: reason))
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


def _extracting(
    extractor: Callable[[Any, Any], Any], kind: StructType, table: str, *, fail: bool
) -> Callable[[Any, Any, Any], Any]:
    """The extractor, called for usable rows only.

    It returns its columns and, unless it is to ``fail``, what it threw instead.  What is not of its
    ``kind`` counts as thrown.
    """
    columns = len(kind)

    # A function of the module would have each worker import the analysis.
    def values_of(result: Any) -> tuple[Any, ...]:
        if result is None:
            return (None,) * columns
        if columns == 1:
            return (result,)
        if not isinstance(result, list | tuple):
            raise TypeError(f"{result!r:.200} is not a tuple of {columns}")
        return tuple(result)

    def extract(problem: Any, key: Any, row: Any) -> Any:
        if problem is not None or row is None:
            return None
        try:
            values = as_type(values_of(extractor(key, row)), kind)
        except Exception as error:
            if fail:
                raise FkJoinError(thrown_text(f"extractor of {table}", key, error)) from error
            return (None,) * columns + (f"extractor: {type(error).__name__}: {error}",)
        return (*values, None)

    return extract
