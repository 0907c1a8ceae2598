"""Rows of a source → the greatest of their timestamps, told to all buckets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.spark.buckets import BATCH_MS, bucket_ids
from fkjoin.spark.packing import Batches, counter
from fkjoin.spark.worker import settle
from fkjoin.stages.stream_time import CAME


@dataclass(frozen=True)
class GreatestTime:
    """Rows ``ts, problem`` → envelopes, one for each bucket.

    Each has the greatest timestamp of the rows that can be used.
    """

    number: int
    """The source's number."""
    buckets: int
    ahead: int | None = None
    """The microseconds by which a timestamp may be ahead of the batch: see ``UntilBatchTime``."""
    until: int | None = None
    """The greatest timestamp that counts."""

    def __call__(self, batches: Batches) -> Batches:
        settle()
        all_most = [self._most(batch) for batch in batches]
        greatest = [most for most in all_most if most is not None]
        if greatest:
            yield counter(f"{CAME}{self.number}", max(greatest), bucket_ids(self.buckets))

    def _most(self, batch: pa.RecordBatch) -> int | None:
        times = batch.column("ts").filter(pc.is_null(batch.column("problem")))
        if self.until is not None:
            times = times.filter(pc.less_equal(times, self.until))
        most: int | None = pc.max(times).as_py()
        return most


@dataclass(frozen=True)
class UntilBatchTime:
    """Rows as workers read them, with their batch's time → envelopes of ``GreatestTime``.

    Only timestamps that count are among them.
    """

    reading: Any
    """``JsonLines``, or another reader that packs."""
    latest: GreatestTime

    def __call__(self, batches: Batches) -> Batches:
        some = (batch for batch in batches if batch.num_rows)
        first = next(some, None)
        if first is not None:
            assert self.latest.ahead is not None
            until = 1000 * first.column(BATCH_MS)[0].as_py() + self.latest.ahead
            undated = (batch.drop_columns([BATCH_MS]) for batch in itertools.chain([first], some))
            yield from self.reading.packing(replace(self.latest, until=until))(undated)
