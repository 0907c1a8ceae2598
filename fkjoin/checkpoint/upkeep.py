"""Work on a checkpoint whose query is stopped: verify it, rebuild its indexes, rescale it."""

from __future__ import annotations

import contextlib
import functools
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.checkpoint.damage import damaged
from fkjoin.checkpoint.files import query_id
from fkjoin.checkpoint.saved import check_logs, in_buckets, in_session, on_logs, saved_stores
from fkjoin.checkpoint.saved_log import SavedLog
from fkjoin.checkpoint.stores import SavedStore, with_stores
from fkjoin.codec import combined_key, records, tags
from fkjoin.codec.arrays import untagged
from fkjoin.errors import FkJoinError, first_line
from fkjoin.sessions.abilities import RESCALE
from fkjoin.spark.buckets import bucket_ids, buckets_of, places_of, spark_hash
from fkjoin.spark.identity import bucket_folder, home_of
from fkjoin.spark.index_home import index_home
from fkjoin.spark.spark_api import checkpoint_manager, require_classic
from fkjoin.spark.specs import STAGES, StageSpec
from fkjoin.spark.specs.shown import pages_of
from fkjoin.state import BucketStore, StateError
from fkjoin.state.segments import Meta

PROBLEMS = "bucket int, problem string, combined binary"
"""Columns of ``Examine``: problems, and combined keys to compare stores of other stages by."""

SHOWN = 5
"""Number of keys that are named in a problem."""

_BY_COMMAND = (
    "run fkjoin state on a machine that reaches the checkpoint; it starts a session of its own"
)


class Verified(NamedTuple):
    """Problems of a state, and the number of stores that were read."""

    problems: list[str]
    stores: int


def verify(spark: SparkSession, checkpoint: str | Path, *, batch: int | None = None) -> list[str]:
    """Find what is wrong with the state after a committed batch; empty if nothing is."""
    return verified(spark, checkpoint, batch=batch).problems


def verified(spark: SparkSession, checkpoint: str | Path, *, batch: int | None = None) -> Verified:
    """Examine the state after a committed batch.

    Every log is read and counted, every record decoded and looked for in its bucket, every bucket
    in its partition.  In a fused join there is one subscription for each live left row with a
    foreign key.
    """
    require_classic(spark, "verify", _BY_COMMAND)
    check_logs(spark, str(checkpoint))
    files = in_session(spark, checkpoint)
    try:
        return with_stores(
            files, batch, lambda stores: Verified(_wrong(spark, stores), len(stores))
        )
    except FkJoinError:
        raise
    except Exception as error:
        raise damaged(files.checkpoint, error) from error


def rebuild(spark: SparkSession, checkpoint: str | Path, index_dir: str) -> list[Path]:
    """Rebuild the local indexes of all of the checkpoint's stores, on this machine.

    Returns their folders.
    """
    require_classic(spark, "rebuild", _BY_COMMAND)
    query = query_id(spark, str(checkpoint))
    homes = []
    for store in saved_stores(spark, checkpoint):
        facts, _ = store.identity
        home = index_home(index_dir, query, facts["join"], facts["stage"])
        on_logs(spark, store, functools.partial(_rebuilt, home), PROBLEMS).count()
        homes.append(home)
    return homes


def _rebuilt(home: Path, log: SavedLog) -> Iterator[pa.RecordBatch]:
    """Make the indexes of a partition's buckets, in the folders in which queries look for them."""
    for bucket, meta in log.metas().items():
        folder = home / bucket_folder(bucket, home_of(Meta.decode(meta).identity))
        shutil.rmtree(folder, ignore_errors=True)
        log.store(bucket, meta, folder).close()
    yield from ()


def rescale(spark: SparkSession, checkpoint: str | Path, partitions: int) -> None:
    """Spread the state of a stopped query over so many partitions, by Spark's offline repartition.

    Buckets stay what they are.  The checkpoint gets one more batch, which holds the moved state;
    the query continues from it.  Raises ``FkJoinError``.
    """
    require_classic(spark, "rescale", _BY_COMMAND)
    RESCALE.require(spark)
    stores = saved_stores(spark, checkpoint)
    counts = {store.buckets for store in stores}
    if partitions < 1 or any(buckets % partitions for buckets in counts):
        even, buckets = math.gcd(*counts), min(counts)
        fitting = ", ".join(str(number) for number in range(1, even + 1) if even % number == 0)
        raise FkJoinError(
            f"partitions: {buckets} buckets cannot be spread evenly over {partitions}; choose one "
            f"of {fitting} (how many buckets a checkpoint has is decided at its first start, by "
            "spark.fkjoin.buckets)"
        )
    if all(len(store.partitions) == partitions for store in stores):
        raise FkJoinError(f"partitions: {checkpoint} has {partitions} already")
    try:
        checkpoint_manager(spark).repartition(str(checkpoint), partitions)
    except Exception as error:
        reason = first_line(error)
        raise FkJoinError(
            f"checkpoint {checkpoint} is not rescaled: {reason} (is its query stopped, and its "
            "last batch finished?)"
        ) from error


@dataclass(frozen=True)
class Examine:
    """Examination of a bucket's store: its problems, in ``PROBLEMS``.

    To compare, also the subscriptions that it has or expects.
    """

    stage: str
    buckets: int
    rights: int = 0
    """Number of right tables of a multi-way join."""
    spread: int = 1
    """Number of buckets that a foreign key's subscriptions are spread over.

    Its right row is copied to each.
    """

    def __call__(self, store: BucketStore, bucket: int) -> Iterator[pa.RecordBatch]:
        try:
            if (difference := store.disagreement()) is not None:
                yield _problem(bucket, difference)
            for problem in self._misplaced(store, bucket):
                yield _problem(bucket, problem)
            for page in STAGES.get(self.stage, StageSpec).subscriptions(store, self.rights):
                number = pa.array(np.full(len(page), bucket, np.int32))
                columns = [number, pa.nulls(len(page), pa.string()), page]
                yield pa.record_batch(columns, names=["bucket", "problem", "combined"])
        except (StateError, FkJoinError) as error:
            yield _problem(bucket, str(error))

    def _misplaced(self, store: BucketStore, bucket: int) -> Iterator[str]:
        """Find records whose key belongs to another bucket."""
        ids = bucket_ids(self.buckets)
        number = ids.index(bucket) if bucket in ids else None
        for tag, (kind, _) in STAGES.get(self.stage, StageSpec).forms.items():
            for page in pages_of(store, tag, None):
                records.decode(page.values)  # raises if a record is damaged
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
                    yield (
                        f"{len(wrong)} records of kind {kind} belong to another bucket, "
                        f"first {first!r}"
                    )


def _problem(bucket: int, problem: str) -> pa.RecordBatch:
    columns = [pa.array([bucket], pa.int32()), pa.array([problem]), pa.nulls(1, pa.binary())]
    return pa.record_batch(columns, names=["bucket", "problem", "combined"])


def _wrong(spark: SparkSession, stores: list[SavedStore]) -> list[str]:
    """Find what is wrong with stores, and with one compared to another."""
    # An operator may stand twice in a query, under one name.
    examined: dict[str, list[DataFrame]] = {}
    with contextlib.ExitStack() as caches:
        for store in stores:
            frame = _examined(spark, store).cache()
            caches.callback(frame.unpersist)
            examined.setdefault(store.name, []).append(frame)
        return list(_problems_of(stores, examined))


def _problems_of(
    stores: list[SavedStore], examined: Mapping[str, list[DataFrame]]
) -> Iterator[str]:
    for name, frames in examined.items():
        for frame in frames:
            yield from _problems(name, frame)
    fused = [store for store in stores if store.identity[1].get("fused")]
    for join, stage in dict.fromkeys((store.operator_name, store.stage) for store in fused):
        lefts = examined[f"{join}-{stage}"]
        for other in STAGES.get(stage, StageSpec).subscribed_in:
            name = f"{join}-{other}"
            rights = examined.get(name, [])  # a join has one of these stages
            if rights and len(rights) != len(lefts):
                yield f"{name}: the query has {len(rights)} of it, and {len(lefts)} of {stage}"
                continue
            # Stores of one name follow each other as the operators do in the query.
            for left, right in zip(lefts, rights, strict=False):
                yield from _compared(name, left, right)


def _examined(spark: SparkSession, store: SavedStore) -> DataFrame:
    """Examine the buckets of a store, and whether they are in their partitions."""
    rights = 0 if store.multi_join is None else len(store.multi_join.rights)
    examine = Examine(store.stage, store.buckets, rights, store.spread)
    partitions = len(store.partitions)

    def of_partition(log: SavedLog) -> Iterator[pa.RecordBatch]:
        partition = int(PurePosixPath(log.folder).name)
        for bucket in log.metas():
            if spark_hash(bucket) % partitions != partition:
                problem = f"lies in partition {partition}, where no query looks for it"
                yield _problem(bucket, problem)
        yield from in_buckets(examine)(log)

    return on_logs(spark, store, of_partition, PROBLEMS)


def _problems(name: str, frame: DataFrame) -> Iterator[str]:
    for row in frame.where("problem is not null").orderBy("bucket").collect():
        yield f"store {name}, bucket {row.bucket}: {row.problem}"


def _compared(name: str, rekeyed: DataFrame, subscribed: DataFrame) -> Iterator[str]:
    """Find subscriptions that are missing, and those that should not be there."""
    expected, stored = (
        frame.where("combined is not null").select("combined") for frame in (rekeyed, subscribed)
    )
    for says, some in (
        ("lacks the subscriptions of", expected.exceptAll(stored)),
        ("has subscriptions without a live left row:", stored.exceptAll(expected)),
    ):
        if count := some.count():
            rows = some.orderBy(F.col("combined")).limit(SHOWN).collect()
            first = ", ".join(_combined(bytes(row[0])) for row in rows)
            yield f"store {name} {says} {count} left rows, first {first}"


def _combined(data: bytes) -> str:
    size = int.from_bytes(data[:4], "big")
    return f"{data[4 + size :]!r} under {data[4 : 4 + size]!r}"
