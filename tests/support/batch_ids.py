"""Names of batches, each of which follows the one before it."""

from __future__ import annotations

from fkjoin.sinks import BatchId


def batch_id(number: int, began_ms: int | None = None, query: str = "q") -> BatchId:
    """Name a batch that began 100 ms after the one before; ``began_ms``: it is another one of that number."""
    time = 100 * (number + 1) if began_ms is None else began_ms
    return BatchId(query, number, time, 100 * number if number else None)
