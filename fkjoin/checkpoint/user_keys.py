"""Keys and rows as Python's values.

A key is one column's value, a tuple of several, or a dict by column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from fkjoin.codec.arrays import valid
from fkjoin.codec.rows import KeyCodec
from fkjoin.errors import FkJoinError


def encoded(schema: pa.Schema, keys: Iterable[Any]) -> list[bytes]:
    """Encode keys of a table whose key has the columns of ``schema``.

    ``FkJoinError`` for one that is not such a key.
    """
    lines = [key_parts(schema, key) for key in keys]
    columns = []
    for index, field in enumerate(schema):
        columns.append(fitting("key", field, [line[index] for line in lines]))
    encoded_keys: list[bytes] = KeyCodec(schema).encode(columns, len(lines)).to_pylist()
    return encoded_keys


def key_parts(schema: pa.Schema, key: Any) -> list[Any]:
    """The values of the key's columns, in their order."""
    names = schema.names
    if isinstance(key, Mapping) and not (
        len(names) == 1 and pa.types.is_struct(schema.field(0).type) and names != list(key)
    ):
        if set(key) != set(names):
            raise FkJoinError(
                f"key {dict(key)!r} does not have the columns of the table's key, which "
                f"{_wanted(schema)}"
            )
        return [key[name] for name in names]
    if isinstance(key, tuple) or (isinstance(key, list) and not _is_list(schema)):
        if len(key) != len(names):
            raise FkJoinError(
                f"key {key!r} has {len(key)} values, and the table's key {_wanted(schema)}"
            )
        return list(key)
    if len(names) != 1:
        raise FkJoinError(
            f"key {key!r} is one value, and the table's key {_wanted(schema)}: write a tuple of "
            "them, or a dict"
        )
    return [key]


def fitting(argument: str, field: pa.Field, values: list[Any], *, nulls: bool = False) -> pa.Array:
    """A column of these values.

    ``FkJoinError`` for one that has another type, or is null and may not be.
    """
    for value in values:
        if nulls and value is None:
            continue
        if (why := _unfit(field.type, value)) is not None:
            raise FkJoinError(
                f"{argument}: {value!r} cannot be a value of column {field.name}, which is "
                f"{field.type}: {why}"
            )
    try:
        column = pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        wrong = next(value for value in values if not _fits(field.type, value))
        plain = isinstance(error, TypeError) and not pa.types.is_nested(field.type)
        why = f"it is a {type(wrong).__name__}" if plain else str(error)
        raise FkJoinError(
            f"{argument}: {wrong!r} cannot be a value of column {field.name}, which is "
            f"{field.type}: {why}"
        ) from error
    assert nulls or valid(column).all()
    return column


def _unfit(kind: pa.DataType, value: Any) -> str | None:
    """Say why a value is none of a type though Arrow would make one of it; None if it is one."""
    if value is None:
        return "a key has no nulls"
    if isinstance(value, bool) and not pa.types.is_boolean(kind):
        return "it is a bool"
    if isinstance(value, float) and not pa.types.is_floating(kind):
        return "it is a float"
    if isinstance(value, bytes) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return "it is bytes"
    if isinstance(value, str) and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return "it is text"
    if (
        isinstance(value, datetime)
        and pa.types.is_timestamp(kind)
        and (value.tzinfo is None) != (kind.tz is None)
    ):
        return "it has no time zone" if kind.tz else "it has a time zone"
    if isinstance(value, datetime) and pa.types.is_date(kind):
        return "it is a timestamp"
    return None


def _fits(kind: pa.DataType, value: Any) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return False
    return True


def _is_list(schema: pa.Schema) -> bool:
    return len(schema) == 1 and pa.types.is_list(schema.field(0).type)


def _wanted(schema: pa.Schema) -> str:
    return "is " + ", ".join(f"{field.name} ({field.type})" for field in schema)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Make a dict of each row.

    Structs are dicts, and so are maps, in which a key that is a struct is a tuple.
    """
    columns = [_values(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, line, strict=True)) for line in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return [_plain(value, column.type) for value in values] if _has_map(column.type) else values


def _has_map(kind: pa.DataType) -> bool:
    fields = map(kind.field, range(kind.num_fields))
    return pa.types.is_map(kind) or any(_has_map(field.type) for field in fields)


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):
        return {hashable(key): _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    return [_plain(item, kind.value_type) for item in value]


def hashable(value: Any) -> Any:
    """A value for a dict's key: structs and lists are tuples."""
    if isinstance(value, dict):
        return tuple(map(hashable, value.values()))
    return tuple(map(hashable, value)) if isinstance(value, list) else value
