"""Two queries that write the same rows at the same time, and a writer that stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from fkjoin.sinks import TableSink
from tests.support.batch_ids import batch_id


def write_at_once(make: Callable[[], TableSink], batch: Callable[..., tuple[pa.Table, pa.Table]], batches: int) -> None:
    """Let the queries ``one`` and ``other`` write so many batches of the rows ``a`` and ``b``, each by a sink of its own."""
    begin = threading.Barrier(2)

    def write(query: str) -> None:
        made = make()
        begin.wait(30)
        for number in range(batches):
            made.apply(batch_id(number, query=query), *batch(a=number, b=number))

    with ThreadPoolExecutor() as pool:
        for writer in [pool.submit(write, query) for query in ("one", "other")]:
            writer.result(120)


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
