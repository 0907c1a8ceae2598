"""Spark's types, as places that are written to take them."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import types
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from fkjoin.errors import TopologyError

TIMES_OF_DAY: tuple[type[DataType], ...] = (types.TimeType,) if hasattr(types, "TimeType") else ()
"""Types of times of day, of which Spark has none before 4.1."""
NESTED = (StructType, ArrayType, MapType)
_EVERYWHERE = (
    types.BinaryType,
    types.BooleanType,
    types.DateType,
    types.NumericType,
    types.StringType,
    types.TimestampNTZType,
    types.TimestampType,
    *NESTED,
)
"""Kinds of values that each place gives back unchanged."""


def parts(schema: StructType, above: str = "") -> Iterator[tuple[str, DataType]]:
    """The columns and what is in them: each with the name that errors give it, and its type."""
    for field in schema:
        yield from _parts(f"{above}{field.name}", field.dataType)


def require_kinds(argument: str, schema: StructType, *more: type[DataType]) -> None:
    """``TopologyError`` if a column, or something in it, is of a type that a place does not take.

    ``more``: the types that it takes besides those that all places do.
    """
    for name, kind in parts(schema):
        if not isinstance(kind, (*_EVERYWHERE, *more)) or kind == StructType():
            raise TopologyError(
                f"{argument}: column {name} is {kind.simpleString()}, which could not be read "
                "there unchanged: cast it to text, or leave it out"
            )


def _parts(name: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    yield name, kind
    if isinstance(kind, StructType):
        yield from parts(kind, f"{name}.")
    elif isinstance(kind, ArrayType):
        yield from _parts(f"{name}[]", kind.elementType)
    elif isinstance(kind, MapType):
        yield from _parts(f"{name}.key", kind.keyType)
        yield from _parts(f"{name}.value", kind.valueType)
