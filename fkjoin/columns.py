"""What a user may give where a column is wanted (name, SQL text, Column) as Columns, with errors that help."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from fkjoin.errors import FormatError, TopologyError
from fkjoin.kinds import parts
from fkjoin.names import named, quoted, quoted_if_needed, twice
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
    if (name := named(given, known)) is not None:
        return F.col(quoted(name))
    if not isinstance(given, str | Column):
        raise TopologyError(f"{argument}: a column name, SQL text or Column is needed, {given!r} is a {type(given).__name__}")
    column = None
    try:
        column = F.expr(given) if isinstance(given, str) else given
        found = frame.select(column).columns  # analysis happens here
    except AnalysisException as error:
        raise TopologyError(f"{argument}: {_explain(text(given), error, known, table, frame)}") from error
    if len(found) != 1:
        raise TopologyError(f"{argument}: {text(given)} is {len(found)} columns where one is needed: write out those you mean")
    return column


def without_stars(given: Expressions, frame: DataFrame, names: Iterable[str]) -> list[Expression]:
    """Expressions over ``frame``, each ``*`` written out as the columns ``names``, each ``struct.*`` as the struct's fields.

    A column that is called so is meant by its name in backticks.
    """
    known, found = list(names), list[Expression]()
    for item in listed(given):
        star = text(item).strip() if isinstance(item, str | Column) else ""
        star = re.sub(r"(\.\*)+$", ".*", star)  # PySpark writes F.col("left.*") with two
        if star == "*":
            found += known
        elif star.endswith(".*") and (fields := _fields_in(star.removesuffix(".*"), frame)):
            found += (f"{star.removesuffix('.*')}.{quoted_if_needed(name)}" for name in fields)
        else:
            found.append(item)
    return found


def _fields_in(struct: str, frame: DataFrame) -> list[str]:
    """The names of a struct's fields; none if there is no such struct."""
    try:
        kind = frame.select(F.expr(struct)).schema[0].dataType
    except AnalysisException:  # resolve_column says what is wrong
        return []
    return kind.names if isinstance(kind, StructType) else []


def require_names(argument: str, given: Expressions, names: Iterable[str], table: str) -> tuple[str, ...]:
    """Column names that must all be there."""
    known = list(names)
    chosen = listed(given)
    if not chosen:
        raise TopologyError(f"{argument}: name at least one column of {table}; it has {', '.join(known)}")
    for name in chosen:
        if not isinstance(name, str):
            raise TopologyError(f"{argument}: a column name is needed, {name!r} is a {type(name).__name__}")
        if named(name, known) is None:
            raise TopologyError(f"{argument}: {_no_column(name, known, table)}")
    return tuple(name for item in chosen if (name := named(item, known)) is not None)


def require_plain_keys(argument: str, key: StructType) -> None:
    """``TopologyError`` if texts in a key have a collation: two of them may be one to Spark, and keys are compared as bytes."""
    for field in key:
        kinds = (kind for _, kind in parts(StructType([field])) if isinstance(kind, StringType) and kind != StringType())
        if (kind := next(kinds, None)) is not None:
            cast = f"cast({quoted_if_needed(field.name)} as string)"
            raise TopologyError(
                f"{argument}: {field.name} is {kind.simpleString()}, and keys are compared byte by byte: make it {cast}, or "
                f"lower({cast}) if case must not matter, before the table is built"
            )


def arrow_schema(argument: str, schema: DataType) -> pa.Schema:
    """The Arrow schema of rows of ``schema``, everything nullable.

    ``TopologyError`` if a type has no byte form, or two fields in a column have one name to Spark.
    """
    for path, names in _nested(schema):
        if (pair := twice(names)) is not None:
            raise TopologyError(f"{argument}: {path} has the fields {pair[0]!r} and {pair[1]!r}, which is one name to Spark")
    try:
        arrow = to_arrow_schema(cast(StructType, nullable(schema)), timezone="UTC")
    except Exception as error:
        raise TopologyError(f"{argument}: {error}") from error
    if (problem := unsupported(arrow)) is not None:
        raise TopologyError(f"{argument}: column {problem}")
    return arrow


def kept_type(said: Mapping[str, Any]) -> StructType:
    """A struct as a checkpoint keeps it.

    Raises ``FormatError`` if it names a Python class that is not PySpark's own: PySpark would import the class's module.
    """
    open_ = [said]
    while open_:
        about = open_.pop()
        if "pyClass" in about and not str(about["pyClass"]).startswith("pyspark."):
            raise FormatError(
                f"a type in the checkpoint names the Python class {about['pyClass']!r}, which is not Spark's; nothing was "
                "imported. Somebody has changed it: restore the checkpoint, or begin a new one"
            )
        inside = [item for value in about.values() for item in (value if isinstance(value, list) else [value])]
        open_ += [item for item in inside if isinstance(item, Mapping)]
    return StructType.fromJson(dict(said))


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema)


def kind_text(kind: pa.DataType) -> str:
    """The type as Spark calls it."""
    return spark_schema(pa.schema([("it", kind)]))["it"].dataType.simpleString()


def schema_text(schema: pa.Schema) -> str:
    """Names and types, as a checkpoint remembers them."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def types_text(kind: StructType) -> str:
    """Names and types, as a user has written them."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in kind)


def fields_of(frame: DataFrame, struct: Column) -> tuple[str, ...]:
    """The names of a struct expression's fields."""
    return tuple(struct_type_of(frame, struct).names)


def struct_type_of(frame: DataFrame, struct: Column) -> StructType:
    """The type of a struct expression."""
    kind = type_of(frame, struct)
    assert isinstance(kind, StructType)
    return kind


def type_of(frame: DataFrame, column: Column) -> DataType:
    """The type of an expression over the frame."""
    return frame.select(column.alias("it")).schema["it"].dataType


def nullable(kind: DataType) -> DataType:
    """The type, with nulls wherever there can be some."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType), True) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def _nested(kind: DataType, above: str = "") -> Iterator[tuple[str, list[str]]]:
    """Of each struct in the type, where it is and the names of its fields."""
    if isinstance(kind, StructType):
        if above:
            yield above, kind.names
        for field in kind:
            yield from _nested(field.dataType, f"{above}.{field.name}".lstrip("."))
    elif isinstance(kind, ArrayType):
        yield from _nested(kind.elementType, above)
    elif isinstance(kind, MapType):
        yield from _nested(kind.keyType, above)
        yield from _nested(kind.valueType, above)


def _no_column(name: str, known: list[str], table: str, within: Sequence[str] = ()) -> str:
    """``within``: fields of columns that are called so."""
    close = [*within, *difflib.get_close_matches(name, known, 1)]
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"{table} has no column {name!r}{hint} It has: {', '.join(known)}."


def _within(name: str, known: list[str], frame: DataFrame) -> list[str]:
    """The fields of struct columns that have the name, as an expression names them."""
    structs = {field.name: field.dataType.names for field in frame.schema if isinstance(field.dataType, StructType)}
    fields = [(column, inner) for column in known for inner in structs.get(column, []) if inner.lower() == name.lower()]
    return [f"{quoted_if_needed(column)}.{quoted_if_needed(inner)}" for column, inner in fields]


def _explain(given: str, error: AnalysisException, known: list[str], table: str, frame: DataFrame) -> str:
    if given.isidentifier():
        return _no_column(given, known, table, _within(given, known, frame))
    first = str(error).split("\n", 1)[0]
    return f"{given!r} cannot be evaluated over {table} ({', '.join(known)}): {first}"
