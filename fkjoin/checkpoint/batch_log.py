"""Batches of a checkpoint's query: which have begun, which are done, and when each began.

Spark logs a batch before any sink gets it, with the time when it began.  A repeated batch has the
same time, and so has the copy of the last batch that Spark writes when it rescales a checkpoint.
Another batch has another time: after a restore from a backup, batches with the same numbers are
other cuts of the input.  So a batch is known by its time, and the number is for people.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import files_at
from fkjoin.errors import FkJoinError


@dataclass(frozen=True)
class Mark:
    """A batch, as a sink remembers it."""

    number: int
    began_ms: int | None
    """Milliseconds since 1970 when the batch began; None before the first batch."""


@dataclass(frozen=True)
class BatchLog:
    """The logs of a query, read while the query stands still."""

    spark: SparkSession
    checkpoint: str

    @cached_property
    def last(self) -> int:
        """The last batch that has begun; -1 without any."""
        return self._last("offsets")

    @cached_property
    def done(self) -> int:
        """The last batch that is done: the state is that after it."""
        return self._last("commits")

    def mark(self, number: int) -> Mark:
        """The batch; without its time if there is none, or Spark has deleted what it logged."""
        with contextlib.suppress(FileNotFoundError):
            log = files_at(self.spark, self.checkpoint).read(f"offsets/{number}")
            for line in log.decode().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    return Mark(number, int(json.loads(line)["batchTimestampMs"]))
        return Mark(number, None)

    def _last(self, log: str) -> int:
        return max(files_at(self.spark, self.checkpoint).numbers(log), default=-1)


def is_taken(target: str, last: Mark | None, batch: Mark, previous_ms: int | None) -> bool:
    """Tell whether a target, whose last batch of the query is ``last``, has taken the batch.

    ``previous_ms``: when the batch before it began.  ``FkJoinError`` unless the batch follows the
    last one.
    """
    last_ms = None if last is None else last.began_ms
    if last_ms is not None and last_ms == batch.began_ms:
        return True
    if last_ms != previous_ms:
        raise another_run(target, last, batch)
    return False


def another_run(target: str, last: Mark | None, batch: Mark) -> FkJoinError:
    """Make the error of a batch that does not follow the last one of a target.

    Writing it would mix two runs of a query.
    """
    held = "no batch" if last is None or last.number < 0 else f"batch {last.number}"
    number = f"batch {batch.number}"
    if held == number:
        number = "another batch of that number"
    return FkJoinError(
        f"{target} has {held} of the query, which is about to write {number}: the query runs "
        "twice, or the place or the checkpoint was restored meanwhile. Nothing was written. Stop "
        "the other run, and start the query again"
    )
