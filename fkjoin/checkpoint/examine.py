"""Examination of a checkpoint's stores, bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fkjoin.codec import combined_key, records, tags
from fkjoin.codec.arrays import untagged
from fkjoin.errors import FkJoinError
from fkjoin.spark.buckets import bucket_ids, buckets_of, places_of
from fkjoin.spark.specs import STAGES, StageSpec
from fkjoin.spark.specs.shown import pages_of
from fkjoin.stages.invariants import expected_subscriptions, live_subscriptions
from fkjoin.state import BucketStore, StateError

PROBLEMS = "store string, bucket int, problem string, combined binary"
"""Columns of ``Examine``: problems, and the combined keys that stores of other stages are compared by."""


@dataclass(frozen=True)
class Examine:
    """Examination of a bucket's store: its problems; to compare, the subscriptions that it has or expects (``PROBLEMS``)."""

    name: str
    stage: str
    buckets: int
    rights: int = 0
    """Number of right tables of a multi-way join."""
    spread: int = 1
    """Number of buckets that a foreign key's subscriptions are spread over, and its right row is copied to."""

    def __call__(self, store: BucketStore, bucket: int) -> Iterator[pa.RecordBatch]:
        yield self._batch(bucket, [], [])
        try:
            if (found := store.disagreement()) is not None:
                yield self._batch(bucket, [found], [])
            for problem in self._misplaced(store, bucket):
                yield self._batch(bucket, [problem], [])
            if self.stage in ("rekey", "scatter", "subscription", "children"):
                sends = self.stage in ("rekey", "scatter")
                combined = expected_subscriptions(store, self.rights) if sends else live_subscriptions(store)
                for page in combined:
                    yield self._batch(bucket, [], page.to_pylist())
        except (StateError, FkJoinError) as error:
            yield self._batch(bucket, [str(error)], [])

    def _misplaced(self, store: BucketStore, bucket: int) -> Iterator[str]:
        """Find records whose key belongs to another bucket."""
        ids = bucket_ids(self.buckets)
        number = ids.index(bucket) if bucket in ids else None
        for tag, (kind, _) in STAGES.get(self.stage, StageSpec).forms.items():
            for page in pages_of(store, tag, None):
                records.decode(page.values)
                bare = untagged(page.keys)
                by, keys = combined_key.decode(bare) if tag == tags.SUBSCRIBER else (bare, None)
                if number is None:
                    misplaced = np.ones(len(by), bool)
                elif keys is not None:
                    misplaced = places_of(by, keys, self.buckets, self.spread) != number
                else:
                    copies = self.spread if tag == tags.RIGHT else 1
                    misplaced = (number - buckets_of(by, self.buckets)) % self.buckets >= copies
                wrong = np.flatnonzero(misplaced)
                if len(wrong):
                    first = by[int(wrong[0])].as_py()
                    yield f"{len(wrong)} records of kind {kind} belong to another bucket, first {first!r}"

    def _batch(self, bucket: int, problems: list[str], combined: list[bytes]) -> pa.RecordBatch:
        rows = len(problems) + len(combined)
        columns = [
            pa.repeat(self.name, rows),
            pa.array(np.full(rows, bucket, np.int32)),
            pa.array([*problems, *[None] * len(combined)], pa.string()),
            pa.array([*[None] * len(problems), *combined], pa.binary()),
        ]
        return pa.record_batch(columns, names=[column.split()[0] for column in PROBLEMS.split(", ")])
