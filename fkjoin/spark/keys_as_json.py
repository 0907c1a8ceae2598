"""Keys' bytes as JSON texts."""

from __future__ import annotations

import functools
import json
from typing import Any

import pyarrow as pa

from fkjoin.codec.arrays import Bytes, valid
from fkjoin.codec.rows import KeyCodec

_text = functools.partial(json.dumps, ensure_ascii=False, default=str)


def keys_as_json(schema: pa.Schema, keys: Bytes) -> pa.Array:
    """Keys as JSON: one column as its value, several as a list; null for none."""
    columns = [column.to_pylist() for column in KeyCodec(schema).decode(keys)]
    parts: Any = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
    found = zip(parts, valid(keys), strict=True)
    return pa.array([_text(part) if there else None for part, there in found], pa.string())
