"""A PostgreSQL table kept up to date: each batch is one transaction, with the batch's number."""

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
from pyspark.sql.types import BinaryType, StructField, StructType

from fkjoin.errors import FkJoinError, first_line, set_aside
from fkjoin.sinks import postgres_types
from fkjoin.sinks.counts import LEFT_OUT, count
from fkjoin.sinks.postgres_refusals import ROW_PLACE, Refused, spelled, unread, unwritten
from fkjoin.sinks.postgres_server import NO_PASSWORD, connect, mends, settings_of
from fkjoin.sinks.retry import in_outages, repeated
from fkjoin.sinks.table_sink import BatchId, TableSink
from fkjoin.spark.dead_letters import OnError, require_on_error
from fkjoin.spark.json_texts import written
from fkjoin.spark.kinds import NESTED
from fkjoin.spark.names import quoted
from fkjoin.spark.outages import RETRY_S, require_retry_s
from fkjoin.spark.query_start import unreached
from fkjoin.spark.schemas import spark_schema

BATCHES = "fkjoin_batches"
"""The table beside the targets, in their schema, that has each query's last batch in each."""

LETTERS = "fkjoin_dead_letters"
"""The one that has the rows that the target cannot store, with ``on_error="dead-letter"``."""

_GONE = "_fkjoin_gone"
_BATCHES = (
    "create table if not exists {} (query text not null, target text not null, "
    "batch bigint not null, began_ms bigint, primary key (query, target))"
)
_LETTERS = (
    "create table if not exists {} (query text not null, batch bigint not null, "
    "target text not null, key json not null, column_name text, reason text not null, "
    "row json not null, recorded timestamptz not null default now())"
)
_DONE = (
    "insert into {0} as known values (%s, %s, -1) "
    "on conflict (query, target) do update set batch = known.batch returning batch, began_ms"
)
_RECORD = (
    "insert into {} (query, batch, target, key, column_name, reason, row) "
    "values (%s, %s, %s, %s, %s, %s, %s)"
)
_OTHER_WAYS = (
    "or a view of the table replaces such values or leaves such rows out "
    "(it needs a new checkpoint)"
)

_NOT_THERE = psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName

_T = TypeVar("_T")


@dataclass
class Postgres(TableSink):
    """Sink into a table of PostgreSQL, for ``Table.to``.

    Parameters
    ----------
    into : str
        The table, optionally with its schema.
    dsn : str
        The database as libpq takes it, for example ``postgresql://shop@db/orders``. Put a password
        into ``PGPASSWORD`` or ``~/.pgpass``.
    on_error : {"fail", "dead-letter", "skip"}, default "fail"
        What happens to a row that the table cannot store, for example one with U+0000 in a text.
        ``"fail"`` stops the query and names key, column and value. ``"dead-letter"`` writes the row
        to ``fkjoin_dead_letters`` beside the table, in the same transaction. ``"skip"`` leaves it
        out. The last two count the row, and the last good row of the key stays.
    retry_s : float, default 60.0
        How many seconds fkjoin repeats a batch after an outage, a deadlock or a serialization
        failure before the query stops.

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

    @in_outages
    def _prepared(self, schema: StructType, key: tuple[str, ...], *, keep: bool) -> None:
        """Make what has to be there, in a transaction; without ``keep``, it is rolled back."""
        self._columns, self._key = tuple(schema.names), key
        columns = []
        for item in schema:
            kind = postgres_types.type_for(item.name, item.dataType)
            not_null = " not null" if item.name in key else ""
            columns.append(SQL("{} " + kind + not_null).format(Identifier(item.name)))
        create = SQL("create table if not exists {} ({}, primary key ({}))").format(
            self._table(), SQL(", ").join(columns), self._listed(key)
        )
        batches = self._beside(BATCHES)
        with connect(self._settings) as connection:
            # Tables that are made at the same moment collide.
            connection.execute("select pg_advisory_xact_lock(hashtext('fkjoin'))")
            connection.execute(SQL(_BATCHES).format(batches))
            if not self._is_there(connection):  # its batches went with the table that was there
                forget = SQL("delete from {} where target = %s").format(batches)
                connection.execute(forget, (self.into,))
            connection.execute(create)
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
                    f"table {self.into} does not match fkjoin's table: {first_line(error)}. It "
                    f"needs the columns {', '.join(schema.names)} and a primary key or unique "
                    f"constraint of ({', '.join(self._key)}); or drop it: a new query creates it, "
                    "and after other batches, fkjoin restore writes its rows again"
                ) from error
            if not keep:
                connection.rollback()

    def _require_types(self, connection: Connection[Any], schema: StructType) -> None:
        table = self._table().as_string(connection)
        if wrong := list(postgres_types.problems(connection, table, schema, self._key)):
            raise FkJoinError(
                f"table {self.into} does not match fkjoin's table: {'; '.join(wrong)}"
            )

    @in_outages
    def last_batch(self, query: str) -> BatchId | None:
        # The query's line; None without one, or without a target.
        text = SQL("select batch, began_ms from {} where query = %s and target = %s")
        with connect(self._settings) as connection, contextlib.suppress(*_NOT_THERE):
            line = connection.execute(text.format(self._beside(BATCHES)), (query, self.into))
            row = line.fetchone()
            if row is not None and self._is_there(connection):
                return BatchId(query, *row)
        return None

    def _is_there(self, connection: Connection[Any]) -> bool:
        name, text = self._table().as_string(connection), "select where to_regclass(%s) is not null"
        return connection.execute(text, (name,)).fetchone() is not None

    @in_outages
    def replace(self, batch: BatchId, rows: pa.Table) -> None:
        # These rows and no others, but those that cannot be there, in one transaction with the
        # batch that they are of. They are among the dead letters since they first came; letters of
        # later batches come again.
        others = SQL("select query, target from {} where query <> %s and batch >= 0")
        later = SQL("delete from {} where query = %s and target = %s and batch > %s")
        with connect(self._settings) as connection:
            self._done(connection, batch.query)
            of_others = connection.execute(others.format(self._beside(BATCHES)), (batch.query,))
            for query, into in of_others.fetchall():
                # The batches are in the table's schema, which a name may leave out.
                if into.rpartition(".")[2] == self.into.rpartition(".")[2]:
                    raise FkJoinError(
                        f"query {query} writes to {self.into}, too, and a restore would delete its "
                        "rows"
                    )
            self._stage(connection)
            letters = self._written(connection, rows, alone=True)
            for letter in letters:
                self._delete_one(connection, letter)
            if self.on_error == "dead-letter":
                about = batch.query, self.into, batch.number
                connection.execute(later.format(self._beside(LETTERS)), about)
            self._note(connection, batch)
        self._set_aside(batch.number, letters)

    def _delete_one(self, connection: Connection[Any], letter: Refused) -> None:
        """Delete the row with the key of one that the table cannot store.

        It may be of an earlier or a later batch.
        """
        values = {name: Literal(str(letter.row[name])) for name in self._key}
        parts = [SQL("{} = {}").format(Identifier(name), value) for name, value in values.items()]
        text = SQL("delete from {} where {}").format(self._table(), SQL(" and ").join(parts))
        # A key that is none is not there either.
        with contextlib.suppress(psycopg.DataError), connection.transaction():
            connection.execute(text)

    def _note(self, connection: Connection[Any], batch: BatchId) -> None:
        text = SQL("update {} set batch = %s, began_ms = %s where query = %s and target = %s")
        values = batch.number, batch.began_ms, batch.query, self.into
        connection.execute(text.format(self._beside(BATCHES)), values)

    def _done(self, connection: Connection[Any], query: str) -> BatchId:
        """The query's last batch, with a lock on its line: a second attempt waits here."""
        text = SQL(_DONE).format(self._beside(BATCHES))
        row = connection.execute(text, (query, self.into)).fetchone()
        assert row is not None
        return BatchId(query, *row)

    def as_taken(self, changes: DataFrame) -> DataFrame:
        # Structs, lists and maps as JSON, bytes as PostgreSQL writes them.
        items = [item for item in changes.schema if item.name in (*self._columns, "_operation")]
        return changes.select(*[_readable(item).alias(item.name) for item in items])

    def _set_aside(self, batch: int, letters: list[Refused]) -> None:
        """Count the rows that the table cannot store, and say so."""
        if letters:
            count(self.place, LEFT_OUT, len(letters), list(map(str, letters[-10:])))
            where = f"in {LETTERS}" if self.on_error == "dead-letter" else "left out"
            text = "table %s: %d rows of batch %d are %s, not in the table; the first: %s"
            facts = self.into, len(letters), batch, where, letters[0]
            logging.getLogger("fkjoin").warning(text, *facts)

    @in_outages
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        with connect(self._settings) as connection:
            if self.has(batch, self._done(connection, batch.query)):
                return
            self._stage(connection)
            copy = partial(self._copy, connection, deleted=True)
            for _ in unread(connection, deletes, copy, self._key):
                pass  # a key that the table cannot store is not in it
            connection.execute(self._delete())
            letters = self._written(connection, upserts)
            if self.on_error == "dead-letter":
                about = batch.query, batch.number, self.into
                lines = [(*about, *row.letter()) for row in letters]
                with connection.cursor() as cursor:
                    cursor.executemany(SQL(_RECORD).format(self._beside(LETTERS)), lines)
            self._note(connection, batch)
        self._set_aside(batch.number, letters)

    def _written(
        self, connection: Connection[Any], rows: pa.Table, *, alone: bool = False
    ) -> list[Refused]:
        """Insert or update rows; return those that the table cannot store, if the query continues.

        ``alone``: others go.
        """
        letters = []
        for row in self._upserted(connection, rows, alone):
            if self.on_error == "fail":
                raise FkJoinError(
                    f"a row cannot be in table {self.into}: {row}{set_aside('rows')}, {_OTHER_WAYS}"
                )
            letters.append(row)
        return letters

    def _upserted(
        self, connection: Connection[Any], rows: pa.Table, alone: bool
    ) -> Iterator[Refused]:
        """Insert or update the rows; those that are refused."""
        rows = rows.append_column(ROW_PLACE, pa.array(range(rows.num_rows), pa.int64()))
        copy = partial(self._copy, connection, deleted=False)
        yield from unread(connection, rows, copy, self._key)
        if alone:  # before the rows come: another one may have what has to be unique
            others = SQL(
                "delete from {} as target "
                "where not exists (select from fkjoin_changes as changes where {})"
            )
            connection.execute(others.format(self._table(), self._same_key("changes")))

        def write(first: int, end: int) -> None:
            connection.execute(self._upsert(first, end))

        def index() -> None:
            text = SQL("create index on fkjoin_changes ({})").format(Identifier(ROW_PLACE))
            connection.execute(text)

        yield from unwritten(connection, rows, write, index, self._key)

    def _repeated(self, work: Callable[[], _T]) -> _T:
        """Return what the work returns, through outages; ``FkJoinError`` of other refusals."""
        try:
            return repeated(self.place, work, mends, self.retry_s)
        except psycopg.Error as error:
            why = first_line(error)
        mend = "Fix that"
        if NO_PASSWORD in why:
            mend = "Set PGPASSWORD, or write a password into the address,"
        raise unreached(f"table {self.into} cannot be written to: {why}", mend)

    def _copy(self, connection: Connection[Any], rows: pa.Table, *, deleted: bool) -> None:
        names = [*rows.column_names, _GONE]
        text = io.BytesIO()
        chosen = pa.table([*map(spelled, rows.columns), pa.repeat(deleted, rows.num_rows)], names)
        pa_csv.write_csv(chosen, text, pa_csv.WriteOptions(include_header=False))
        into = SQL("copy fkjoin_changes ({}) from stdin (format csv)").format(self._listed(names))
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
        assign = SQL("{0} = excluded.{0}").format
        rest = [assign(Identifier(name)) for name in self._columns if name not in self._key]
        update = SQL("do update set {}").format(SQL(", ").join(rest))
        action = update if rest else SQL("do nothing")
        text = (
            "insert into {0} ({1}) select {1} from fkjoin_changes where not _fkjoin_gone "
            "and _fkjoin_place >= {4} and _fkjoin_place < {5} on conflict ({2}) {3}"
        )
        columns, key = self._listed(self._columns), self._listed(self._key)
        # No parameters: with some, a name with a % would be read as one.
        places = Literal(first), Literal(end)
        return SQL(text).format(self._table(), columns, key, action, *places)

    def _delete(self) -> Composed:
        text = SQL("delete from {} as target using fkjoin_changes as gone where {}")
        is_gone = SQL("gone._fkjoin_gone and {}").format(self._same_key("gone"))
        return text.format(self._table(), is_gone)

    def _same_key(self, alias: str) -> Composed:
        same = SQL("target.{0} = {1}.{0}").format
        parts = [same(Identifier(name), Identifier(alias)) for name in self._key]
        return SQL(" and ").join(parts)

    def _listed(self, names: Sequence[str]) -> Composed:
        return SQL(", ").join(map(Identifier, names))

    def _table(self) -> Identifier:
        return Identifier(*self.into.split("."))

    def _beside(self, name: str) -> Identifier:
        return Identifier(*self.into.split(".")[:-1], name)


def _readable(item: StructField) -> Column:
    column = F.col(quoted(item.name))
    if isinstance(item.dataType, NESTED):
        return written(column, item.dataType)
    if isinstance(item.dataType, BinaryType):
        return F.concat(F.lit("\\x"), F.lower(F.hex(column)))
    return column
