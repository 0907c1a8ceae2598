"""What a Python worker does for itself, whatever its tasks are."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

import pyarrow as pa

LARGE = 8 << 20
"""Bytes of batches that leave so much free memory behind that it is worth the time to give it back."""


@cache
def settle() -> None:
    """Take what is loaded by now out of the garbage collector's sight: Spark has it look at everything after each task."""
    gc.collect()
    gc.freeze()


def releasing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches.  When there are no more of them, and they were ``LARGE``, free memory goes back to the system: the worker
    has nothing to do until the next stage of its kind, and others need theirs.
    """
    done = 0
    for batch in batches:
        done += batch.nbytes
        yield batch
    if done >= LARGE:
        pa.default_memory_pool().release_unused()
