"""An Iceberg table kept up to date: each batch is one commit of a catalog.

The table's properties have the batch's name.
Events have no key, and are appended by such a commit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import pyarrow as pa

# Of the extra: else pyiceberg would miss it in a batch of a partitioned table.
import pyiceberg_core  # noqa: F401
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from fkjoin.errors import FkJoinError, TopologyError, first_line
from fkjoin.sinks import column_types, partitions
from fkjoin.sinks.iceberg_catalog import catalog_of, mends, of_a_catalog, place_in, table_in
from fkjoin.sinks.iceberg_commit import commit, last_batch
from fkjoin.sinks.iceberg_rows import Rewrite
from fkjoin.sinks.iceberg_types import columns_of, evolved, made_of
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
        change = evolved(table, schema) if self.evolve else table.transaction()
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
        columns = made_of(self._schema)
        try:
            return catalog.create_table_if_not_exists(self.table, columns, properties=_MADE_WITH)
        except (TypeError, ValueError) as error:
            if isinstance(error, OSError):  # of a storage or a catalog
                raise
            why = f" for {types_text(spark_schema(self._schema))}: {error}. "
            why += "Rename or cast the column in a view of the table"
            if str(error).startswith(_NOWHERE):
                why = f": {self.place} does not say where to store its files; "
                why += "give a warehouse in options"
            raise FkJoinError(f"{self._target} cannot be made{why}") from error

    def _require_columns(self, existing: Schema) -> None:
        columns = columns_of(existing)
        column_types.require_columns(self._target, columns, self._schema, evolve=self.evolve)

    @in_outages
    def last_batch(self, query: str) -> BatchId | None:
        table = self._table()
        return None if table is None else last_batch(table, query)

    @in_outages
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        table = self._opened()
        if self.has(batch, last_batch(table, batch.query)):
            return
        if upserts.num_rows or deletes.num_rows:
            self._commit(table, batch, upserts, deletes)
        else:
            commit(table, batch, [], [])

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
        existing, key = columns_of(table.schema()), self._key or self._schema.names
        self._require_columns(table.schema())
        upserts = column_types.fitting(self._target, upserts, existing, key, _has_years)
        deletes = column_types.fitting(self._target, deletes, existing, key, _has_years)
        on_disk = PyArrowFileIO.parse_location(table.location())[0] == "file"
        parts = self._identities(table)
        partitions.require_values(self._target, upserts, parts, key, on_disk=on_disk)
        rewrite = Rewrite(table, existing, upserts, deletes, everything)
        tasks = rewrite.tasks() if self._key else []
        commit(table, batch, [task.file for task in tasks], rewrite.portions(tasks))

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
