"""Columns that partition a target: their values come back as they were written, or are refused before anything is.

A table's log has the values of partitions as texts, and so have the names of folders on a disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.errors import TopologyError
from fkjoin.sinks.column_types import cannot_be
from fkjoin.spark.schemas import kind_text

LONGEST_NAME = 255
"""Bytes of the longest name of a folder on a disk."""

_SHOWN = 40

_DELTA_TYPES = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
    pa.types.is_string,
)

Obstacle = Callable[[Any], str | None]
"""Say why a value does not come back; None if it does."""


def require_delta_types(target: str, schema: pa.Schema, columns: Iterable[str]) -> None:
    """``TopologyError`` unless the package deltalake reads values of the columns' types as it wrote them."""
    for name in columns:
        kind = schema.field(name).type
        if not any(test(kind) for test in _DELTA_TYPES):
            raise TopologyError(
                f"partition_by: {target} is partitioned by {name}, which is {kind_text(kind)}: the package deltalake does not "
                "read such values as it wrote them. Partition by a text, a whole number, a date or a time, such as one that "
                "map_values makes of the column"
            )


def of_delta(value: Any) -> str | None:
    """Say why deltalake does not read a value as it wrote it."""
    if value == "":
        return "which Delta reads as null"
    if isinstance(value, Decimal) and value.is_signed() and value.as_tuple().exponent:
        return "and deltalake writes no negative decimal that can be read"
    return None


def of_iceberg(value: Any) -> str | None:
    """Say why pyiceberg does not write a value."""
    return "for which pyiceberg has no partition" if isinstance(value, float) and math.isnan(value) else None


def require_values(target: str, rows: pa.Table, columns: Iterable[str], obstacle: Obstacle, *, on_disk: bool) -> None:
    """``FkJoinError`` if a row has a partition that does not come back.  ``on_disk``: folders are called by the values."""
    for name in columns:
        for value in pc.unique(rows[name]).to_pylist():
            why = obstacle(value)
            if why is None and on_disk and len(quote(f"{name}={value}", safe="=")) > LONGEST_NAME:
                why = f"whose folder would have a name of more than {LONGEST_NAME} bytes"
            if why is not None:
                raise cannot_be(target, f"column {name} partitions it and is {_beginning(value)}, {why}")


def _beginning(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
