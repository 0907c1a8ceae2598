"""A table's changes as Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DayTimeIntervalType, StructType

from fkjoin.analysis.written import ABOUT, about, restores
from fkjoin.checkpoint.batch_log import BatchLog, Mark, is_taken
from fkjoin.errors import TopologyError, needs_extra
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.nodes import Source
from fkjoin.sinks.batches import Batch, Write
from fkjoin.sinks.ledger import rows_of_state
from fkjoin.sinks.parquet_batches import (
    BatchFiles,
    number_of,
    place_of,
    require_not_read,
    writer_of,
)
from fkjoin.sinks.parquet_folders import BatchFolders
from fkjoin.spark.kinds import require_kinds
from fkjoin.spark.names import OPERATION, TIMESTAMP, quoted
from fkjoin.spark.object_store import is_store, require_no_empty_name, require_no_login
from fkjoin.spark.outages import RETRY_S, require_retry_s
from fkjoin.spark.parquet import ChangesOf


@dataclass(frozen=True)
class Parquet:
    """Sink into a folder of Parquet files, for ``Table.to``.

    Parameters
    ----------
    path : str or pathlib.Path
        A folder that all workers reach, local or on HDFS, or a folder of an object store, for
        example ``s3a://bucket/joined``.
    options : mapping of str to str, optional
        Options of an object store: arguments of ``pyarrow.fs.S3FileSystem``, ``GcsFileSystem`` or
        ``AzureFileSystem``.
    retry_s : float, default 60.0
        How many seconds fkjoin tries an unreachable object store again before the query stops.

    Examples
    --------
    >>> sink = Parquet("lake/joined")
    """

    path: str | Path
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        require_retry_s(self.retry_s)
        if is_store(str(self.path)):
            require_no_login(str(self.path))
            require_no_empty_name(str(self.path))
            self._objects(str(self.path))

    @property
    def place(self) -> str:
        return f"parquet {self.path}"

    def check(self, table: TablePlan) -> None:
        batches, _, _ = replace(self, retry_s=0)._checked(table)
        batches.check()

    def _checked(self, table: TablePlan) -> tuple[BatchFiles, str, StructType]:
        """The batches at the path, the name of their folders, and the type of what is written."""
        schema = table.changes.schema
        require_kinds("to_parquet", schema, DayTimeIntervalType)
        batches = self._batches(table.spark)
        return batches, batches.label_for((*table.key, *table.rest)), schema

    def _batches(self, spark: SparkSession) -> BatchFiles:
        path = place_of(spark, str(self.path))
        if is_store(path):
            return self._objects(path)
        if self.options:
            raise TopologyError(
                f"options: they are for an object store, and {path} is not in one; leave them out"
            )
        return BatchFolders(spark, path)

    def _objects(self, path: str) -> BatchFiles:
        with needs_extra("to_parquet in an object store", "objects"):
            from fkjoin.sinks.parquet_objects import BatchObjects
        return BatchObjects(path, dict(self.options), self.retry_s)

    def begin(self, table: TablePlan) -> Write:
        batches, label, schema = self._checked(table)
        count = restores(batches.noted(ABOUT))
        batches.put(ABOUT, about(table.node, table.timestamps, count))
        changes = None
        if table.packed is not None:
            changes = ChangesOf(table.packed.unpack, table.timestamps != "bigint")
        whole = replace(self, path=batches.path)
        begun: dict[str, tuple[BatchFiles, str]] = {}
        last: dict[str, Mark | None] = {}

        def write(batch: Batch, query: str, number: int) -> None:
            spark, mark = batch.packed.sparkSession, Mark(number, batch.began_ms)
            if query not in begun:  # an earlier run of this process is at its end now
                files = whole._batches(spark)
                files.clear_drafts(query)
                begun[query] = files, writer_of(query, restores(files.noted(ABOUT)))
                last[query] = whole.last(spark, query)
            # A batch that is there is worked out all the same, and then thrown away: Spark commits
            # the state that it makes.
            is_taken(self.place, last[query], mark, batch.previous_ms)
            files, writer = begun[query]
            rows = batch.changes if changes is None else batch.packed
            files.publish(rows, changes, label=label, writer=writer, mark=mark, schema=schema)
            last[query] = mark

        return write

    def require_alone(self, table: TablePlan, checkpoint: str) -> None:
        batches = self._batches(table.spark)
        require_not_read(table.spark, batches.path, table.planned.files)
        batches.require_alone(table.spark, checkpoint)

    def last(self, spark: SparkSession, query: str) -> Mark | None:  # see Ledger
        batches = self._batches(spark)
        folders = batches.of_query(query)
        note = batches.noted_batch(query)
        if folders and (note is None or note.number < number_of(folders[-1])):
            return batches.mark(folders[-1])
        return note

    def restore(self, table: TablePlan, query: str, log: BatchLog) -> None:  # see Ledger
        # It sets later batches aside; of a place that lacks some, or has others, all, and writes
        # one batch of the state's rows. A start after an interruption asks for a restore again:
        # until the end, ``last`` is a later batch that is still there, or the note has no batch.
        mark = log.mark(log.done)
        batches, label, schema = self._checked(table)
        last, folders = self.last(table.spark, query), batches.of_query(query)
        earlier = [folder for folder in folders if number_of(folder) <= log.done]
        later = [folder for folder in folders if folder not in earlier]
        count = restores(batches.noted(ABOUT)) + 1
        writer, note = writer_of(query, count), about(table.node, table.timestamps, count)
        ahead = last is not None and last.number > log.done
        # A restore before this one may have left one batch, a later one, in the place of all.
        has_earlier = bool(earlier) or log.done < 0
        if ahead and has_earlier and _are_of(log, batches, earlier):
            batches.note_batch(query, mark)
            batches.put(ABOUT, note)
            batches.clear_drafts(query)
            batches.set_aside(later)
            return
        rows = _changes_of_state(table, log)
        try:
            batches.note_batch(query, Mark(-1, None))
            batches.put(ABOUT, note)
            batches.clear_drafts(query)
            batches.set_aside(folders)
            batches.publish(rows, None, label=label, writer=writer, mark=mark, schema=schema)
            batches.note_batch(query, mark)
        finally:
            rows.unpersist()


def _are_of(log: BatchLog, batches: BatchFiles, folders: list[str]) -> bool:
    """Tell whether all batches are the checkpoint's, as far as Spark's logs reach back."""
    known = [folder for folder in folders if log.mark(number_of(folder)).began_ms is not None]
    return all(batches.mark(folder) == log.mark(number_of(folder)) for folder in known)


def _changes_of_state(table: TablePlan, log: BatchLog) -> DataFrame:
    """The state's rows as changes that make them.

    They are read now, before anything at the place is set aside.
    """
    changes, rows = table.changes, rows_of_state(table, log)
    if log.done < 0:
        return rows
    time = F.col(TIMESTAMP)
    if table.timestamps != "bigint":
        time = F.timestamp_micros(time)
    operation = "upsert" if isinstance(table.node, Source) else "insert"
    rows = rows.withColumn(OPERATION, F.lit(operation)).withColumn(TIMESTAMP, time)
    rows = rows.select(*map(quoted, changes.columns)).persist(StorageLevel.MEMORY_AND_DISK)
    rows.count()
    return rows
