"""A Delta table kept up to date: each batch is one MERGE.

Its commit has the batch's number and when it began as transactions (``txn``), which the log keeps
for good, and as metadata, by which the version of a batch is found as long as the table keeps its
history.  Events have no key, and are appended by such a commit.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from fkjoin.checkpoint.batch_log import BatchLog, Mark
from fkjoin.errors import FkJoinError, TopologyError, masked
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.sinks import column_types, partitions
from fkjoin.sinks.ledger import missing
from fkjoin.sinks.retry import in_a_line, in_outages, through_outages
from fkjoin.sinks.table_sink import BatchId, TableSink
from fkjoin.spark.kinds import require_kinds
from fkjoin.spark.object_store import by_one_name
from fkjoin.spark.outages import RETRY_S, require_retry_s
from fkjoin.spark.schemas import listed, spark_schema, types_text
from fkjoin.storage.local_files import require_folder, require_writable

_GONE = "_fkjoin_gone"
_QUERY, _BATCH, _BEGAN = "fkjoin.query", "fkjoin.batch", "fkjoin.beganMs"
_ROWS_STAY = {
    *("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMN", "ADD COLUMNS", "CHANGE COLUMN"),
    *("SET TBLPROPERTIES", "SET TABLE PROPERTIES", "ADD CONSTRAINT", "DROP CONSTRAINT"),
    *("ADD FEATURE", "UPDATE TABLE METADATA", "UPDATE FIELD METADATA"),
}
"""Operations of others that leave the rows as they are."""
_RESTORE = "RESTORE"
_NEVER = -1
"""Stands for the time of the batch before the first one."""
_OF_A_STORAGE = re.compile(r"Generic (?!DeltaTable)\w+ error|HTTP error|non-2xx status|lacked")
_REFUSED = re.compile(
    r"\b4(?!08|09|12|25|29)\d\d [A-Z]\w+|lacked (the necessary privileges|valid authentication)"
    r"|Permission denied|Read-only file"
)
"""Status of a storage or a disk that no repetition repairs: access refused, or nothing there.

408, 409, 412, 425, 429 pass.
"""
_APPEND_ONLY = "is append-only"
"""Texts of a failed commit that changes or deletes rows, and that no repetition repairs."""
_BROKEN = "Invalid data found: "
"""Text before what is said of rows that break a constraint of the table."""

_T = TypeVar("_T")


@dataclass
class Delta(TableSink):
    """Sink into a Delta table, for ``Table.to``.

    Parameters
    ----------
    path : str or pathlib.Path
        A folder, or a URI of the storage that ``options`` are for.
    options : mapping of str to str, optional
        Options of the storage, as the package deltalake takes them.
    retry_s : float, default 60.0
        How many seconds fkjoin repeats a batch after another writer changed the same rows, or while
        the storage does not answer.
    evolve : bool, default False
        Whether an existing table gets the columns that it lacks when the query starts. fkjoin drops
        no column.
    partition_by : sequence of str, default ()
        Columns by whose values a new table has its files in folders.
    optimize_every : int, optional
        The number of batches after which small files are compacted (OPTIMIZE). By default never.
    vacuum_every : int, optional
        The number of batches after which files are deleted that no version of the last week needs
        (VACUUM). By default never.

    Examples
    --------
    >>> sink = Delta("lake/joined")
    """

    path: str | Path = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    retry_s: float = RETRY_S
    evolve: bool = False
    partition_by: Sequence[str] = ()
    optimize_every: int | None = None
    vacuum_every: int | None = None
    _schema: pa.Schema = field(default=None, init=False, repr=False)
    _key: tuple[str, ...] = field(default=(), init=False, repr=False)
    _takes_events: ClassVar[bool] = True

    @property
    def place(self) -> str:
        return f"delta {masked(str(self.path))}"

    @property
    def _target(self) -> str:
        return f"Delta table {masked(str(self.path))}"

    def __post_init__(self) -> None:
        require_retry_s(self.retry_s)
        self.partition_by = listed(self.partition_by)
        for name in ("optimize_every", "vacuum_every"):
            every = getattr(self, name)
            if every is not None and (not isinstance(every, int) or every < 1):
                raise TopologyError(
                    f"{name}: {every!r} is not a number of batches; "
                    "leave it out, or give one from 1 on"
                )

    def _require_last_changes(self, table: TablePlan) -> None:
        super()._require_last_changes(table)
        if _absolute(self.path) in map(_absolute, table.planned.files):
            raise TopologyError(
                f"path: the table is read from {self._target}, and would read its own output: "
                "write to another path"
            )

    def examine(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        replace(self, retry_s=0.0)._prepared(schema, key, keep=False)

    def prepare(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self._prepared(schema, key, keep=True)

    @in_outages
    def _prepared(self, schema: pa.Schema, key: tuple[str, ...], *, keep: bool) -> None:
        require_kinds("to_delta", spark_schema(schema))
        self._schema, self._key = schema, key
        if "://" not in str(self.path):
            (require_folder if keep else require_writable)(Path(self.path))
        if (table := self._existing()) is None:
            self._make(schema, keep=keep)
            if not keep:
                return
            table = self._opened()  # another query may have made it at the same moment
        parts = table.metadata().partition_columns
        if self.partition_by and self.partition_by != parts:
            raise TopologyError(
                f"partition_by: {self._target} exists, partitioned by "
                f"{', '.join(parts) or 'nothing'}: leave it out, or write to another path"
            )
        self._partitions(parts)
        existing = pa.schema(table.schema().to_arrow())
        added = column_types.addable(existing, schema) if self.evolve else []
        self._require_columns(pa.schema([*existing, *added]))
        if added and keep:
            table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)

    def _partitions(self, columns: Sequence[str]) -> list[str]:
        kinds = partitions.DELTA_TYPES
        return partitions.require_types(self._target, self._schema, columns, kinds, "deltalake")

    def _require_columns(self, existing: pa.Schema) -> None:
        column_types.require_columns(self._target, existing, self._schema, evolve=self.evolve)

    def _make(self, schema: pa.Schema, *, keep: bool) -> None:
        """Make the table, first as a trial; without ``keep`` that alone."""
        if unknown := [name for name in self.partition_by if name not in schema.names]:
            raise FkJoinError(
                f"partition_by: there is no column {unknown[0]!r}; name one of "
                f"{', '.join(schema.names)}"
            )
        self._partitions(self.partition_by)
        parts, options = list(self.partition_by) or None, dict(self.options)
        try:
            # A table that deltalake writes and cannot open would stay at the path.
            with tempfile.TemporaryDirectory() as trial:
                DeltaTable.create(trial, self._schema, partition_by=parts)
        except DeltaError as error:  # as of a timestamp_ntz in a map, which the package overlooks
            raise FkJoinError(
                f"{self._target} cannot be made for {types_text(spark_schema(schema))}: "
                f"{in_a_line(error)}. Create the table with another program, or cast the column"
            ) from error
        if keep:
            DeltaTable.create(self.path, self._schema, "ignore", parts, storage_options=options)

    @in_outages
    def last_batch(self, query: str) -> BatchId | None:
        table = self._existing()
        return None if table is None else _last(table, query)

    def restore(self, table: TablePlan, query: str, log: BatchLog) -> None:
        mark = log.mark(log.done)
        batch = BatchId(query, mark.number, mark.began_ms)
        if not self._to_version_of(batch):
            super().restore(table, query, log)

    @in_outages
    def _to_version_of(self, batch: BatchId) -> bool:
        """Restore the version of a batch, which has every table's rows; False if it is gone."""
        table = self._opened()
        version = version_of(table, batch.query, batch.mark)
        if version is None:
            return False
        try:
            table.restore(version, commit_properties=_commit(batch))
        except DeltaError as error:
            if "missing file" not in str(error):  # which were vacuumed
                raise
            return False
        return True

    @in_outages
    def replace(self, batch: BatchId, rows: pa.Table) -> None:
        table, properties = self._opened(), _commit(batch)
        rows = self._fitting(table, rows, self._key)
        write_deltalake(
            table, rows, mode="overwrite", schema_mode="merge", commit_properties=properties
        )

    def _repeated(self, work: Callable[[], _T]) -> _T:
        """Return what the work returns, through outages and other writers' commits.

        ``FkJoinError`` of what the storage says otherwise.  Errors of the package deltalake have
        the text of an object store's in them, and nothing else that tells an outage from a refusal.
        """

        def attempt() -> _T:
            try:
                return work()
            except DeltaError as error:
                refusal = self._refusal(in_a_line(error, self.options))
                if refusal is None:
                    raise
            raise refusal

        text_of = partial(in_a_line, options=self.options)
        return through_outages(
            self.place, attempt, _mends, self.retry_s, text_of=text_of, is_of_target=_of_a_storage
        )

    def _refusal(self, why: str) -> FkJoinError | None:
        """The error of rows that the table does not take; None if it says something else."""
        if _BROKEN in why:
            broken = why.partition(_BROKEN)[2]
            return FkJoinError(
                f"{self.place} has a constraint that a row breaks: {broken}. Leave such rows out "
                "with a filter, or drop the constraint; the batch will be written again"
            )
        if _APPEND_ONLY in why:
            return FkJoinError(
                f"{self.place}: {why}. fkjoin updates and deletes rows: set the table's property "
                "delta.appendOnly to false, and start the query again: it continues with this batch"
            )
        return None

    def _opened(self) -> DeltaTable:
        return DeltaTable(self.path, storage_options=dict(self.options))

    def _existing(self) -> DeltaTable | None:
        try:
            return self._opened()
        except TableNotFoundError:
            return None

    @in_outages
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        if (table := self._existing()) is None:
            raise missing(self.place)
        if self.has(batch, _last(table, batch.query)):
            return
        before = table.version()
        if upserts.num_rows or deletes.num_rows:
            self._write(table, batch, upserts, deletes)
        # A merge that only deletes rows that are not there makes no commit.
        if table.version() == before:
            _note(table, batch)
        self._keep_up(batch.number)

    def _keep_up(self, number: int) -> None:
        """Compact the table's files, and delete old ones, after each so many batches."""

        def is_due(every: int | None) -> bool:
            return every is not None and (number + 1) % every == 0

        if is_due(self.optimize_every):
            self._opened().optimize.compact()
        if is_due(self.vacuum_every):
            self._opened().vacuum(dry_run=False)

    def _write(self, table: DeltaTable, batch: BatchId, upserts: pa.Table, gone: pa.Table) -> None:
        properties = _commit(batch)
        if not self._key:
            rows = self._fitting(table, upserts, self._schema.names)
            merge: Any = {"schema_mode": "merge", "commit_properties": properties}
            write_deltalake(table, rows, mode="append", **merge)
            return
        marked = []
        for rows, deleted in ((upserts, False), (gone, True)):
            fitting = self._fitting(table, rows, self._key)
            marked.append(fitting.append_column(_GONE, pa.repeat(deleted, len(rows))))
        changes = pa.concat_tables(marked, promote_options="default")
        source = changes.select([*self._schema.names, _GONE])
        values = {_quoted(name): f"s.{_quoted(name)}" for name in self._schema.names}
        same_key = " and ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in self._key)
        names: Any = {"source_alias": "s", "target_alias": "t"}
        merge = table.merge(source, same_key, commit_properties=properties, **names)
        merge = merge.when_matched_delete(f"s.{_GONE}")
        merge = merge.when_matched_update(values, f"not s.{_GONE}")
        merge.when_not_matched_insert(values, f"not s.{_GONE}").execute()

    def _fitting(self, table: DeltaTable, rows: pa.Table, key: Sequence[str]) -> pa.Table:
        """The rows as the table can have them; ``FkJoinError`` of one that it cannot."""
        existing = pa.schema(table.schema().to_arrow())
        self._require_columns(existing)
        rows = column_types.fitting(self._target, rows, existing, key)
        parts = [name for name in table.metadata().partition_columns if name in rows.column_names]
        obstacle, on_disk = partitions.of_delta, "://" not in str(self.path)
        partitions.require_values(self._target, rows, parts, key, obstacle, on_disk=on_disk)
        return rows


def _absolute(path: str | Path) -> str:
    text = str(path)
    if "://" in text:
        return by_one_name(text).rstrip("/")
    return str(Path(text.removeprefix("file:")).absolute())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _mends(error: BaseException) -> bool:
    """Tell whether the same work may succeed later, unchanged."""
    if isinstance(error, CommitFailedError):
        return True
    return _of_a_storage(error) and not _REFUSED.search(str(error))


def _of_a_storage(error: BaseException) -> bool:
    if isinstance(error, DeltaError):
        return _OF_A_STORAGE.search(str(error)) is not None
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


def _commit(batch: BatchId) -> CommitProperties:
    """Make the properties of a batch's commit."""
    query, number = batch.query, batch.number
    began_ms = _NEVER if batch.began_ms is None else batch.began_ms
    metadata = {_QUERY: query, _BATCH: str(number), _BEGAN: str(began_ms)}
    transactions = [Transaction(query, number), Transaction(_began(query), began_ms)]
    return CommitProperties(custom_metadata=metadata, app_transactions=transactions)


def _last(table: DeltaTable, query: str) -> BatchId | None:
    """The query's last batch that is in the table."""
    number, began_ms = table.transaction_version(query), table.transaction_version(_began(query))
    if number is None or _was_restored(table, query):
        return None
    return BatchId(query, number, None if began_ms == _NEVER else began_ms)


def _was_restored(table: DeltaTable, query: str) -> bool:
    """Tell whether another writer restored an earlier version after the query's last commit.

    The query's transactions outlive that.
    """
    for limit in (1, 20, None):  # mostly the newest commit is the query's
        for entry in table.history(limit):
            if entry.get(_QUERY) == query:
                return False
            if entry["operation"] == _RESTORE and _QUERY not in entry:
                return True
    return False


def _note(table: DeltaTable, batch: BatchId) -> None:
    """Commit a batch that has no rows."""
    properties = _commit(batch)
    table.create_write_transaction([], "append", table.schema(), commit_properties=properties)


def version_of(table: DeltaTable, query: str, mark: Mark) -> int | None:
    """The newest version with a batch, after which only fkjoin wrote; None without any.

    ``FkJoinError`` if another writer has changed rows since: they would be undone.
    """
    others: list[tuple[int, str]] = []
    for entry in table.history():  # the newest first
        if entry.get(_QUERY) == query and entry[_BEGAN] == str(mark.began_ms):
            if others:
                version, operation = others[-1]
                raise FkJoinError(
                    f"its version {version} ({operation}) was written by another writer, and would "
                    "be undone"
                )
            return int(entry["version"])
        if entry.get(_QUERY) != query and entry["operation"] not in (*_ROWS_STAY, _RESTORE):
            others.append((entry["version"], entry["operation"]))
    return None


def _began(query: str) -> str:
    return f"{query} began"
