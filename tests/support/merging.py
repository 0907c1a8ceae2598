"""Several tables as one: their messages, and the plain overlay."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from fkjoin.codec.messages import NUMBERED
from tests.support.changes import take
from tests.support.versions import message_table, version

Event = tuple[int, str, int, bytes | None]
"""Number of a table, key, version, row."""

ROWS = (None, b"x", b"y", b"")


def messages(events: Iterable[Event]) -> pa.Table:
    rows = []
    for number, key, ts, row in events:
        mark = version(ts, source=b"a-source", tied=True)
        rows.append((key, mark, row, row is None, ts, number))
    return message_table(NUMBERED, rows)


def overlaid(events: Iterable[Event]) -> dict[str, bytes]:
    newest: dict[tuple[str, int], tuple[int, bytes | None]] = {}
    for number, key, ts, row in events:
        if ts >= newest.get((key, number), (-1, None))[0]:
            newest[key, number] = ts, row
    found = {}
    for (key, _), (_, row) in sorted(newest.items(), reverse=True):
        if row is not None:
            found[key] = row  # the first table's comes last
    return found


def apply(results: pa.Table, table: dict[str, bytes]) -> None:
    """Bring ``table`` up to date; fails on a result that changes nothing."""
    for one in results.to_pylist():
        take(table, one["key"].decode(), one["operation"], one["value"])
