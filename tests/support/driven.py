"""Changes that drive tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Change = tuple[str, str, dict[str, Any] | None]
"""A table's name, the key, and the row without it; None deletes it."""


def feed(driver: Any, batch: list[Change]) -> None:
    for name, key, row in batch:
        if row is None:
            driver.input(name).delete(key)
        else:
            driver.input(name).change(key, row)


def feed_lines(driver: Any, name: str, lines: Iterable[dict[str, Any]]) -> None:
    """Feed lines as a table's file has them, with ``lsn`` and ``op``."""
    source = driver.input(name)
    key = source._input.planned.key_type.names
    for line in lines:
        row = {column: value for column, value in line.items() if column not in ("lsn", "seq", "op")}
        named = row[key[0]] if len(key) == 1 else tuple(row[column] for column in key)
        if line.get("op") == "d":
            source.delete(named, version=line["lsn"])
        else:
            source.change(named, row, version=line["lsn"])
