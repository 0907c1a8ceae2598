"""The outcome of a trace by the stages in memory, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import CHANGE, table
from fkjoin.stages import split_rows
from tests.support.replay.memory_join import MemoryJoin
from tests.support.replay.traces import Trace, TraceChange, joined_value, outcome

_LOG = versions.identity("trace")


def replay_in_memory(trace: Trace, events_per_batch: int = 1) -> list[dict[str, Any]]:
    return outcome(_results(trace, events_per_batch))


def _results(trace: Trace, events_per_batch: int) -> Iterator[tuple[int, str, Any, int]]:
    join = MemoryJoin(trace.how, shared_log=True)
    for batch in trace.batches(events_per_batch):
        lefts = _changes([event for event in batch if event.left])
        rights = _changes([event for event in batch if not event.left])
        results = join.process(lefts, rights)
        values = split_rows(as_bytes(results.column("value").combine_chunks()))
        columns = (results.column("key"), *values, results.column("ts"))
        for key, left, right, ts in zip(*(column.to_pylist() for column in columns), strict=True):
            value = left and joined_value(left, right)
            yield batch[-1].index, key.decode(), value, ts


def _changes(events: list[TraceChange]) -> pa.Table:
    """The events as ``CHANGE``; their place in the trace is their version."""
    return table(
        CHANGE,
        as_bytes(pa.array([event.key for event in events], pa.string())),
        as_bytes(pa.array([event.foreign_key for event in events], pa.string())),
        as_bytes(pa.array([event.value for event in events], pa.string())),
        versions.encode(_LOG, [np.array([event.index for event in events], np.int64)]),
        np.array([event.ts for event in events], np.int64),
    )
