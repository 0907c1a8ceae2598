"""Batches of a checkpoint's query: which have begun, which are done, and when each began.

Spark writes that a batch has begun before any sink gets it.  So a sink that has a later batch of the query, or one of that
number that began at another time, was written to from a later or another state of the checkpoint.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import hadoop, numbered, read_file
from fkjoin.errors import FkJoinError


@dataclass(frozen=True)
class Mark:
    """A batch, as a sink remembers it."""

    number: int
    began_ms: int | None
    """Time when Spark wrote that it begins, the same for a repeated batch; None where an older release wrote the sink."""

    def is_same(self, other: Mark) -> bool:
        return self.number == other.number and (None in (self.began_ms, other.began_ms) or self.began_ms == other.began_ms)


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
        """The batch; without its time where Spark has deleted what it wrote of it."""
        return Mark(number, began_ms(self.spark, self.checkpoint, number))

    def has(self, mark: Mark) -> bool:
        """Tell whether it is a batch of this checkpoint, as far as can be told."""
        return mark.number <= self.last and mark.is_same(self.mark(mark.number))

    def _last(self, log: str) -> int:
        return max((number for number, _ in numbered(self.spark, f"{self.checkpoint}/{log}")), default=-1)


def began_ms(spark: SparkSession, checkpoint: str, number: int) -> int | None:
    """Return when the batch began; None where that is no longer known."""
    path, files = hadoop(spark, f"{checkpoint}/offsets/{number}")
    if not files.exists(path):
        return None
    for line in read_file(path, files).decode().splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["batchTimestampMs"])
    return None


def has_batch(place: str, last: Mark | None, batch: Mark) -> bool:
    """Tell whether a sink whose last batch of the query is ``last`` has the batch already.

    ``FkJoinError`` if it has another batch of that number, or a later one: to leave this one out would lose its rows.
    """
    if last is None or last.number < batch.number:
        return False
    if last.is_same(batch):
        return True
    what = "another batch of that number" if last.number == batch.number else f"batch {batch.number}"
    raise FkJoinError(
        f"{place} has batch {last.number} of the query already, which is about to write {what}: the query runs twice, or its "
        "checkpoint was set back while it ran. Nothing was written. Stop the other run, and start the query again"
    )
