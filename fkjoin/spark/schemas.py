"""Schemas: Spark's types as Arrow's and back, and how both read in texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from fkjoin.codec.rows import unsupported
from fkjoin.errors import FormatError, TopologyError, first_line
from fkjoin.spark.kinds import parts
from fkjoin.spark.names import quoted_if_needed, twice

Expression = str | Column


Expressions = Expression | Sequence[Expression]

IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)
"""For PySpark's ``to_arrow_…``: timestamps in UTC, as Spark before 4.2 has them unasked."""


def listed(argument: Any) -> list[Any]:
    """One or several, as a list."""
    return list(argument) if isinstance(argument, list | tuple) else [argument]


def text(expression: Expression) -> str:
    """The text of an expression in ``describe()``."""
    if isinstance(expression, str):
        return expression
    written = str(expression).removeprefix("Column<'").removesuffix("'>")
    # PySpark counts variables through the process, and a checkpoint is bound to the text.
    variables: dict[str, str] = {}
    declared = _IN_CONNECT if "LambdaFunction(" in written else _IN_CLASSIC
    for variable in declared.findall(written):
        variables.setdefault(variable, f"{variable[0]}_{len(variables) + 1}")
    return _VARIABLE.sub(lambda word: variables.get(word[0], word[0]), written)


_VARIABLE = re.compile(r"\b[xyz]_\d+\b")
_IN_CLASSIC = re.compile(r"\b([xyz]_\d+)(?=(?:, [xyz]_\d+)*\)? ->)")
"""Variables where a function of columns names them: ``(x_1, y_2) -> …``."""
_IN_CONNECT = re.compile(r"(?<=, )([xyz]_\d+)(?=(?:, [xyz]_\d+)*\))")
"""Variables where Spark Connect names them: ``LambdaFunction(…, x_1, y_2)``."""


def require_plain_keys(argument: str, key: StructType) -> None:
    """``TopologyError`` if texts in a key have a collation.

    Two of them may be one to Spark, and keys are compared as bytes.
    """
    for field in key:
        for _, kind in parts(StructType([field])):
            if isinstance(kind, StringType) and kind != StringType():
                cast = f"cast({quoted_if_needed(field.name)} as string)"
                raise TopologyError(
                    f"{argument}: {field.name} is {kind.simpleString()}, and keys are compared "
                    f"byte by byte: make it {cast}, or lower({cast}) if case must not matter, "
                    "before the table is built"
                )


def arrow_schema(argument: str, schema: DataType) -> pa.Schema:
    """The Arrow schema of rows of ``schema``, everything nullable.

    ``TopologyError`` if a type has no byte form, or two fields in a column have one name to Spark.
    """
    for path, kind in parts(cast(StructType, schema)):
        if isinstance(kind, StructType) and (pair := twice(kind.names)) is not None:
            raise TopologyError(
                f"{argument}: {path} has the fields {pair[0]!r} and {pair[1]!r}, which Spark does "
                "not distinguish"
            )
    try:
        arrow = as_arrow(schema)
    except Exception as error:
        raise TopologyError(f"{argument}: {error}") from error
    if (problem := unsupported(arrow)) is not None:
        raise TopologyError(f"{argument}: column {problem}")
    return arrow


def as_arrow(schema: DataType) -> pa.Schema:
    """The Arrow schema of rows of ``schema``, everything nullable, whatever the types are."""
    return to_arrow_schema(cast(StructType, nullable(schema)), **IN_UTC)


def kept_type(description: Mapping[str, Any]) -> StructType:
    """A struct as a checkpoint keeps it.

    Raises ``FormatError`` if it names a Python class that is not PySpark's own: PySpark would
    import the class's module.
    """
    open_ = [description]
    while open_:
        about = open_.pop()
        if "pyClass" in about and not str(about["pyClass"]).startswith("pyspark."):
            raise FormatError(
                f"a type in the checkpoint names the Python class {about['pyClass']!r}, which is "
                "not Spark's; nothing was imported. Another program has changed the checkpoint: "
                "restore it, or start a new one"
            )
        for value in about.values():
            items = value if isinstance(value, list) else [value]
            open_ += [item for item in items if isinstance(item, Mapping)]
    return StructType.fromJson(dict(description))


def spark_schema(schema: pa.Schema) -> StructType:
    # The default of Spark 4.2; it was False before.
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def kind_text(kind: pa.DataType) -> str:
    """The type as Spark calls it."""
    return spark_schema(pa.schema([("it", kind)]))["it"].dataType.simpleString()


def column_texts(schema: pa.Schema) -> list[str]:
    """Names and types, as a checkpoint remembers them."""
    return [f"{field.name} {field.type}" for field in schema]


def types_text(kind: StructType) -> str:
    """Names and types, as a user has written them."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in kind)


def fields_of(frame: DataFrame, struct: Column) -> tuple[str, ...]:
    """The names of a struct expression's fields."""
    return tuple(struct_type_of(frame, struct).names)


def struct_type_of(frame: DataFrame, struct: Column) -> StructType:
    """The type of a struct expression."""
    return struct_column(frame.select(struct.alias("it")).schema, "it")


def struct_column(schema: StructType, name: str) -> StructType:
    """The type of a column that is a struct, by name."""
    kind = schema[name].dataType
    assert isinstance(kind, StructType)
    return kind


def type_of(frame: DataFrame, column: Column) -> DataType:
    """The type of an expression over the frame."""
    return frame.select(column.alias("it")).schema["it"].dataType


def nullable(kind: DataType) -> DataType:
    """The type, with nulls wherever there can be some."""
    if isinstance(kind, StructType):
        fields = [StructField(field.name, nullable(field.dataType), True) for field in kind]
        return StructType(fields)
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def struct_type(schema: str | StructType, where: str) -> StructType:
    """The schema, parsed from DDL text if need be."""
    if isinstance(schema, StructType):
        return schema
    try:
        kind = DataType.fromDDL(schema)
    except Exception as error:
        raise TopologyError(
            f"{where}: schema {schema!r} does not parse: {first_line(error)}"
        ) from error
    if not isinstance(kind, StructType):
        raise TopologyError(
            f"{where}: schema {schema!r} is not a list of columns, such as 'id bigint, name string'"
        )
    return kind
