"""Versions, arrays of bytes, and messages, made from plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES

SOURCE, OTHER = versions.identity("orders"), versions.identity("customers")


def array(*items: bytes | None) -> pa.LargeBinaryArray:
    return pa.array(items, BYTES)


@cache
def version(*numbers: int, source: bytes = SOURCE, **how: bool) -> bytes:
    columns = [np.array([number], np.int64) for number in numbers]
    return versions.encode(source, columns, **how)[0].as_py()


def message_table(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.Table:
    """Messages, each of plain values; texts become their bytes."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)
