"""State as of a committed batch, read in a session: frames of what stores have, made by workers.

Spark's source of files brings a partition's files to a worker, from wherever Spark reads.  The
worker replays each bucket's log into a store of its own in a temporary folder.  Nothing here
writes to a checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructType

from fkjoin.checkpoint.entries import ENTRIES, Entries, StoredRows
from fkjoin.checkpoint.files import escaped, files_at
from fkjoin.checkpoint.saved_files import SavedFiles, damage_named
from fkjoin.checkpoint.saved_log import SavedLog, SavedPartition
from fkjoin.checkpoint.stores import SavedStore, kept_as, with_stores
from fkjoin.errors import FkJoinError, first_line
from fkjoin.sessions.own_folder import held_folder
from fkjoin.spark.schemas import kept_type
from fkjoin.state import BucketStore
from fkjoin.state.segments import Meta

_AT_ONCE = 16
"""Number of partitions whose files are looked for at a time."""

_NEWEST = 2
"""Number of entries of a log from which a query may continue."""

_Batches = Iterator[pa.RecordBatch]


def in_session(spark: SparkSession, checkpoint: str | Path) -> SavedFiles:
    """The files of a checkpoint, wherever a session reaches them; ``FkJoinError`` if nowhere."""
    return SavedFiles(checkpoint, files_at(spark, checkpoint))


def check_logs(spark: SparkSession, checkpoint: str | Path) -> None:
    """Read the newest entries of the logs that say where a query continues.

    ``FkJoinError`` when one is not as it was written.  Spark reads them without regard to their
    checksums: a damaged one could make it skip input.
    """
    files = in_session(spark, checkpoint)
    sources = [f"sources/{number}" for number in files.folder.numbers("sources")]
    for folder in ("offsets", "commits", *sources):
        for number in files.folder.numbers(folder)[-_NEWEST:]:
            files.read(f"{folder}/{number}")


def on_logs(
    spark: SparkSession,
    store: SavedStore,
    work: Callable[[SavedLog], _Batches],
    schema: StructType | str,
) -> DataFrame:
    """Call ``work`` with the log of each partition, in workers; return one DataFrame.

    ``FileNotFoundError`` if Spark has removed files of the batch.
    """
    checkpoint, stage = store.checkpoint, store.number
    versions = {partition.folder: partition.version for partition in store.partitions}
    with ThreadPoolExecutor(_AT_ONCE) as readers:
        listed = list(readers.map(SavedPartition.file_names, store.partitions))
    names = itertools.chain.from_iterable(listed)
    paths = [escaped(f"{checkpoint}/{name}") for name in names]

    def in_worker(files: _Batches) -> _Batches:
        with held_folder() as copies:
            for batch in files:
                for path, content in zip(*batch.columns, strict=True):
                    copy = copies / "state" / path.as_py().rpartition("/state/")[2]
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(content.as_buffer())
            for folder, version in versions.items():
                if (copies / folder).exists():
                    saved = SavedFiles.without_spark(copies)
                    partition = SavedPartition(saved, folder, version, stage)
                    with damage_named(checkpoint), partition.opened() as log:
                        yield from work(log)

    # A session may be set to leave such files out, which would leave out rows.
    strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    try:
        read = spark.read.format("binaryFile").options(**strict).load(paths)
        rows = read.select("path", "content")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise FileNotFoundError(f"{checkpoint}: {first_line(error)}") from error
    number = F.regexp_extract("path", r".*/state/\d+/(\d+)/", 1)
    return rows.repartition(len(versions), number).mapInArrow(in_worker, schema)


def in_buckets(read: Callable[[BucketStore, int], _Batches]) -> Callable[[SavedLog], _Batches]:
    """Call ``read`` with the store and the number of each bucket of a log."""

    def of_log(log: SavedLog) -> _Batches:
        for bucket, meta in log.metas().items():
            with held_folder() as folder, log.store(bucket, meta, folder) as store:
                yield from read(store, bucket)

    return of_log


def entries(spark: SparkSession, store: SavedStore) -> DataFrame:
    """Every record of a store, readable (``ENTRIES``)."""
    return on_logs(spark, store, in_buckets(Entries(store.described())), ENTRIES)


def metas(spark: SparkSession, store: SavedStore) -> list[Meta]:
    """Read the meta record of each bucket's log."""
    rows = on_logs(spark, store, _metas, "data binary").collect()
    return [Meta.decode(bytes(row.data)) for row in rows]


def _metas(log: SavedLog) -> _Batches:
    yield pa.record_batch({"data": pa.array(log.metas().values(), pa.binary())})


def saved_stores(
    spark: SparkSession, checkpoint: str | Path, batch: int | None = None
) -> list[SavedStore]:
    """The stores of a checkpoint after its last committed batch, or after ``batch``."""
    return with_stores(in_session(spark, checkpoint), batch, list)


def read_state(
    spark: SparkSession,
    checkpoint: str | Path,
    name: str,
    *,
    batch: int | None = None,
    as_of: datetime | str | None = None,
) -> DataFrame:
    """Read the table that was materialized under a name, as of a committed batch.

    The results of aggregates, ``with_children``, ``merge`` and ``flat_map`` are materialized
    without a call of ``materialize``, under their own names. The query may be running or not. Spark
    keeps the state of the last 100 batches (``spark.sql.streaming.minBatchesToRetain``).

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session that reads the state.
    checkpoint : str or pathlib.Path
        The checkpoint folder of the query.
    name : str
        The name that ``Table.materialize`` was given, or the name of the table.
    batch : int, optional
        The number of the batch. By default the last committed batch.
    as_of : datetime.datetime or str, optional
        A time, in place of ``batch``: the newest batch that was committed at or before it is read.
        Without a zone the time is in the session's zone. A batch was committed when its file in the
        folder ``commits`` was last written. Copy a checkpoint with the times of its files
        (``cp -p``), or the copy has the times of the copying.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the key and of the row, the versions, and ``_timestamp``. Versions are arrays
        of bigint. A join has ``_left_version`` and ``_right_version``, which is null without a
        right row; other tables have ``_version``. ``_timestamp`` is a bigint in the unit of the
        sources (microseconds for topics), or null.

    Raises
    ------
    FkJoinError
        If the checkpoint does not contain such a table, or no longer contains the batch.

    Examples
    --------
    >>> joiner = ["left.amount", "right.name"]
    >>> joined = orders.join(customers, on="customer_id", joiner=joiner)
    >>> joined = joined.materialize("joined")
    >>> settings = {"checkpoint": "ck/joined", "trigger": "available-now"}
    >>> joined.to_parquet("lake/joined", **settings).awaitTermination()
    >>> rows = fkjoin.read_state(spark, "ck/joined", "joined")
    >>> rows.drop("_timestamp").orderBy("order_id").show()
    +--------+------+-----+-------------+--------------+
    |order_id|amount| name|_left_version|_right_version|
    +--------+------+-----+-------------+--------------+
    |      o1|  10.0|  Ada|          [7]|           [3]|
    |      o2|  25.0|Grace|          [8]|           [4]|
    |      o3|   5.0|  Ada|          [9]|           [3]|
    +--------+------+-----+-------------+--------------+
    <BLANKLINE>
    """
    files = in_session(spark, checkpoint)
    if as_of is not None:
        if batch is not None:
            raise FkJoinError("as_of: batch is given, too; give one of them")
        batch = newest(files.checkpoint, files.commits(), _milliseconds(spark, as_of), str(as_of))
    return with_stores(
        files, batch, lambda stores: _table(spark, kept_as(name, stores, files.checkpoint))
    )


def _table(spark: SparkSession, store: SavedStore) -> DataFrame:
    _, about = store.identity
    key, result = (kept_type(about[part]) for part in (store.kind.key, "result"))
    schema = StructType([*key, *(field for field in result if field.name not in key.names)])
    for version, _ in store.versions:
        schema = schema.add(f"_{version}", ArrayType(LongType()))
    schema = schema.add("_timestamp", LongType())
    return on_logs(spark, store, in_buckets(StoredRows(store.described())), schema)


def newest(checkpoint: str, batches: Mapping[int, int], time_ms: int, shown: str) -> int:
    """Choose the newest of ``batches`` whose file was written by a time.

    Each has the time of its file; ``shown``: the time in a message.
    """
    earlier = [batch for batch, written_ms in batches.items() if written_ms <= time_ms]
    if earlier:
        return max(earlier)
    oldest = "it has none"
    if batches:
        first = min(batches)
        moment = datetime.fromtimestamp(batches[first] / 1000, timezone.utc)
        text = moment.isoformat(sep=" ", timespec="milliseconds")
        oldest = f"the oldest that is there, {first}, is of {text}"
    raise FkJoinError(
        f"as_of: {checkpoint} has no batch that was committed at or before {shown}: {oldest}"
    )


def _milliseconds(spark: SparkSession, as_of: datetime | str) -> int:
    """Read a time as Spark reads a timestamp: without a zone it is of the session's."""
    if isinstance(as_of, datetime) and as_of.tzinfo is not None:
        return int(as_of.timestamp() * 1000)
    text = str(as_of) if isinstance(as_of, datetime | str) else None
    query = "select unix_millis(try_cast(:at as timestamp)) as ms"
    (row,) = spark.sql(query, {"at": text}).collect()
    if row.ms is None:
        raise FkJoinError(
            f"as_of: {as_of!r} is not a time; give a datetime, or a text such as '2026-11-27 "
            "06:45:00'"
        )
    return int(row.ms)
