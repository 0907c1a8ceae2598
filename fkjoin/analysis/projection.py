"""Columns that a user names over a table's rows: their expressions, texts and types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.columns import resolve_column, without_stars
from fkjoin.errors import TopologyError
from fkjoin.spark.names import named, require_apart
from fkjoin.spark.schemas import Expression, Expressions, text


@dataclass(frozen=True)
class Projection:
    """Columns over rows."""

    columns: tuple[Column, ...]
    given: tuple[Expression, ...]
    schema: StructType

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(map(text, self.given))

    @property
    def named(self) -> dict[str, Column]:
        return dict(zip(self.schema.names, self.columns, strict=True))

    @property
    def struct(self) -> Column:
        return F.struct(*(column.alias(name) for name, column in self.named.items()))

    @classmethod
    def of(cls, argument: str, given: Expressions, rows: DataFrame, names: Iterable[str], table: str) -> Projection:
        """What is ``given`` over ``rows`` with the columns ``names``, of ``table``.

        Raises ``TopologyError`` that says which ``argument`` is wrong, and why.
        """
        known = list(names)
        chosen = without_stars(given, rows, known)
        if not chosen:
            raise TopologyError(f"{argument}: name at least one column or expression")
        found = [resolve_column(argument, item, rows, known, table) for item in chosen]
        schema = rows.select(*found).schema
        require_apart(argument, schema.names)
        return cls(tuple(found), tuple(chosen), schema)

    def among(self, argument: str, name: object) -> Column:
        """One of the columns, by its plain name."""
        found = named(name, self.schema.names)
        if found is None:
            raise TopologyError(
                f"{argument}: {name} is not the plain name of a column of the value ({', '.join(self.schema.names)}); put "
                "expressions into group_by(value=…)"
            )
        return self.columns[self.schema.names.index(found)]
