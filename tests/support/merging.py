"""Several tables as one: their messages, and the plain overlay."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import NUMBERED, table
from tests.support.changes import take

Event = tuple[int, str, int, bytes | None]
"""Number of a table, key, version, row."""

ROWS = (None, b"x", b"y", b"")


def messages(events: Iterable[Event]) -> pa.Table:
    listed = list(events)
    number, key, version, row = zip(*listed, strict=True) if listed else ((), (), (), ())
    values = as_bytes(pa.array(row, pa.large_binary()))
    at = np.array(version, np.int64)
    keys = as_bytes(pa.array(key, pa.string()))
    gone = values.is_null()
    return table(NUMBERED, keys, versions.encode(b"a-source", [at], tied=True), values, gone, at, np.array(number, np.int8))


def overlaid(events: Iterable[Event]) -> dict[str, bytes]:
    newest: dict[tuple[str, int], tuple[int, bytes | None]] = {}
    for number, key, version, row in events:
        if version >= newest.get((key, number), (-1, None))[0]:
            newest[key, number] = version, row
    found = {}
    for (key, _), (_, row) in sorted(newest.items(), reverse=True):
        if row is not None:
            found[key] = row  # the first table's comes last
    return found


def apply(results: pa.Table, table: dict[str, bytes]) -> None:
    """Bring ``table`` up to date; fails on a result that changes nothing."""
    for one in results.to_pylist():
        take(table, one["key"].decode(), one["operation"], one["value"])
