"""Two queries that write the same rows at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

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
