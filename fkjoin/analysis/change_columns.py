"""Expressions of the user's that order, delete and date changes: checked, and as Columns."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.columns import resolve_column
from fkjoin.errors import ColumnTypeError
from fkjoin.spark.copies import copy_fields
from fkjoin.spark.schemas import Expression, Expressions, listed, text, type_of

_INTEGERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class ChangeColumns:
    """Expressions over the columns of changes; None leaves the source's own."""

    version: Expressions | None = None
    deleted: Expression | None = None
    timestamp: Expression | None = None

    def __post_init__(self) -> None:
        copy_fields(self)

    @property
    def given(self) -> bool:
        return any(
            expression is not None for expression in (self.version, self.deleted, self.timestamp)
        )

    @property
    def others(self) -> tuple[Expression, Expression]:
        """The expressions that delete and date; an empty text for one that is not given."""
        return (
            "" if self.deleted is None else self.deleted,
            "" if self.timestamp is None else self.timestamp,
        )

    def numbers(self, frame: DataFrame, names: list[str], label: str) -> list[Column]:
        """The version's numbers; ``TopologyError`` where they are not whole."""
        numbers = []
        for item in () if self.version is None else listed(self.version):
            column = resolve_column("version", item, frame, names, label)
            kind = type_of(frame, column).simpleString()
            if kind not in _INTEGERS:
                raise ColumnTypeError(
                    f"version: {text(item)} is {kind}, whole numbers are needed; "
                    "cast it, for a timestamp with unix_micros(…)"
                )
            numbers.append(column.cast("bigint"))
        return numbers

    def gone(self, frame: DataFrame, names: list[str], label: str) -> Column:
        """A boolean column, true where a change deletes.

        ``TopologyError`` where the expression is not a boolean.
        """
        if self.deleted is None:
            return F.lit(False)
        column = resolve_column("deleted", self.deleted, frame, names, label)
        if (kind := type_of(frame, column).simpleString()) != "boolean":
            raise ColumnTypeError(
                f"deleted: {text(self.deleted)} is {kind}, a boolean is needed: "
                "write a condition, such as \"op = 'd'\""
            )
        return F.coalesce(column, F.lit(False))

    def time(self, frame: DataFrame, names: list[str], label: str) -> tuple[Column, str | None]:
        """The timestamp as int64, and its type.

        ``TopologyError`` where it is neither a timestamp nor a number.
        """
        if self.timestamp is None:
            return F.lit(None).cast("bigint"), None
        column = resolve_column("timestamp", self.timestamp, frame, names, label)
        kind = type_of(frame, column).simpleString()
        if kind in ("timestamp", "timestamp_ntz"):
            return F.unix_micros(column.cast("timestamp")), "timestamp"
        if kind in ("int", "bigint"):
            return column.cast("bigint"), "bigint"
        raise ColumnTypeError(
            f"timestamp: {text(self.timestamp)} is {kind}, a timestamp or bigint is "
            "needed; cast it with to_timestamp(…)"
        )
