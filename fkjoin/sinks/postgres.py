"""A PostgreSQL table kept up to date: each batch one transaction, with COPY, upserts, deletes and the batch's number."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from psycopg import Connection
from psycopg.sql import SQL, Composed, Identifier
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fkjoin.errors import FkJoinError
from fkjoin.names import is_added, quoted
from fkjoin.sinks.upserts import Upserts

BATCHES = "fkjoin_batches"
"""The table beside the target, in its schema, that has the last batch of each query."""

_GONE = "_fkjoin_gone"

_TYPES: dict[type[DataType], str] = {
    BooleanType: "boolean",
    ByteType: "smallint",
    ShortType: "smallint",
    IntegerType: "integer",
    LongType: "bigint",
    FloatType: "real",
    DoubleType: "double precision",
    DateType: "date",
    TimestampType: "timestamptz",
    TimestampNTZType: "timestamp",
    BinaryType: "bytea",
}
_NESTED = (StructType, ArrayType, MapType)


@dataclass
class Postgres(Upserts):
    """See ``Table.to_postgres``."""

    into: str
    dsn: str = field(repr=False)
    _columns: tuple[str, ...] = ()
    _key: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"postgres {self.into}"

    def prepare(self, schema: StructType, key: tuple[str, ...]) -> None:
        self._columns, self._key = tuple(schema.names), key
        columns = [
            SQL("{} " + _type(item.dataType) + (" not null" if item.name in key else "")).format(Identifier(item.name))
            for item in schema
        ]
        made = SQL("create table if not exists {} ({}, primary key ({}))").format(
            self._table(), SQL(", ").join(columns), SQL(", ").join(map(Identifier, key))
        )
        batches = SQL("create table if not exists {} (query text primary key, batch bigint not null)").format(self._batches())
        with self._connected() as connection:
            connection.execute(made)
            connection.execute(batches)
            try:
                with connection.transaction():
                    self._stage(connection)
                    connection.execute(self._upsert())
                    connection.execute(self._delete())
            except psycopg.ProgrammingError as error:
                raise FkJoinError(
                    f"table {self.into} cannot be kept as fkjoin's table is: {_first(error)}. It needs the columns "
                    f"{', '.join(schema.names)} and a primary key or unique constraint of ({', '.join(key)}); "
                    "or drop it, and it is made anew"
                ) from error

    def columns(self, changes: DataFrame) -> DataFrame:
        """Structs, lists and maps as JSON, bytes as PostgreSQL writes them."""
        return changes.select(*[_readable(item.name, item.dataType).alias(item.name) for item in changes.schema])

    def apply(self, query: str, batch: int, upserts: pa.Table, gone: pa.Table) -> None:
        with self._connected() as connection:
            known = SQL(
                "insert into {0} as known values (%s, -1) on conflict (query) do update set batch = known.batch returning batch"
            )
            done = connection.execute(known.format(self._batches()), (query,)).fetchone()
            if done is not None and done[0] >= batch:  # the row is locked: an attempt that comes second waits here
                return
            self._stage(connection)
            with connection.cursor() as cursor:
                for rows, deleted in ((upserts, False), (gone, True)):
                    if rows.num_rows:
                        self._copy(cursor, rows, deleted)
            connection.execute(self._delete())
            connection.execute(self._upsert())
            connection.execute(SQL("update {} set batch = %s where query = %s").format(self._batches()), (batch, query))

    def _copy(self, cursor: Any, rows: pa.Table, deleted: bool) -> None:
        names = [*rows.column_names, _GONE]
        text = io.BytesIO()
        pa_csv.write_csv(
            rows.append_column(_GONE, pa.repeat(deleted, rows.num_rows)), text, pa_csv.WriteOptions(include_header=False)
        )
        into = SQL("copy fkjoin_changes ({}) from stdin (format csv)").format(SQL(", ").join(map(Identifier, names)))
        with cursor.copy(into) as copy:
            copy.write(text.getbuffer())

    def _stage(self, connection: Connection[Any]) -> None:
        """A table for a batch's changes, with the target's types and none of its constraints."""
        text = "create temporary table fkjoin_changes on commit drop as select {}, false as _fkjoin_gone from {} with no data"
        connection.execute(SQL(text).format(self._listed(self._columns), self._table()))

    def _upsert(self) -> Composed:
        rest = [name for name in self._columns if name not in self._key]
        changes = SQL(", ").join(SQL("{0} = excluded.{0}").format(Identifier(name)) for name in rest)
        action = SQL("do update set {}").format(changes) if rest else SQL("do nothing")
        text = "insert into {0} ({1}) select {1} from fkjoin_changes where not _fkjoin_gone on conflict ({2}) {3}"
        return SQL(text).format(self._table(), self._listed(self._columns), self._listed(self._key), action)

    def _delete(self) -> Composed:
        same = SQL(" and ").join(SQL("target.{0} = gone.{0}").format(Identifier(name)) for name in self._key)
        return SQL("delete from {} as target using fkjoin_changes as gone where gone._fkjoin_gone and {}").format(
            self._table(), same
        )

    def _listed(self, names: tuple[str, ...]) -> Composed:
        return SQL(", ").join(map(Identifier, names))

    def _table(self) -> Identifier:
        return Identifier(*self.into.split("."))

    def _batches(self) -> Identifier:
        return Identifier(*self.into.split(".")[:-1], BATCHES)

    def _connected(self) -> Connection[Any]:
        try:
            return psycopg.connect(self.dsn)
        except psycopg.Error as error:
            raise FkJoinError(f"PostgreSQL cannot be reached for {self.into}: {_first(error)}") from error


def _type(kind: DataType) -> str:
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision}, {kind.scale})"
    return "jsonb" if isinstance(kind, _NESTED) else _TYPES.get(type(kind), "text")


def _readable(name: str, kind: DataType) -> Any:
    column = F.col(quoted(name))
    if isinstance(kind, _NESTED) and not is_added(name):
        return F.to_json(column, {"ignoreNullFields": "false"})
    return F.concat(F.lit("\\x"), F.lower(F.hex(column))) if isinstance(kind, BinaryType) else column


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
