"""An Iceberg table kept up to date: each batch one commit of a catalog, with the batch's name in the table's properties.

Events have no key, and are appended by such a commit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import pyarrow as pa
import pyiceberg_core  # noqa: F401 - of the extra; else pyiceberg would miss it in a batch of a partitioned table
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from fkjoin.checkpoint.files import require_writable
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.sinks import RETRY_S, column_types, partitions
from fkjoin.sinks.iceberg_catalog import at_catalog, catalog_of, place_in, table_in
from fkjoin.sinks.iceberg_commit import commit, last_batch
from fkjoin.sinks.iceberg_rows import Rewrite
from fkjoin.sinks.iceberg_types import columns_of, evolved, made_of
from fkjoin.sinks.ledger import missing
from fkjoin.sinks.table_sink import BatchId, TableSink
from fkjoin.spark.kinds import TIMES_OF_DAY, require_kinds
from fkjoin.spark.outages import require_retry_s
from fkjoin.spark.schemas import spark_schema, types_text

_MADE_WITH = {"commit.manifest-merge.enabled": "true", "write.metadata.delete-after-commit.enabled": "true"}
"""Properties of a table that is made: each batch leaves a list of files, and a file with the table's state."""

_NOWHERE = "No default path"
"""The words of pyiceberg where neither the catalog nor its options have a place for a table."""

_T = TypeVar("_T")


@dataclass
class Iceberg(TableSink):
    """Sink into an Iceberg table, for ``Table.to``.

    Parameters
    ----------
    table, catalog, options, evolve, retry_s
        See ``Table.to_iceberg``.

    Examples
    --------
    >>> sink = Iceberg("shop.joined", options={"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "file:///lake"})
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
            raise TopologyError(f'table: {self.table!r} is no table of a namespace: write it as "namespace.table"')

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

    def _prepared(self, schema: pa.Schema, key: tuple[str, ...], *, keep: bool) -> None:
        require_kinds("to_iceberg", spark_schema(schema), *TIMES_OF_DAY)
        self._schema, self._key = schema, key
        self._repeated(lambda: self._prepare(schema, keep=keep))

    def _prepare(self, schema: pa.Schema, *, keep: bool) -> None:
        found = self._table()
        if found is None:
            place = place_in(catalog_of(self.catalog, self.options, make=False), self._namespace)
            self._require_writable(place)
            if keep:
                self._make(schema)
            else:
                self._try(schema, has_place=place is not None)
            return
        self._identities(found)
        if self.evolve:
            change = evolved(found, schema)
            self._require_columns(change.table_metadata.schema(), schema)
            if keep:
                change.commit_transaction()
        else:
            self._require_columns(found.schema(), schema)

    def _identities(self, table: Table) -> list[str]:
        """The columns by whose values a table is partitioned as they are; ``TopologyError`` if one does not come back."""
        fields = [part for part in table.spec().fields if isinstance(part.transform, IdentityTransform)]
        names = [table.schema().find_field(field.source_id).name for field in fields]
        parts = [name for name in names if name in self._schema.names]
        partitions.require_types(self._target, self._schema, parts, partitions.ICEBERG_TYPES, "pyiceberg")
        return parts

    @property
    def _namespace(self) -> str:
        return self.table.rpartition(".")[0]

    def _require_writable(self, place: str | None) -> None:
        """Raise ``FkJoinError`` if a new table's folder, on this machine, cannot be written to, before anything is made."""
        scheme, _, path = PyArrowFileIO.parse_location(place or "")
        if place and scheme == "file":
            try:
                require_writable(Path(path))
            except FkJoinError as error:
                raise FkJoinError(f"{self._target}: {error} as its catalog's warehouse") from error

    def _make(self, schema: pa.Schema) -> None:
        catalog = catalog_of(self.catalog, self.options, make=True)
        if not catalog.namespace_exists(self._namespace):
            catalog.create_namespace_if_not_exists(self._namespace)
        made = self._create(catalog, schema)
        self._require_columns(made.schema(), schema)  # another query may have made it at the same moment

    def _try(self, schema: pa.Schema, *, has_place: bool) -> None:
        """Raise what ``_make`` would say of the columns, and of a catalog that has no place; the trial is made in a folder."""
        with tempfile.TemporaryDirectory() as folder:
            place = {"warehouse": f"file://{folder}"} if has_place else {}
            trial = load_catalog("trial", type="sql", uri="sqlite:///:memory:", **place)
            trial.create_namespace(self._namespace)
            self._create(trial, schema)

    def _create(self, catalog: Catalog, schema: pa.Schema) -> Table:
        try:
            return catalog.create_table_if_not_exists(self.table, made_of(schema), properties=_MADE_WITH)
        except (TypeError, ValueError) as error:
            if isinstance(error, OSError):  # of a storage or a catalog
                raise
            if str(error).startswith(_NOWHERE):
                raise FkJoinError(
                    f"Iceberg table {self.table} cannot be made: {self.place} names no place for its files; give options a "
                    "warehouse"
                ) from error
            raise FkJoinError(
                f"Iceberg table {self.table} cannot be made for {types_text(spark_schema(schema))}: {error}. Rename or cast "
                "the column in a view of the table"
            ) from error

    def _require_columns(self, there: Schema, schema: pa.Schema) -> None:
        column_types.require_columns(self._target, columns_of(there), schema, evolve=self.evolve)

    def last_batch(self, query: str) -> BatchId | None:
        return self._repeated(lambda: self._last(query))

    def _last(self, query: str) -> BatchId | None:
        table = self._table()
        return None if table is None else last_batch(table, query)

    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        self._repeated(lambda: self._apply(batch, upserts, deletes))

    def _apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        table = self._opened()
        if self.has(batch, last_batch(table, batch.query)):
            return
        if upserts.num_rows or deletes.num_rows:
            self._commit(table, batch, upserts, deletes)
        else:
            commit(table, batch, [], [])

    def replace(self, batch: BatchId, rows: pa.Table) -> None:
        none = rows.select(list(self._key)).slice(0, 0)
        self._repeated(lambda: self._commit(self._opened(), batch, rows, none, everything=True))

    def _commit(self, table: Table, batch: BatchId, upserts: pa.Table, deletes: pa.Table, *, everything: bool = False) -> None:
        there = columns_of(table.schema())
        self._require_columns(table.schema(), self._schema)
        upserts, deletes = self._fitting(upserts, there), self._fitting(deletes, there)
        on_disk = PyArrowFileIO.parse_location(table.location())[0] == "file"
        partitions.require_values(
            self._target, upserts, self._identities(table), self._key or self._schema.names, on_disk=on_disk
        )
        rewrite = Rewrite(table, there, upserts, deletes, everything)
        tasks = rewrite.tasks() if self._key else []
        commit(table, batch, [task.file for task in tasks], rewrite.portions(tasks))

    def _fitting(self, rows: pa.Table, there: pa.Schema) -> pa.Table:
        return column_types.fitting(self._target, rows, there, self._key or self._schema.names, _has_years)

    def _table(self) -> Table | None:
        return table_in(catalog_of(self.catalog, self.options, make=False), self.table)

    def _opened(self) -> Table:
        if (table := self._table()) is None:
            raise missing(self.place)
        return table

    def _repeated(self, work: Callable[[], _T]) -> _T:
        return at_catalog(self.place, self.options, work, self.retry_s)


def _has_years(kind: pa.DataType) -> bool:
    return pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
