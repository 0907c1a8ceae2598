"""Columns that a user names over a table's rows: their expressions, texts and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from fkjoin.analysis.bound import Bound, Scope, bind, for_workers, schema_of
from fkjoin.analysis.columns import without_stars
from fkjoin.codec.vectors import Columns
from fkjoin.errors import TopologyError
from fkjoin.spark.names import named, require_apart
from fkjoin.spark.schemas import Expression, Expressions


@dataclass(frozen=True, eq=False)
class Projection:
    """Expressions side by side."""

    bound: tuple[Bound, ...]
    schema: StructType
    """Their names in the row that they make, and their types."""

    @property
    def given(self) -> tuple[Expression, ...]:
        return tuple(expression.expression for expression in self.bound)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(expression.text for expression in self.bound)

    @property
    def named(self) -> dict[str, Column]:
        by_name = zip(self.schema.names, self.bound, strict=True)
        return {name: expression.column for name, expression in by_name}

    def struct_of(self, columns: Sequence[Column]) -> Column:
        """The row that they make; ``columns``: as an ``Attempt`` has them."""
        return F.struct(
            *(column.alias(name) for name, column in zip(self.schema.names, columns, strict=True))
        )

    def for_workers(self, operator: str) -> Columns | None:
        """Return the forms for workers; None if Spark has to evaluate one of them."""
        return for_workers(dict(zip(self.schema.names, self.bound, strict=True)), operator)

    def renamed(self, names: Sequence[str]) -> Projection:
        """Return the same expressions under other names."""
        fields = [
            StructField(name, field.dataType, field.nullable)
            for name, field in zip(names, self.schema, strict=True)
        ]
        return Projection(self.bound, StructType(fields))

    @classmethod
    def of(cls, argument: str, expressions: Expressions, scope: Scope) -> Projection:
        """Bind expressions to the columns of a scope.

        Raises ``TopologyError`` that says which ``argument`` is wrong, and why.
        """
        chosen = without_stars(expressions, scope.frame, scope.names)
        if not chosen:
            raise TopologyError(f"{argument}: name at least one column or expression")
        bound = bind(argument, chosen, scope)
        schema = schema_of(bound)
        require_apart(argument, schema.names)
        return cls(bound, schema)

    def among(self, argument: str, name: object) -> Bound:
        """One of the expressions, by the plain name of its column."""
        column = named(name, self.schema.names)
        if column is None:
            raise TopologyError(
                f"{argument}: {name} is not the plain name of a column of the value "
                f"({', '.join(self.schema.names)}); put expressions into group_by(value=…)"
            )
        return self.bound[self.schema.names.index(column)]
