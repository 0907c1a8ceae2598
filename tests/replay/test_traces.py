"""The golden traces through the stages in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import CHANGE
from fkjoin.stages.join_rows import split_rows
from tests.support.replay import traces
from tests.support.replay.memory_join import MemoryJoin
from tests.support.sampling import sampled
from tests.support.versions import message_table, version


def replay_in_memory(trace: traces.Trace, events_per_batch: int = 1) -> list[dict[str, Any]]:
    return traces.outcome(_results(trace, events_per_batch))


def _results(trace: traces.Trace, events_per_batch: int) -> Iterator[tuple[int, str, Any, int]]:
    join = MemoryJoin(trace.how, shared_log=True)
    for batch in trace.batches(events_per_batch):
        lefts = _changes([event for event in batch if event.left])
        rights = _changes([event for event in batch if not event.left])
        results = join.process(lefts, rights)
        values = split_rows(as_bytes(results.column("value").combine_chunks()))
        columns = (results.column("key"), *values, results.column("ts"))
        for key, left, right, ts in zip(*(column.to_pylist() for column in columns), strict=True):
            value = left and traces.joined_value(left, right)
            yield batch[-1].index, key.decode(), value, ts


def _changes(events: list[traces.TraceChange]) -> pa.Table:
    """The events as ``CHANGE``; their place in the trace is their version."""
    rows = []
    for event in events:
        rows.append((event.key, event.foreign_key, event.value, version(event.index), event.ts))
    return message_table(CHANGE, rows)


def test_there_are_traces() -> None:
    assert len(traces.trace_files()) == 70


@pytest.mark.parametrize("path", traces.trace_files(), ids=lambda path: path.name.split(".")[0])
def test_one_event_per_batch_gives_the_expected_results(path: Path) -> None:
    assert replay_in_memory(traces.read_trace(path)) == traces.expected(path)


@pytest.mark.faults
@pytest.mark.parametrize("size", sampled([2, 3, 7, 1000], [7]))
def test_any_cut_gives_the_final_table_and_a_subsequence(size: int) -> None:
    for path in traces.trace_files():
        traces.assert_agrees(replay_in_memory(traces.read_trace(path), size), traces.expected(path))
