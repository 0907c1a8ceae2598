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

    given: Extractor
    bound: tuple[Bound, ...] | None
    """The expressions, analyzed; None of a function."""
    tried: Attempt

    def on(self, rows: DataFrame) -> DataFrame:
        """A left table's rows with a struct ``foreign_key``, null in deletes, of the right key's types.

        Where the extractor can throw, ``THROWN`` is why it did.
        """
        members = [column.alias(f"k{at}") for at, column in enumerate(self.tried.columns)]
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
    """The extractor over the rows of ``left``; ``TopologyError``, with the ``argument``, if it gives no key of ``right``."""
    wanted = right.key_type
    if is_function(extractor):
        require_takes(argument, extractor, "key", "row")
        value = F.col(quoted(KEY, left.key[0])) if len(left.key) == 1 else F.col(KEY)
        members = StructType(
            [StructField(f"k{at}", field.dataType) for at, field in enumerate(wanted)]
        )
        kind = StructType([*members, StructField("problem", StringType())])
        function = _extracting(extractor, members, left.name, fail=left.on_error == "fail")
        called = row_function(function, kind)(F.col(PROBLEM), value, F.col(ROW))
        found = tuple(called.getField(member.name) for member in members)
        reason = called.getField("problem")
        return ForeignKey(extractor, None, Attempt(found, lambda: reason, lambda: reason))
    bound = bind(argument, listed(extractor), replace(left.scope, table=f"left table {left.name}"))
    require_key(argument, bound, f"left table {left.name}", right, f"right table {right.name}")
    return ForeignKey(extractor, bound, attempt("extractor", left.name, bound, left.on_error))


def require_key(
    argument: str, bound: Sequence[Bound], whose: str, right: Planned, table: str
) -> None:
    """``TopologyError``, with the ``argument``, if expressions over rows of ``whose`` give no key of ``right``, a ``table``."""
    wanted = right.key_type
    if len(bound) != len(wanted):
        raise TopologyError(
            f"{argument}: {len(bound)} column{'s' * (len(bound) != 1)} given, but the key of "
            f"{table} has {len(wanted)} ({', '.join(wanted.names)}); give one for each, in that "
            "order"
        )
    for one, field in zip(bound, wanted, strict=True):
        kind = one.field.dataType
        if kind.simpleString() != field.dataType.simpleString():
            raise ColumnTypeError(
                f"{argument}: {one.text} of {whose} is {kind.simpleString()}, but key column "
                f"{field.name} of {table} is {field.dataType.simpleString()}; cast one of them, "
                f'for instance {argument}="cast({one.text} as {field.dataType.simpleString()})"'
            )


def _extracting(
    extractor: Callable[[Any, Any], Any], kind: StructType, table: str, *, fail: bool
) -> Callable[[Any, Any, Any], Any]:
    """The extractor, called for usable rows only; returns its columns and, unless it is to ``fail``, what it threw instead.

    What is not of its ``kind`` counts as thrown.
    """
    columns = len(kind)

    def extract(problem: Any, key: Any, row: Any) -> Any:
        if problem is not None or row is None:
            return None
        try:
            found = extractor(key, row)
            if columns > 1 and not isinstance(found, list | tuple | None):
                raise TypeError(f"{found!r:.200} is no tuple of {columns}")
            values = (
                (None,) * columns if found is None else tuple(found) if columns > 1 else (found,)
            )
            values = as_type(values, kind)
        except Exception as error:
            if fail:
                raise FkJoinError(thrown_text(f"extractor of {table}", key, error)) from error
            return (None,) * columns + (f"extractor: {type(error).__name__}: {error}",)
        return (*values, None)

    return extract
