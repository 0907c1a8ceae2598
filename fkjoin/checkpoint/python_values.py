"""Rows of Arrow as Python's dicts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


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
