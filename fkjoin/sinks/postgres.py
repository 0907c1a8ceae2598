"""A PostgreSQL table kept up to date: each batch one transaction, with COPY, upserts, deletes and the batch's number."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from psycopg import Connection
from psycopg.sql import SQL, Composed, Identifier, Literal
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StructType

from fkjoin.errors import FkJoinError, first_line, set_aside
from fkjoin.sinks import RETRY_S, postgres_types
from fkjoin.sinks.counts import LEFT_OUT, count
from fkjoin.sinks.postgres_refusals import ROW_PLACE, Refused, unread, unwritten
from fkjoin.sinks.postgres_server import NO_PASSWORD, connect, mends, settings_of
from fkjoin.sinks.postgres_values import spelled
from fkjoin.sinks.retry import repeated
from fkjoin.sinks.table_sink import BatchId, TableSink
from fkjoin.spark.dead_letters import OnError, require_on_error
from fkjoin.spark.json_texts import written
from fkjoin.spark.kinds import NESTED
from fkjoin.spark.names import quoted
from fkjoin.spark.outages import require_retry_s
from fkjoin.spark.query_start import unreached
from fkjoin.spark.schemas import spark_schema

BATCHES = "fkjoin_batches"
"""The table beside the targets, in their schema, that has the last batch of each query in each of them."""

LETTERS = "fkjoin_dead_letters"
"""The one that has the rows that the target cannot have, with ``on_error="dead-letter"``."""

_GONE = "_fkjoin_gone"
_BATCHES = (
    "create table if not exists {} (query text not null, target text not null, batch bigint not null, began_ms bigint, "
    "primary key (query, target))"
)
_LETTERS = (
    "create table if not exists {} (query text not null, batch bigint not null, target text not null, key json not null, "
    "column_name text, reason text not null, row json not null, recorded timestamptz not null default now())"
)
_OTHER_WAYS = "or a view of the table replaces such values or leaves such rows out (it needs a new checkpoint)"

_NOT_THERE = psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName

_T = TypeVar("_T")


@dataclass
class Postgres(TableSink):
    """Sink into a table of PostgreSQL, for ``Table.to``.

    Parameters
    ----------
    into, dsn, on_error, retry_s
        See ``Table.to_postgres``.

    Examples
    --------
    >>> sink = Postgres("public.joined", "postgresql://shop@db/orders")
    """

    into: str
    dsn: str = field(repr=False)
    on_error: OnError = "fail"
    retry_s: float = RETRY_S
    _columns: tuple[str, ...] = field(default=(), init=False, repr=False)
    _key: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        require_on_error(self.on_error)
        require_retry_s(self.retry_s)
        self._settings = settings_of(self.dsn)

    @property
    def place(self) -> str:
        return f"postgres {self.into}"

    def examine(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        replace(self, retry_s=0.0)._prepared(spark_schema(schema), key, keep=False)

    def prepare(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self._prepared(spark_schema(schema), key, keep=True)

    def _prepared(self, schema: StructType, key: tuple[str, ...], *, keep: bool) -> None:
        """Make what has to be there, in a transaction; unless it is to be kept, it is rolled back."""
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
        self._repeated(lambda: self._prepare(schema, made, keep=keep))

    def _prepare(self, schema: StructType, made: Composed, *, keep: bool) -> None:
        with connect(self._settings) as connection:
            connection.execute("select pg_advisory_xact_lock(hashtext('fkjoin'))")  # tables made at the same moment collide
            connection.execute(SQL(_BATCHES).format(self._beside(BATCHES)))
            if not self._is_there(connection):  # its batches went with the table that was there
                connection.execute(SQL("delete from {} where target = %s").format(self._beside(BATCHES)), (self.into,))
            connection.execute(made)
            if self.on_error == "dead-letter":
                connection.execute(SQL(_LETTERS).format(self._beside(LETTERS)))
            self._require_types(connection, schema)
            try:
                with connection.transaction():
                    self._stage(connection)
                    connection.execute(self._upsert(0, 0))
                    connection.execute(self._delete())
            except psycopg.ProgrammingError as error:
                raise FkJoinError(
                    f"table {self.into} cannot be kept as fkjoin's table is: {first_line(error)}. It needs the columns "
                    f"{', '.join(schema.names)} and a primary key or unique constraint of ({', '.join(self._key)}); "
                    "or drop it: a new query makes it, and to one that has batches fkjoin restore gives its rows back"
                ) from error
            if not keep:
                connection.rollback()

    def _require_types(self, connection: Connection[Any], schema: StructType) -> None:
        table = self._table().as_string(connection)
        if found := list(postgres_types.problems(connection, table, schema, self._key)):
            raise FkJoinError(f"table {self.into} cannot be kept as fkjoin's table is: {'; '.join(found)}")

    def last_batch(self, query: str) -> BatchId | None:
        return self._repeated(lambda: self._known(query))

    def _known(self, query: str) -> BatchId | None:
        """The query's line; None without one, or without a target."""
        with connect(self._settings) as connection, contextlib.suppress(*_NOT_THERE):
            text = SQL("select batch, began_ms from {} where query = %s and target = %s").format(self._beside(BATCHES))
            row = connection.execute(text, (query, self.into)).fetchone()
            if row is not None and self._is_there(connection):
                return BatchId(query, *row)
        return None

    def _is_there(self, connection: Connection[Any]) -> bool:
        name = self._table().as_string(connection)
        return connection.execute("select where to_regclass(%s) is not null", (name,)).fetchone() is not None

    def replace(self, batch: BatchId, rows: pa.Table) -> None:
        self._set_aside(batch.number, self._repeated(lambda: self._become(batch, rows)))

    def _become(self, batch: BatchId, rows: pa.Table) -> list[Refused]:
        """Have these rows and no others, in one transaction with the batch that they are of; those that cannot be there.

        They are among the dead letters since they first came; letters of later batches come again.
        """
        with connect(self._settings) as connection:
            self._done(connection, batch.query)
            others = SQL("select query from {} where target = %s and query <> %s and batch >= 0").format(self._beside(BATCHES))
            if (other := connection.execute(others, (self.into, batch.query)).fetchone()) is not None:
                raise FkJoinError(f"query {other[0]} writes to {self.into}, too, and would lose its rows")
            self._stage(connection)
            letters = self._written(connection, rows, alone=True)
            for letter in letters:
                self._delete_one(connection, letter)
            if self.on_error == "dead-letter":
                later = SQL("delete from {} where query = %s and target = %s and batch > %s").format(self._beside(LETTERS))
                connection.execute(later, (batch.query, self.into, batch.number))
            self._note(connection, batch)
        return letters

    def _delete_one(self, connection: Connection[Any], letter: Refused) -> None:
        """Delete the row with the key of one that the table cannot have: it may be of an earlier or a later batch."""
        with contextlib.suppress(psycopg.DataError), connection.transaction():  # a key that is none is not there either
            named = [SQL("{} = {}").format(Identifier(name), Literal(str(letter.row[name]))) for name in self._key]
            connection.execute(SQL("delete from {} where {}").format(self._table(), SQL(" and ").join(named)))

    def _note(self, connection: Connection[Any], batch: BatchId) -> None:
        text = SQL("update {} set batch = %s, began_ms = %s where query = %s and target = %s").format(self._beside(BATCHES))
        connection.execute(text, (batch.number, batch.began_ms, batch.query, self.into))

    def _done(self, connection: Connection[Any], query: str) -> BatchId:
        """The query's last batch, with a lock on its line: an attempt that comes second waits here."""
        text = "insert into {0} as known values (%s, %s, -1) on conflict (query, target) do update set batch = known.batch "
        text += "returning batch, began_ms"
        row = connection.execute(SQL(text).format(self._beside(BATCHES)), (query, self.into)).fetchone()
        assert row is not None
        return BatchId(query, *row)

    def as_taken(self, changes: DataFrame) -> DataFrame:
        # Structs, lists and maps as JSON, bytes as PostgreSQL writes them.
        given = [item for item in changes.schema if item.name in (*self._columns, "_operation")]
        return changes.select(*[_readable(item.name, item.dataType).alias(item.name) for item in given])

    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        self._set_aside(batch.number, self._repeated(lambda: self._apply(batch, upserts, deletes)))

    def _set_aside(self, batch: int, letters: list[Refused]) -> None:
        """Count the rows that the table cannot have, and say so."""
        if letters:
            count(self.place, LEFT_OUT, len(letters), list(map(str, letters[-10:])))
            where = f"in {LETTERS}" if self.on_error == "dead-letter" else "left out"
            text = "table %s: %d rows of batch %d are %s, not in the table; the first: %s"
            logging.getLogger("fkjoin").warning(text, self.into, len(letters), batch, where, letters[0])

    def _apply(self, batch: BatchId, upserts: pa.Table, gone: pa.Table) -> list[Refused]:
        """Write a batch in one transaction; return the rows that the table cannot have."""
        with connect(self._settings) as connection:
            if self.has(batch, self._done(connection, batch.query)):
                return []
            self._stage(connection)
            for _ in unread(connection, gone, partial(self._copy, connection, deleted=True), self._key):
                pass  # a key that the table cannot have is not in it
            connection.execute(self._delete())
            letters = self._written(connection, upserts)
            if self.on_error == "dead-letter":
                self._record(connection, batch, letters)
            self._note(connection, batch)
        return letters

    def _written(self, connection: Connection[Any], rows: pa.Table, *, alone: bool = False) -> list[Refused]:
        """Insert or update the rows; those that the table cannot have, unless they stop the query.  ``alone``: others go."""
        letters = []
        for row in self._upserted(connection, rows, alone):
            if self.on_error == "fail":
                raise FkJoinError(f"a row cannot be in table {self.into}: {row}{set_aside('rows')}, {_OTHER_WAYS}")
            letters.append(row)
        return letters

    def _upserted(self, connection: Connection[Any], rows: pa.Table, alone: bool) -> Iterator[Refused]:
        """Insert or update the rows; those that are refused."""
        rows = rows.append_column(ROW_PLACE, pa.array(range(rows.num_rows), pa.int64()))
        yield from unread(connection, rows, partial(self._copy, connection, deleted=False), self._key)
        if alone:  # before the rows come: another one may have what has to be unique
            same = SQL(" and ").join(SQL("target.{0} = kept.{0}").format(Identifier(name)) for name in self._key)
            others = SQL("delete from {} as target where not exists (select from fkjoin_changes as kept where {})")
            connection.execute(others.format(self._table(), same))

        def write(first: int, end: int) -> None:
            connection.execute(self._upsert(first, end))

        def index() -> None:
            connection.execute(SQL("create index on fkjoin_changes ({})").format(Identifier(ROW_PLACE)))

        yield from unwritten(connection, rows, write, index, self._key)

    def _record(self, connection: Connection[Any], batch: BatchId, letters: Sequence[Refused]) -> None:
        into = SQL("insert into {} (query, batch, target, key, column_name, reason, row) values (%s, %s, %s, %s, %s, %s, %s)")
        of = batch.query, batch.number, self.into
        with connection.cursor() as cursor:
            cursor.executemany(
                into.format(self._beside(LETTERS)),
                [(*of, one.key_text, one.column_text, one.reason, one.row_text) for one in letters],
            )

    def _repeated(self, work: Callable[[], _T]) -> _T:
        """Return what the work returns, through outages; ``FkJoinError`` of what PostgreSQL says otherwise."""
        try:
            return repeated(self.place, work, mends, self.retry_s)
        except psycopg.Error as error:
            why = first_line(error)
        mend = "Set PGPASSWORD, or write a password into the address," if NO_PASSWORD in why else "Mend that"
        raise unreached(f"table {self.into} cannot be written to: {why}", mend)

    def _copy(self, connection: Connection[Any], rows: pa.Table, *, deleted: bool) -> None:
        names = [*rows.column_names, _GONE]
        text = io.BytesIO()
        chosen = pa.table([*map(spelled, rows.columns), pa.repeat(deleted, rows.num_rows)], names)
        pa_csv.write_csv(chosen, text, pa_csv.WriteOptions(include_header=False))
        into = SQL("copy fkjoin_changes ({}) from stdin (format csv)").format(SQL(", ").join(map(Identifier, names)))
        with connection.cursor() as cursor, cursor.copy(into) as copy:
            copy.write(text.getbuffer())

    def _stage(self, connection: Connection[Any]) -> None:
        """A table for a batch's changes, with the target's types and none of its constraints."""
        text = (
            "create temporary table fkjoin_changes on commit drop as "
            "select {}, false as _fkjoin_gone, 0::bigint as _fkjoin_place from {} with no data"
        )
        connection.execute(SQL(text).format(self._listed(self._columns), self._table()))

    def _upsert(self, first: int, end: int) -> Composed:
        """Insert or update the rows from a place on to before another one."""
        rest = [name for name in self._columns if name not in self._key]
        changes = SQL(", ").join(SQL("{0} = excluded.{0}").format(Identifier(name)) for name in rest)
        action = SQL("do update set {}").format(changes) if rest else SQL("do nothing")
        text = (
            "insert into {0} ({1}) select {1} from fkjoin_changes "
            "where not _fkjoin_gone and _fkjoin_place >= {4} and _fkjoin_place < {5} on conflict ({2}) {3}"
        )
        places = Literal(first), Literal(end)  # no parameters: with some, a name with a % would be read as one
        return SQL(text).format(self._table(), self._listed(self._columns), self._listed(self._key), action, *places)

    def _delete(self) -> Composed:
        same = SQL(" and ").join(SQL("target.{0} = gone.{0}").format(Identifier(name)) for name in self._key)
        return SQL("delete from {} as target using fkjoin_changes as gone where gone._fkjoin_gone and {}").format(
            self._table(), same
        )

    def _listed(self, names: tuple[str, ...]) -> Composed:
        return SQL(", ").join(map(Identifier, names))

    def _table(self) -> Identifier:
        return Identifier(*self.into.split("."))

    def _beside(self, name: str) -> Identifier:
        return Identifier(*self.into.split(".")[:-1], name)


def _readable(name: str, kind: DataType) -> Column:
    column = F.col(quoted(name))
    if isinstance(kind, NESTED):
        return written(column, kind)
    return F.concat(F.lit("\\x"), F.lower(F.hex(column))) if isinstance(kind, BinaryType) else column
