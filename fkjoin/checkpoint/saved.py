"""State as of a committed batch, read from a checkpoint without the query that writes it.

Spark's own source of state (``statestore``) reads the buckets' logs; each is replayed into a store of its own in a
temporary folder, in parallel.  Nothing here writes to a checkpoint.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructType

from fkjoin.checkpoint.as_of import batch_as_of
from fkjoin.checkpoint.damage import damaged
from fkjoin.checkpoint.entries import ENTRIES, Entries, StoredRows
from fkjoin.checkpoint.files import hadoop
from fkjoin.checkpoint.plain_files import checkpoints_in
from fkjoin.checkpoint.snapshot_log import SnapshotLog
from fkjoin.checkpoint.stores import SavedRecords, kept_as
from fkjoin.errors import FkJoinError, first_line, nearest
from fkjoin.sessions.abilities import READ_STATE
from fkjoin.sessions.own_folder import held_folder
from fkjoin.spark.identity import bucket_folder, home_of, read_identity
from fkjoin.spark.schemas import kept_type
from fkjoin.state import BucketStore
from fkjoin.state.segments import Meta

_META = -1
"""The number that the meta record goes by among the segments."""

_Read = Callable[[BucketStore, int], Iterator[pa.RecordBatch]]
"""Function from a bucket's store and its id to batches of what is wanted, at least one."""


@dataclass(frozen=True)
class OnBucket:
    """Function for ``applyInArrow`` that calls ``read`` with a bucket's store.

    ``index``: the folder of the store's index, to be made anew and kept; by default one that is removed afterwards.
    """

    read: _Read
    index: str | None = None

    def __call__(self, group: pa.Table) -> pa.Table:
        bucket = group.column("bucket")[0].as_py()
        numbers, data = group.column("number").to_pylist(), group.column("data").to_pylist()
        segments = dict(zip(numbers, data, strict=True))
        meta = segments.pop(_META)
        identity = Meta.decode(meta).identity
        with contextlib.ExitStack() as stack:
            if self.index is None:
                folder = stack.enter_context(held_folder())
            else:
                folder = Path(self.index) / bucket_folder(bucket, home_of(identity))
                shutil.rmtree(folder, ignore_errors=True)
            store = stack.enter_context(BucketStore(SnapshotLog(meta, segments.get), folder, identity=identity))
            return pa.Table.from_batches(list(self.read(store, bucket)))


@dataclass(frozen=True)
class SavedStore(SavedRecords):
    """A stage's store in a checkpoint."""

    spark: SparkSession
    checkpoint: str
    operator: int
    partitions: int
    batch: int | None
    metas: tuple[Row, ...]
    """Rows ``bucket, partition_id, data``."""

    @cached_property
    def identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Facts and about, as the job stored them."""
        return read_identity(Meta.decode(bytes(self.metas[0].data)).identity)

    def logs(self) -> list[Meta]:
        """The buckets' meta records."""
        return [Meta.decode(bytes(row.data)) for row in self.metas]

    def on_buckets(
        self, read: _Read, schema: StructType | str, *, buckets: list[int] | None = None, index: str | None = None
    ) -> DataFrame:
        """Call ``read`` for each bucket, or those with the ids ``buckets``; return one DataFrame."""
        meta = _variable(self.spark, self.checkpoint, self.operator, "meta", self.batch)
        log = _variable(self.spark, self.checkpoint, self.operator, "log", self.batch)
        rows = meta.selectExpr("key.bucket", f"{_META}L as number", "value.data").unionAll(
            log.selectExpr("key.bucket", "user_map_key.number", "user_map_value.data")
        )
        if buckets is not None:
            rows = rows.where(F.col("bucket").isin(buckets))
        on_bucket = OnBucket(read, index)
        return rows.groupBy("bucket").applyInArrow(lambda group: on_bucket(group), schema)  # PySpark counts arguments

    def entries(self) -> DataFrame:
        """Every record of the store, readable (``ENTRIES``)."""
        return self.on_buckets(Entries(self.described()), ENTRIES)

    def in_bucket(self, bucket: int, names: tuple[bytes, ...]) -> list[dict[str, Any]]:
        rows = self.on_buckets(Entries(self.described(), names), ENTRIES, buckets=[bucket]).collect()
        return [row.asDict() for row in rows]


class SavedState:
    """The stores of a checkpoint after its last committed batch, or after ``batch``."""

    def __init__(self, spark: SparkSession, checkpoint: str | Path, batch: int | None = None) -> None:
        """Raises ``FkJoinError`` when there is no state of such a batch, ``SessionError`` when this Spark cannot read any."""
        READ_STATE.require(spark)
        self.spark, self.checkpoint, self.batch = spark, str(checkpoint), batch
        operators = self._operators()
        self.first, self.last = (max(row.minBatchId for row in operators), max(row.maxBatchId for row in operators))
        if batch is not None and not self.first <= batch <= self.last:
            raise FkJoinError(f"batch: {self.checkpoint} has batches {self.first} to {self.last}, not {batch}")
        found = [self._store(row) for row in operators]
        self.stores = [store for store in found if store is not None]
        if not self.stores:
            raise FkJoinError(f"checkpoint {self.checkpoint} has no store of fkjoin with anything in it")

    def results(self, name: str) -> SavedStore:
        """The store that keeps the rows of the table materialized as ``name``."""
        return kept_as(name, self.stores, self.checkpoint)

    def store(self, name: str) -> SavedStore:
        stores = {store.name: store for store in self.stores}
        if name not in stores:
            raise FkJoinError(f"there is no store {name!r} in {self.checkpoint}; {nearest(name, list(stores))}")
        return stores[name]

    def _operators(self) -> list[Row]:
        rows: list[Row] = []
        reason = "it has no folder state/"
        place, files = hadoop(self.spark, f"{self.checkpoint}/state")
        try:
            if files.exists(place):  # else Spark would warn of it in its log
                rows = self.spark.read.format("state-metadata").load(self.checkpoint).collect()
        except Exception as error:
            reason = first_line(error)
        ours = [row for row in rows if row.operatorName.startswith("transformWithState") and row.stateStoreName == "default"]
        if not ours:
            raise FkJoinError(
                f"checkpoint {self.checkpoint} has no state of fkjoin{checkpoints_in(self.checkpoint)}: give the "
                f"checkpointLocation of a query that has run (of a job: CHECKPOINT/sink-NAME or sinks-TABLE). ({reason})"
            )
        return sorted(ours, key=lambda row: -int(row.operatorId))  # Spark counts from the sink

    def _store(self, row: Row) -> SavedStore | None:
        """None where another's operator keeps its state, or nothing was ever written."""
        try:
            metas = _variable(self.spark, self.checkpoint, row.operatorId, "meta", self.batch)
            found = metas.selectExpr("key.bucket", "partition_id", "value.data").collect()
        except Exception as error:
            if "STDS_INVALID_OPTION_VALUE" in str(error):  # it has no such variable
                return None
            raise damaged(self.checkpoint, error) from error
        if not found:
            return None
        return SavedStore(self.spark, self.checkpoint, row.operatorId, row.numPartitions, self.batch, tuple(found))


def read_state(
    spark: SparkSession,
    checkpoint: str | Path,
    name: str,
    *,
    batch: int | None = None,
    as_of: datetime | str | None = None,
) -> DataFrame:
    """Read the table that was materialized under a name, as of a committed batch.

    An aggregate is materialized under its own name, unless it was given another; so are ``with_children``, ``merge`` and
    ``flat_map``.  The query may be running or not.  Spark keeps the state of the last 100 batches
    (``spark.sql.streaming.minBatchesToRetain``).

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session that reads the state.
    checkpoint : str or pathlib.Path
        The checkpoint folder of the query.
    name : str
        The name that ``Table.materialize`` was given, or the table's.
    batch : int, optional
        The number of the batch; the last committed one if left out.
    as_of : datetime.datetime or str, optional
        A time, in place of ``batch``: of the newest batch that was committed at or before it.  Without a zone it is of the
        session's.  A batch was committed when its file in the folder ``commits`` was last written.  So a copy of
        a checkpoint has the times of the copying unless it keeps those of files (``cp -p``).

    Returns
    -------
    pyspark.sql.DataFrame
        The key's columns, the row's, the versions and ``_timestamp``.  Versions are arrays of bigint: ``_left_version`` and
        ``_right_version`` of a join, null without a right row; ``_version`` of other tables.  ``_timestamp`` is a bigint in the
        unit of the sources (topics: microseconds), null without one.

    Raises
    ------
    FkJoinError
        If there is no such table, or no such batch any more.

    Examples
    --------
    >>> fkjoin.read_state(spark, "ck/joined", "joined").show()
    """
    store = _state(spark, str(checkpoint), batch, as_of).results(name)
    _, about = store.identity
    key, result = (kept_type(about[part]) for part in (store.kind.key, "result"))
    schema = StructType([*key, *(field for field in result if field.name not in key.names)])
    for version, _ in store.versions:
        schema = schema.add(f"_{version}", ArrayType(LongType()))
    return store.on_buckets(StoredRows(store.described()), schema.add("_timestamp", LongType()))


def _state(spark: SparkSession, checkpoint: str, batch: int | None, as_of: datetime | str | None) -> SavedState:
    """The state after a batch, or as of a time."""
    if as_of is None:
        return SavedState(spark, checkpoint, batch)
    if batch is not None:
        raise FkJoinError("as_of: batch is given, too; give one of them")
    batch = batch_as_of(spark, checkpoint, as_of)
    try:
        return SavedState(spark, checkpoint, batch)
    except FkJoinError as error:
        raise FkJoinError(f"as_of: the last batch at {as_of} was {batch}, and its state cannot be read: {error}") from error


def _variable(spark: SparkSession, checkpoint: str, operator: int, name: str, batch: int | None) -> DataFrame:
    """Read one of the operator's state variables, by Spark's own source."""
    reader = spark.read.format("statestore").option("operatorId", operator).option("stateVarName", name)
    return (reader if batch is None else reader.option("batchId", batch)).load(checkpoint)
