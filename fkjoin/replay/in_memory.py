"""``fkjoin replay``: what the join answers to a trace, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import CHANGE, RESULT, table
from fkjoin.replay.memory_join import MemoryJoin
from fkjoin.replay.traces import Trace, TraceChange, dumps
from fkjoin.stages import split_rows

_LOG = versions.identity("trace")


def changes(events: Iterable[TraceChange]) -> pa.Table:
    """The events as ``CHANGE``; their place in the trace is their version."""
    rows = list(events)
    return table(
        CHANGE,
        as_bytes(pa.array([event.key for event in rows], pa.string())),
        as_bytes(pa.array([event.foreign_key for event in rows], pa.string())),
        as_bytes(pa.array([event.value for event in rows], pa.string())),
        versions.encode(_LOG, [np.array([event.index for event in rows], np.int64)]),
        np.array([event.ts for event in rows], np.int64),
    )


def replay_in_memory(trace: Trace, events_per_batch: int = 1) -> Iterator[str]:
    """Run the trace through the stages in memory; yields the lines of ``.expect.jsonl``."""
    join = MemoryJoin(trace.how, shared_log=True)
    final: dict[str, str] = {}
    for batch in trace.batches(events_per_batch):
        known = [event for event in batch if event.key is not None]
        results = join.process(
            changes(event for event in known if event.left),
            changes(event for event in known if not event.left),
            now_ms=0,
        )
        yield from result_lines(batch[-1].index, outputs(results), final)
    yield final_line(final)


def outputs(results: pa.Table) -> Iterator[tuple[str, str | None, int]]:
    """Key, value (JSON text of the two rows) and timestamp of each result of JSON rows."""
    assert results.schema.equals(RESULT)
    value = results.column("value").combine_chunks()
    left, right = split_rows(as_bytes(value))
    columns = (results.column("key"), left, right, results.column("ts"))
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    for key, one, other, ts in rows:
        yield key.decode(), None if one is None else joined_text(one.decode(), other and other.decode()), ts


def joined_text(left: str, right: str | None) -> str:
    """The joined value as JSON text, from the texts of its rows."""
    return f'{{"left": {left}, "right": {"null" if right is None else right}}}'


def result_lines(after: int, results: Iterable[tuple[str, str | None, int]], final: dict[str, str]) -> Iterator[str]:
    """One line per result of the batch that ends with event ``after``; ``final`` is brought up to date."""
    for key, value, ts in results:
        head = f'{{"after": {after}, "key": {dumps(key)}, "value": '
        if value is None:
            final.pop(key, None)
            yield head + "null}"
        else:
            final[key] = value
            yield f'{head}{value}, "ts": {ts}}}'


def final_line(final: dict[str, Any]) -> str:
    """The last line: the joined table at the end."""
    return '{"final": {' + ", ".join(f"{dumps(key)}: {value}" for key, value in final.items()) + "}}"
