"""An Iceberg table kept up to date: each batch is one commit of a catalog.

A commit is a snapshot, and the table's properties have the batch's name: they outlive snapshots,
which are expired.  *Law*: a commit is on top of the snapshot in which the batch was looked for, or
it fails.  So a batch without rows is a snapshot, too.
Events have no key, and are appended by such a commit.

The package pyiceberg has texts, bytes and lists with 64-bit offsets; fkjoin's batches have 32-bit
ones, which are the same values.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import pyarrow as pa

# Of the extra: else pyiceberg would miss it in a batch of a partitioned table.
import pyiceberg_core  # noqa: F401
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ResolveError, ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO, _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.transforms import IdentityTransform

from fkjoin.errors import FkJoinError, TopologyError, first_line
from fkjoin.sinks import column_types, partitions
from fkjoin.sinks.iceberg_catalog import catalog_of, mends, of_a_catalog, place_in, table_in
from fkjoin.sinks.iceberg_rows import Rewrite
from fkjoin.sinks.ledger import missing
from fkjoin.sinks.retry import in_a_line, in_outages, through_outages
from fkjoin.sinks.table_sink import BatchId, TableSink
from fkjoin.spark.kinds import TIMES_OF_DAY, require_kinds
from fkjoin.spark.outages import RETRY_S, require_retry_s
from fkjoin.spark.schemas import spark_schema, types_text
from fkjoin.storage.local_files import require_writable

_MADE_WITH = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
"""Properties of a new table: each batch leaves a list of files, and a file with its state."""

_NOWHERE = "No default path"
"""The words of pyiceberg where neither the catalog nor its options have a place for a table."""

_PROPERTY = "fkjoin.batch."
"""Before a query's name: the property with its last batch."""
_QUERY, _BATCH = "fkjoin.query", "fkjoin.batch"
"""Entries of a snapshot's summary, for readers of the table's history."""
_PLAIN = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_TIMES = (pa.time32("s"), pa.time32("ms"), pa.time64("ns"))
_MADE = {pa.int8(): pa.int32(), pa.int16(): pa.int32(), **dict.fromkeys(_TIMES, pa.time64("us"))}

_T = TypeVar("_T")


@dataclass
class Iceberg(TableSink):
    """Sink into an Iceberg table, for ``Table.to``.

    Parameters
    ----------
    table : str
        The table with its namespace, for example ``shop.joined``.
    catalog : str, default "default"
        The name of the catalog, by which pyiceberg finds properties in its configuration.
    options : mapping of str to str, optional
        Properties of the catalog and its storage, as pyiceberg takes them. They override properties
        of the configuration.
    evolve : bool, default False
        Whether an existing table gets the columns that it lacks, and wider types, when the query
        starts. fkjoin drops no column.
    retry_s : float, default 60.0
        How many seconds fkjoin repeats a batch after another writer's commit, or while the catalog
        or the storage does not answer.

    Examples
    --------
    >>> catalog = {"type": "sql", "uri": "sqlite:///lake.db"}
    >>> catalog["warehouse"] = "file:///lake"
    >>> sink = Iceberg("shop.joined", options=catalog)
    """

    table: str
    catalog: str = "default"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    evolve: bool = False
    retry_s: float = RETRY_S
    _schema: pa.Schema = field(default=None, init=False, repr=False)
    _key: tuple[str, ...] = field(default=(), init=False, repr=False)
    _takes_events: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_retry_s(self.retry_s)
        if "" in (parts := self.table.split(".")) or len(parts) == 1:
            raise TopologyError(
                f'table: {self.table!r} names no namespace: write it as "namespace.table"'
            )

    @property
    def place(self) -> str:
        return f"iceberg {self.catalog}.{self.table}"

    @property
    def _target(self) -> str:
        return f"Iceberg table {self.table}"

    def examine(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        replace(self, retry_s=0.0)._prepared(schema, key, keep=False)

    def prepare(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self._prepared(schema, key, keep=True)

    @in_outages
    def _prepared(self, schema: pa.Schema, key: tuple[str, ...], *, keep: bool) -> None:
        require_kinds("to_iceberg", spark_schema(schema), *TIMES_OF_DAY)
        self._schema, self._key = schema, key
        table = self._table()
        if table is None:
            catalog = catalog_of(self.catalog, self.options, make=False)
            location = place_in(catalog, self._namespace)
            self._require_writable(location)
            if keep:
                self._make()
            else:
                self._try(has_location=location is not None)
            return
        self._identities(table)
        change = _evolved(table, schema) if self.evolve else table.transaction()
        self._require_columns(change.table_metadata.schema())
        if keep:
            change.commit_transaction()

    def _identities(self, table: Table) -> list[str]:
        """The columns by whose values a table is partitioned as they are.

        ``TopologyError`` if a value does not come back.
        """
        parts = table.spec().fields
        fields = [part for part in parts if isinstance(part.transform, IdentityTransform)]
        names = [table.schema().find_field(field.source_id).name for field in fields]
        kinds = partitions.ICEBERG_TYPES
        return partitions.require_types(self._target, self._schema, names, kinds, "pyiceberg")

    @property
    def _namespace(self) -> str:
        return self.table.rpartition(".")[0]

    def _require_writable(self, location: str | None) -> None:
        """Raise ``FkJoinError`` if a new table's folder on this machine cannot be written to.

        Nothing is made before.
        """
        scheme, _, path = PyArrowFileIO.parse_location(location or "")
        if location and scheme == "file":
            try:
                require_writable(Path(path))
            except FkJoinError as error:
                raise FkJoinError(f"{self._target}: {error} as its catalog's warehouse") from error

    def _make(self) -> None:
        catalog = catalog_of(self.catalog, self.options, make=True)
        if not catalog.namespace_exists(self._namespace):
            catalog.create_namespace_if_not_exists(self._namespace)
        table = self._create(catalog)
        # Another query may have made it at the same moment.
        self._require_columns(table.schema())

    def _try(self, *, has_location: bool) -> None:
        """Raise what ``_make`` would say of the columns, and of a catalog without a location.

        The trial is made in a folder.
        """
        with tempfile.TemporaryDirectory() as folder:
            warehouse = {"warehouse": f"file://{folder}"} if has_location else {}
            trial = load_catalog("trial", type="sql", uri="sqlite:///:memory:", **warehouse)
            trial.create_namespace(self._namespace)
            self._create(trial)

    def _create(self, catalog: Catalog) -> Table:
        columns = _made_of(self._schema)
        try:
            return catalog.create_table_if_not_exists(self.table, columns, properties=_MADE_WITH)
        except (TypeError, ValueError) as error:
            if isinstance(error, OSError):  # of a storage or a catalog
                raise
            if str(error).startswith(_NOWHERE):
                raise FkJoinError(
                    f"Iceberg table {self.table} cannot be made: {self.place} does not say where "
                    "to store its files; give a warehouse in options"
                ) from error
            raise FkJoinError(
                f"Iceberg table {self.table} cannot be made for "
                f"{types_text(spark_schema(self._schema))}: {error}. "
                "Rename or cast the column in a view of the table"
            ) from error

    def _require_columns(self, existing: Schema) -> None:
        columns = _columns_of(existing)
        column_types.require_columns(self._target, columns, self._schema, evolve=self.evolve)

    @in_outages
    def last_batch(self, query: str) -> BatchId | None:
        table = self._table()
        return None if table is None else _last_of(table, query)

    @in_outages
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        table = self._opened()
        if self.has(batch, _last_of(table, batch.query)):
            return
        if upserts.num_rows or deletes.num_rows:
            self._commit(table, batch, upserts, deletes)
        else:
            _commit_batch(table, batch, [], [])

    @in_outages
    def replace(self, batch: BatchId, rows: pa.Table) -> None:
        none = rows.select(list(self._key)).slice(0, 0)
        self._commit(self._opened(), batch, rows, none, everything=True)

    def _commit(
        self,
        table: Table,
        batch: BatchId,
        upserts: pa.Table,
        deletes: pa.Table,
        *,
        everything: bool = False,
    ) -> None:
        existing, key = _columns_of(table.schema()), self._key or self._schema.names
        self._require_columns(table.schema())
        upserts = column_types.fitting(self._target, upserts, existing, key, _has_years)
        deletes = column_types.fitting(self._target, deletes, existing, key, _has_years)
        on_disk = PyArrowFileIO.parse_location(table.location())[0] == "file"
        parts = self._identities(table)
        partitions.require_values(self._target, upserts, parts, key, on_disk=on_disk)
        rewrite = Rewrite(table, existing, upserts, deletes, everything)
        tasks = rewrite.tasks() if self._key else []
        _commit_batch(table, batch, [task.file for task in tasks], rewrite.portions(tasks))

    def _table(self) -> Table | None:
        return table_in(catalog_of(self.catalog, self.options, make=False), self.table)

    def _opened(self) -> Table:
        if (table := self._table()) is None:
            raise missing(self.place)
        return table

    def _repeated(self, work: Callable[[], _T]) -> _T:
        """Return what it returns, through outages and conflicts; ``FkJoinError`` of a refusal."""

        def text_of(error: BaseException) -> str:
            return in_a_line(first_line(error), self.options)

        return through_outages(
            self.place, work, mends, self.retry_s, text_of=text_of, is_of_target=of_a_catalog
        )


def _has_years(kind: pa.DataType) -> bool:
    return pa.types.is_date32(kind) or pa.types.is_timestamp(kind)


class _SingleAttempt(Transaction):
    """A transaction that does not repeat itself.

    The package's own repetition puts added rows on top of what another writer has committed: also
    rows with the same keys, and rows of another attempt at the batch.
    """

    def commit_transaction(self) -> Table:
        requirements = (*self._requirements, AssertTableUUID(uuid=self.table_metadata.table_uuid))
        self._table._do_commit(updates=self._updates, requirements=requirements)
        return self._table


def _last_of(table: Table, query: str) -> BatchId | None:
    """Return the query's last batch that the table has; None also if it was rolled back."""
    text = table.properties.get(f"{_PROPERTY}{query}")
    if text is None:
        return None
    facts = json.loads(text)
    if _is_undone(table, facts["snapshot"]):
        return None
    return BatchId(query, facts["number"], facts["began_ms"])


def _is_undone(table: Table, snapshot_id: int) -> bool:
    """Tell whether a snapshot is there, and is none of those that the current one came from."""
    known = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in table.snapshots()}
    current = table.metadata.current_snapshot_id
    while current is not None and current != snapshot_id:
        current = known.get(current)
    return current is None and snapshot_id in known


def _commit_batch(
    table: Table, batch: BatchId, gone: Sequence[DataFile], portions: Iterable[pa.Table]
) -> None:
    """Commit a batch: the table loses some files, and gets the rows.

    The last batch must have been read from the same ``table`` object: whatever was committed since
    then makes it fail, with ``CommitFailedException``.
    """
    transaction = _SingleAttempt(table)
    update = transaction.update_snapshot({_QUERY: batch.query, _BATCH: str(batch.number)})
    snapshot = update.overwrite() if gone else update.merge_append()
    numbers = itertools.count()
    about, uuid = table.metadata, snapshot.commit_uuid
    for rows in portions:
        for file in _dataframe_to_data_files(about, rows, table.io, uuid, numbers):
            snapshot.append_data_file(file)
    for file in gone:
        snapshot.delete_data_file(file)
    snapshot.commit()
    facts = {"number": batch.number, "began_ms": batch.began_ms, "snapshot": snapshot.snapshot_id}
    transaction.set_properties({f"{_PROPERTY}{batch.query}": json.dumps(facts)})
    transaction.commit_transaction()


def _columns_of(schema: Schema) -> pa.Schema:
    """Return the columns of a table as Arrow's, in their order."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([_with(field, _PLAIN) for field in columns])


def _made_of(schema: pa.Schema) -> pa.Schema:
    """Return the columns that a table is made with.

    Iceberg has whole numbers of 32 and 64 bits, and times in microseconds.
    """
    return pa.schema([_with(field, _MADE) for field in schema])


def _evolved(table: Table, schema: pa.Schema) -> Transaction:
    """Stage the columns that the table lacks, and wider types of those that cannot hold all values.

    Nothing is committed.  What Iceberg cannot widen stays as it is.
    """
    transaction, existing = table.transaction(), _columns_of(table.schema())
    wanted = _made_of(schema)
    fits, shared = column_types.fits, [item for item in wanted if item.name in existing.names]
    narrow = [item for item in shared if not fits(item.type, existing.field(item.name).type)]
    for item in (*column_types.addable(existing, wanted), *narrow):
        with (
            contextlib.suppress(ResolveError, ValidationError, ValueError),
            transaction.update_schema() as update,
        ):
            update.union_by_name(pa.schema([item]), table.format_version)
    return transaction


def _with(field: pa.Field, others: Mapping[pa.DataType, pa.DataType]) -> pa.Field:
    """The field with other types, also of what is in it."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with(inner, others) for inner in kind])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_with(kind.value_field, others))
    elif pa.types.is_map(kind):
        kind = pa.map_(_with(kind.key_field, others), _with(kind.item_field, others))
    return field.with_type(others.get(kind, kind))
