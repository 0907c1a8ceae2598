"""Columns that partition a target: their values come back as they were written, or are refused.

A table's log contains the values of partitions as texts, and so do the names of folders on a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.errors import TopologyError, shortened
from fkjoin.sinks.column_types import cannot_be, row_text
from fkjoin.spark.schemas import kind_text

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name of the folder of nulls."""
LONGEST_NAME = 255
"""Bytes of the longest name of a folder on a disk."""

_SHOWN = 40

_EXACT = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_string,
)
DELTA_TYPES = (*_EXACT, pa.types.is_decimal)
ICEBERG_TYPES = (*_EXACT, pa.types.is_decimal, pa.types.is_time, pa.types.is_binary)
"""Types whose values deltalake and pyiceberg read as they wrote them; pyiceberg cuts doubles."""


def require_types(
    target: str,
    schema: pa.Schema,
    columns: Iterable[str],
    types: Sequence[Callable[[pa.DataType], bool]],
    package: str,
) -> list[str]:
    """The columns of the schema that a target is partitioned by.

    ``TopologyError`` unless a package reads values of their types as it wrote them.
    """
    own = [name for name in columns if name in schema.names]
    for name in own:
        kind = schema.field(name).type
        if not any(test(kind) for test in types):
            raise TopologyError(
                f"partition_by: {target} is partitioned by {name}, which is {kind_text(kind)}: the "
                f"package {package} does not read such values back unchanged. Partition by a text, "
                "a whole number, a date or a time, for instance by a column that map_values makes "
                "of it"
            )
    return own


def of_delta(value: Any) -> str | None:
    """Say why deltalake does not read a value as it wrote it; None if it does."""
    if value in ("", _HIVE_NULL):
        return "which Delta reads as null"
    if isinstance(value, Decimal) and value.is_signed() and value.as_tuple().exponent:
        return "and deltalake writes no negative decimal that can be read"
    return None


def require_values(
    target: str,
    rows: pa.Table,
    columns: Iterable[str],
    key: Sequence[str],
    obstacle: Callable[[Any], str | None] = lambda _: None,
    *,
    on_disk: bool,
) -> None:
    """``FkJoinError`` if a row has a partition that does not come back.

    ``obstacle`` says why a value does not; ``on_disk``: folders are called by the values.
    """
    for name in columns:
        for value in pc.unique(rows[name]).to_pylist():
            why = obstacle(value)
            if why is None and on_disk and len(quote(f"{name}={value}", safe="=")) > LONGEST_NAME:
                why = f"whose folder would have a name of more than {LONGEST_NAME} bytes"
            if why is not None:
                row = row_text(rows.filter(pc.equal(rows[name], value)), key)
                contrast = f"is {shortened(repr(value), _SHOWN)} in the row with {row}, {why}"
                raise cannot_be(target, f"column {name} partitions it and {contrast}")
