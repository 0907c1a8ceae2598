"""Work that a Python worker does for itself, whatever its tasks are."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

import pyarrow as pa

LARGE = 8 << 20
"""Bytes of a task's input from which on it is worth the time to give back its free memory."""


@cache
def settle() -> None:
    """Take what is loaded by now out of the garbage collector's sight.

    Spark has it look at everything after each task.
    """
    gc.collect()
    gc.freeze()


def releasing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of work that is ``settle``d; when there are no more of them, ``give_back``."""
    settle()
    done = 0
    for batch in batches:
        done += batch.nbytes
        yield batch
    give_back(done)


def give_back(done: int) -> None:
    """Free memory goes back to the system after ``LARGE`` input, of so many bytes.

    The worker may have nothing to do for a while, and others need theirs.
    """
    if done >= LARGE:
        pa.default_memory_pool().release_unused()
