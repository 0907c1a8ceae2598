"""The stages that map right rows to their left rows, over memory, and the plain maps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from fkjoin.codec.messages import column
from fkjoin.codec.rows import RowCodec
from fkjoin.stages.children import Family, children
from fkjoin.stages.counters import Counters
from fkjoin.stages.rekey import rekey
from fkjoin.state import MemoryStore
from tests.support.changes import take
from tests.support.oracle import Change, messages

ROW = pa.schema([("v", pa.binary())])
KEY = pa.schema([("id", pa.binary())])
RESULT = pa.schema([("v", pa.binary()), ("children", pa.map_(pa.binary(), pa.struct(list(ROW))))])
FAMILY = Family(KEY, ROW, ROW, RESULT)
Table = dict[bytes, tuple[bytes, list[tuple[bytes, bytes]]]]


def sides(changes: Iterable[Change]) -> tuple[pa.Table, pa.Table]:
    """Left and right changes as messages."""
    coded = [
        row._replace(value=None if row.value is None else RowCodec(ROW).encode([pa.array([row.value])], 1)[0].as_py())
        for row in changes
    ]
    return messages(coded, left=True), messages(coded, left=False)


class Maps:
    """rekey and children over memory, and the table that the results lead to."""

    def __init__(self, page: int = 1000) -> None:
        self.stores, self.count, self.table = (MemoryStore(), MemoryStore(page)), Counters(), Table()
        self.sent = 0

    def batch(self, changes: list[Change], *clocks: int, every: bool = False, retention_ms: int = 10) -> None:
        """Work on a batch; ``clocks``: the time in each of the two stages."""
        left, right = sides(changes)
        first, second = clocks or (0, 0)
        how: Any = {"every": every, "retention_ms": retention_ms}
        rekeyed = rekey(left, self.stores[0], self.count, now_ms=first, **how)
        how |= {"source": b"children", "now_ms": second}
        for page in children(rekeyed.subscriptions, right, self.stores[1], self.count, FAMILY, **how):
            self._apply(page)

    def _apply(self, results: pa.Table) -> None:
        rows = [part.to_pylist() for part in RowCodec(RESULT).decode(column(results, "value"))]
        for one, value, mapped in zip(results.to_pylist(), *rows, strict=True):
            row = None if one["value"] is None else (value, [(child, part["v"]) for child, part in mapped])
            take(self.table, one["key"], one["operation"], row, every=True)
            self.sent += 1


def wanted(changes: list[Change]) -> Table:
    lefts = {change.key: change for change in changes if change.left}
    rights = {change.key: change.value for change in changes if not change.left}
    return {
        key: (
            value,
            [(child, row.value) for child, row in sorted(lefts.items()) if row.foreign_key == key and row.value is not None],
        )
        for key, value in rights.items()
        if value is not None
    }
