"""Rows of a source → the greatest of their timestamps, told to all buckets."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.spark.buckets import bucket_ids
from fkjoin.spark.packing import Batches
from fkjoin.spark.worker import settle
from fkjoin.stages.stream_time import CAME


@dataclass(frozen=True)
class GreatestTime:
    """Rows ``ts, problem`` → envelopes with the greatest timestamp of those that can be used, one for each bucket."""

    number: int
    """The source's number."""
    buckets: int

    def __call__(self, batches: Batches) -> Batches:
        settle()
        found = [
            most
            for batch in batches
            if (most := pc.max(batch.column("ts").filter(pc.is_null(batch.column("problem")))).as_py()) is not None
        ]
        if found:
            numbers = [int(number) for number in bucket_ids(self.buckets)]
            count = len(numbers)
            yield pa.record_batch(
                {
                    "bucket": pa.array(numbers, pa.int32()),
                    "payload": pa.nulls(count, pa.binary()),
                    "counter": pa.array([f"{CAME}{self.number}"] * count),
                    "count": pa.array([max(found)] * count, pa.int64()),
                }
            )
