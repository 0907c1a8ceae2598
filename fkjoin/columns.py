"""What a user may give where a column is wanted (name, SQL text, Column) as Columns, with errors that help."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from fkjoin.errors import TopologyError
from fkjoin.rows import unsupported

Expression = str | Column
Expressions = Expression | Sequence[Expression]


def listed(given: Any) -> list[Any]:
    """One or several, as a list."""
    return list(given) if isinstance(given, list | tuple) else [given]


def text(given: Expression) -> str:
    """How an expression reads in ``describe()``."""
    return given if isinstance(given, str) else str(given).removeprefix("Column<'").removesuffix("'>")


def resolve_column(argument: str, given: Expression, frame: DataFrame, names: Iterable[str], table: str) -> Column:
    """``given`` as a Column over ``frame``: a name among ``names``, SQL text, or a Column.

    Raises ``TopologyError`` that says which ``argument`` and what ``table`` has instead.
    """
    known = list(names)
    if isinstance(given, str) and given in known:
        return F.col(f"`{given}`")
    if not isinstance(given, str | Column):
        raise TopologyError(f"{argument}: a column name, SQL text or Column is needed, {given!r} is a {type(given).__name__}")
    column = None
    try:
        column = F.expr(given) if isinstance(given, str) else given
        frame.select(column).schema  # noqa: B018  (analysis happens here)
    except AnalysisException as error:
        raise TopologyError(f"{argument}: {_explain(text(given), error, known, table)}") from error
    return column


def require_names(argument: str, given: Expressions, names: Iterable[str], table: str) -> tuple[str, ...]:
    """Column names that must all be there."""
    known = list(names)
    chosen = listed(given)
    if not chosen:
        raise TopologyError(f"{argument}: name at least one column of {table}; it has {', '.join(known)}")
    for name in chosen:
        if not isinstance(name, str):
            raise TopologyError(f"{argument}: a column name is needed, {name!r} is a {type(name).__name__}")
        if name not in known:
            raise TopologyError(f"{argument}: {_no_column(name, known, table)}")
    return tuple(str(name) for name in chosen)


def arrow_schema(argument: str, schema: DataType) -> pa.Schema:
    """The Arrow schema of rows of ``schema``, everything nullable; ``TopologyError`` if a type has no byte form."""
    try:
        arrow = to_arrow_schema(cast(StructType, nullable(schema)), timezone="UTC")
    except Exception as error:
        raise TopologyError(f"{argument}: {error}") from error
    if (problem := unsupported(arrow)) is not None:
        raise TopologyError(f"{argument}: column {problem}")
    return arrow


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema)


def schema_text(schema: pa.Schema) -> str:
    """Names and types, as a checkpoint remembers them."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def types_text(kind: StructType) -> str:
    """Names and types, as a user has written them."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in kind)


def fields_of(frame: DataFrame, struct: Column) -> tuple[str, ...]:
    """The names of a struct expression's fields."""
    kind = frame.select(struct.alias("it")).schema["it"].dataType
    assert isinstance(kind, StructType)
    return tuple(kind.names)


def nullable(kind: DataType) -> DataType:
    """The type, with nulls wherever there can be some."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType), True) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def _no_column(name: str, known: list[str], table: str) -> str:
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{table} has no column {name!r}{hint} It has: {', '.join(known)}."


def _explain(given: str, error: AnalysisException, known: list[str], table: str) -> str:
    if given.isidentifier():
        return _no_column(given, known, table)
    first = str(error).split("\n", 1)[0]
    return f"{given!r} cannot be evaluated over {table} ({', '.join(known)}): {first}"
