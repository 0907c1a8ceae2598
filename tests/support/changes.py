"""Changes of tables: the newest ones, and what a reader of results makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from fkjoin.codec.messages import Operation


def newest(changes: Iterable[Any], by: Callable[[Any], Any] = attrgetter("key")) -> dict[Any, Any]:
    """The newest change of each row; of two of one version, the first."""
    rows: dict[Any, Any] = {}
    for change in changes:
        before = rows.get(by(change))
        if before is None or change.version > before.version:
            rows[by(change)] = change
    return rows


def take(table: dict[Any, Any], key: Any, operation: int, row: Any, *, every: bool = False) -> Any:
    """Bring a table up to date, and return the row that was there; ``every``: a row may be sent as it was.

    Fails on a result that changes nothing, and on one that is called what it is not.
    """
    before = table.pop(key, None)
    wanted = Operation.DELETE if row is None else Operation.INSERT if before is None else Operation.UPDATE
    assert operation == wanted, (key, operation, before)
    assert (before, row) != (None, None), f"a tombstone for {key!r}, which has no result"
    assert every or row != before, f"the same result again for {key!r}"
    if row is not None:
        table[key] = row
    return before
