"""Texts of keys: those in messages, which ``fkjoin state get`` takes, and those that it shows."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from fkjoin.codec.arrays import Bytes, valid
from fkjoin.codec.rows import KeyCodec

json_text = functools.partial(json.dumps, ensure_ascii=False, default=str)

NOT_PLAIN = '"', "["
"""Beginnings of texts that would be read as JSON."""


def key_text(key: Any) -> str:
    """Write a key as people give it: the one column's value, several as a JSON list.

    Parameters
    ----------
    key
        The columns by name or in their order; or the value of the one column.
    """
    if isinstance(key, Mapping):
        key = tuple(key.values())
    values = list(key) if isinstance(key, tuple) else [key]
    if len(values) != 1:
        return json_text(values)
    text = json_text(values[0])
    plain = json.loads(text) if text.startswith('"') else text
    quoted = plain.startswith(NOT_PLAIN) and isinstance(values[0], str)
    return json_text([plain]) if quoted else plain


def parse_key(schema: pa.Schema, text: str) -> Bytes:
    """Encode a key that a user typed: one column as it is or as JSON, several as a JSON list.

    Raises ``ValueError`` that says what is wanted.
    """
    wanted = ", ".join(f"{field.name} ({field.type})" for field in schema)
    try:
        values = json.loads(text)
    except ValueError:
        values = text
    if len(schema) == 1 and not isinstance(values, list):
        plain = pa.types.is_string(schema.field(0).type) and not text.startswith('"')
        values = [text if plain else values]
    if not isinstance(values, list) or len(values) != len(schema):
        raise ValueError(f"key {text!r}: a JSON list is needed, of {wanted}")
    try:
        typed = zip(values, schema, strict=True)
        columns = [pa.array([value]).cast(field.type) for value, field in typed]
    except pa.ArrowException as error:
        raise ValueError(f"key {text!r} is not {wanted}: {error}") from error
    return KeyCodec(schema).encode(columns, 1)


def keys_as_json(schema: pa.Schema, keys: Bytes) -> pa.Array:
    """Keys as JSON: one column as its value, several as a list; null for none."""
    columns = [column.to_pylist() for column in KeyCodec(schema).decode(keys)]
    parts: Any = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
    return pa.array([*map(json_text, parts)], pa.string(), mask=~valid(keys))
