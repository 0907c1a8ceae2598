"""Two queries that write the same rows at the same time, and a writer that stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from fkjoin.sinks import TableSink
from tests.support.batch_ids import batch_id


def write_at_once(make: Callable[[], TableSink], batch: Callable[..., tuple[pa.Table, pa.Table]], batches: int) -> None:
    """Let the queries ``one`` and ``other`` write so many batches of the rows ``a`` and ``b``, each by a sink of its own."""
    begin, errors = threading.Barrier(2), list[Exception]()

    def write(query: str) -> None:
        made = make()
        begin.wait(30)
        try:
            for number in range(batches):
                made.apply(batch_id(number, query=query), *batch(a=number, b=number))
        except Exception as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(query,)) for query in ("one", "other")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert errors == []


def stands_still(monkeypatch: pytest.MonkeyPatch, slow: TableSink, between: list[Callable[[], object]]) -> None:
    """Let the sink call these functions, each once, between its look at the table and its commit."""
    kind: Any = type(slow)
    opened = kind._opened

    def standing_still(sink: TableSink) -> Any:
        table = opened(sink)
        while sink is slow and between:
            between.pop(0)()
        return table

    monkeypatch.setattr(kind, "_opened", standing_still)
