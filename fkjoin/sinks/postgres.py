"""A PostgreSQL table kept up to date: each batch one transaction, with COPY, upserts, deletes and the batch's number."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from psycopg import Connection
from psycopg.sql import SQL, Composed, Identifier
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StructType

from fkjoin.errors import FkJoinError
from fkjoin.kinds import NESTED
from fkjoin.names import quoted
from fkjoin.sinks import postgres_types
from fkjoin.sinks.postgres_values import spelled
from fkjoin.sinks.upserts import Upserts
from fkjoin.spark.batch_log import BatchLog, Mark, has_batch
from fkjoin.spark.state import read_state
from fkjoin.spark_json import written

if TYPE_CHECKING:
    from fkjoin.table import Table

BATCHES = "fkjoin_batches"
"""The table beside the target, in its schema, that has the last batch of each query."""

_GONE, _BEGAN = "_fkjoin_gone", "began_ms"
_OF_A_VALUE = (
    psycopg.DataError,
    psycopg.IntegrityError,  # a domain's
    psycopg.errors.StatementTooComplex,  # JSON that is nested too deeply
    psycopg.errors.ProgramLimitExceeded,  # or too long
)
"""What PostgreSQL says, while it reads a batch, of a value that a column cannot have."""


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
            SQL("{} " + postgres_types.made(item.name, item.dataType) + (" not null" if item.name in key else "")).format(
                Identifier(item.name)
            )
            for item in schema
        ]
        made = SQL("create table if not exists {} ({}, primary key ({}))").format(
            self._table(), SQL(", ").join(columns), SQL(", ").join(map(Identifier, key))
        )
        batches = SQL("create table if not exists {} (query text primary key, batch bigint not null, began_ms bigint)")
        with self._connected() as connection:
            connection.execute(made)
            connection.execute(batches.format(self._batches()))
            self._require_times(connection)
            self._require_types(connection, schema)
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

    def _require_types(self, connection: Connection[Any], schema: StructType) -> None:
        table = self._table().as_string(connection)
        if found := list(postgres_types.problems(connection, table, schema, self._key)):
            raise FkJoinError(f"table {self.into} cannot be kept as fkjoin's table is: {'; '.join(found)}")

    def _require_times(self, connection: Connection[Any]) -> None:
        """Add the column that a release before did not make."""
        found = connection.execute(SQL("select * from {} limit 0").format(self._batches())).description or ()
        if all(column.name != _BEGAN for column in found):
            added = SQL("alter table {} add column if not exists began_ms bigint").format(self._batches())
            try:
                connection.execute(added)
            except psycopg.errors.InsufficientPrivilege as error:
                raise FkJoinError(
                    f"table {BATCHES} beside {self.into} lacks the column {_BEGAN}: let its owner run "
                    f"{added.as_string(connection)}"
                ) from error

    def last(self, spark: SparkSession, query: str) -> Mark | None:
        with self._connected() as connection:
            try:
                row = connection.execute(
                    SQL("select to_jsonb(known) from {} as known where query = %s").format(self._batches()), (query,)
                ).fetchone()
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return None
        return Mark(row[0]["batch"], row[0].get(_BEGAN)) if row is not None and row[0]["batch"] >= 0 else None

    def way_back(self, table: Table, query: str, log: BatchLog) -> Callable[[], None]:
        """From the state: the table's rows as of the last batch that is done."""
        spark, names = table.frame.sparkSession, [*table.key, *table.rest]
        if log.done < 0:
            kept = spark.createDataFrame([], table.changes.schema)
        else:
            name = getattr(table.node, "materialized", None) or table.name
            kept = read_state(spark, log.checkpoint, name, batch=log.done)
        if lacking := [name for name in names if name not in kept.columns]:
            raise FkJoinError(f"{table.name} has no column {lacking[0]} in the state")
        rows = self.columns(kept.select(*map(quoted, names))).toArrow()
        return lambda: self._become(query, log.mark(log.done), rows)

    def _become(self, query: str, mark: Mark, rows: pa.Table) -> None:
        """Have these rows and no others, in one transaction with the batch that they are of."""
        with self._connected() as connection:
            self._stage(connection)
            with connection.cursor() as cursor:
                self._copy(cursor, rows, False)
            same = SQL(" and ").join(SQL("target.{0} = kept.{0}").format(Identifier(name)) for name in self._key)
            others = SQL("delete from {} as target where not exists (select from fkjoin_changes as kept where {})")
            connection.execute(others.format(self._table(), same))
            connection.execute(self._upsert())
            self._note(connection, query, mark)

    def _note(self, connection: Connection[Any], query: str, mark: Mark) -> None:
        text = "insert into {} (query, batch, began_ms) values (%s, %s, %s) on conflict (query) do update "
        text += "set batch = excluded.batch, began_ms = excluded.began_ms"
        connection.execute(SQL(text).format(self._batches()), (query, mark.number, mark.began_ms))

    def columns(self, changes: DataFrame) -> DataFrame:
        """Structs, lists and maps as JSON, bytes as PostgreSQL writes them."""
        given = [item for item in changes.schema if item.name in (*self._columns, "_operation")]
        return changes.select(*[_readable(item.name, item.dataType).alias(item.name) for item in given])

    def apply(self, query: str, batch: int, upserts: pa.Table, gone: pa.Table, began_ms: int | None = None) -> None:
        mark = Mark(batch, began_ms)
        with self._connected() as connection:
            known = SQL(
                "insert into {0} as known values (%s, -1) on conflict (query) do update set batch = known.batch "
                "returning batch, began_ms"
            )
            done = connection.execute(known.format(self._batches()), (query,)).fetchone()
            if done is not None and has_batch(self.place, Mark(*done), mark):  # an attempt that comes second waits here
                return
            self._stage(connection)
            with connection.cursor() as cursor:
                for rows, deleted in ((upserts, False), (gone, True)):
                    if rows.num_rows:
                        self._copy(cursor, rows, deleted)
            connection.execute(self._delete())
            try:
                connection.execute(self._upsert())
            except psycopg.errors.NotNullViolation as error:
                raise self._cannot_be(f"{_first(error)} ({error.diag.message_detail})") from error
            self._note(connection, query, mark)

    def _copy(self, cursor: Any, rows: pa.Table, deleted: bool) -> None:
        names = [*rows.column_names, _GONE]
        text = io.BytesIO()
        chosen = pa.table([*map(spelled, rows.columns), pa.repeat(deleted, rows.num_rows)], names)
        pa_csv.write_csv(chosen, text, pa_csv.WriteOptions(include_header=False))
        into = SQL("copy fkjoin_changes ({}) from stdin (format csv)").format(SQL(", ").join(map(Identifier, names)))
        try:
            with cursor.copy(into) as copy:
                copy.write(text.getbuffer())
        except _OF_A_VALUE as error:
            raise self._cannot_be(self._refused(rows, error)) from error

    def _cannot_be(self, why: str) -> FkJoinError:
        return FkJoinError(
            f"a row cannot be in table {self.into}: {why}. Replace such values in a view of the table, or leave such rows out "
            "with a filter; the batch will be written again"
        )

    def _refused(self, rows: pa.Table, error: psycopg.Error) -> str:
        """What PostgreSQL says, and where: of U+0000 it names no column."""
        for name in rows.column_names:
            if (
                pa.types.is_string(rows[name].type)
                and (place := pc.index(pc.match_substring(rows[name], "\0"), True).as_py()) >= 0
            ):
                key = ", ".join(f"{part} = {rows[part][place].as_py()!r}" for part in self._key)
                return f"column {name} has U+0000 in the row with {key}, which no text of PostgreSQL's can have"
        context = str(error.diag.context).splitlines()
        where = next((line for line in context if line.startswith("COPY ")), context[0])  # of JSON the text comes first
        return f"{_first(error)} ({where})"

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


def _readable(name: str, kind: DataType) -> Column:
    column = F.col(quoted(name))
    if isinstance(kind, NESTED):
        return written(column, kind)
    return F.concat(F.lit("\\x"), F.lower(F.hex(column))) if isinstance(kind, BinaryType) else column


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
