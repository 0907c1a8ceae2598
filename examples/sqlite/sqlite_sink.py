"""A table in SQLite that fkjoin keeps up to date: each batch is one transaction, with its number in a table beside it."""

import sqlite3
from contextlib import closing, contextmanager

import pyarrow.types as kinds

from fkjoin import FkJoinError
from fkjoin.sinks import BatchId, TableSink

BATCHES = "create table if not exists fkjoin_batches (query, target, number, began_ms, primary key (query, target))"
LAST = "select number, began_ms from fkjoin_batches, sqlite_master where query = ? and target = ? and name = target"
TAKEN = (kinds.is_integer, kinds.is_floating, kinds.is_string, kinds.is_binary)


class Sqlite(TableSink):
    place = property(lambda self: f"sqlite {self.into}")

    def __init__(self, database, into):
        self.database, self.into = str(database), into

    def prepare(self, schema, key):
        if other := [field.name for field in schema if not any(takes(field.type) for takes in TAKEN)]:
            raise FkJoinError(f"{self.place}: SQLite has no type for {other[0]}: cast it to text")
        self.names, self.key, self.table = listed(schema.names), list(key), listed([self.into])
        with self.transaction() as db:
            if not db.execute("select 1 from sqlite_master where name = ?", (self.into,)).fetchone():
                db.execute("delete from fkjoin_batches where target = ?", (self.into,))  # of a table that was dropped
            db.execute(f"create table if not exists {self.table} ({self.names}, primary key ({listed(key)}))")
            if lacking := set(schema.names) - {row[1] for row in db.execute(f"pragma table_info({self.table})")}:
                raise FkJoinError(f"{self.place} has no column {', '.join(sorted(lacking))}: add it")

    def last_batch(self, query):
        with self.transaction() as db:
            return self.last_in(db, query)

    def apply(self, batch, upserts, deletes):
        with self.transaction() as db:
            if self.has(batch, self.last_in(db, batch.query)):
                return
            same, rows = listed(self.key, " = ?", " and "), [tuple(row.values()) for row in upserts.to_pylist()]
            if any(value != value for row in rows for value in row):
                raise FkJoinError(f"{self.place}: SQLite has no NaN: replace it in a view of the table")
            db.executemany(f"delete from {self.table} where {same}", [tuple(row.values()) for row in deletes.to_pylist()])
            db.executemany(f"replace into {self.table} ({self.names}) values ({', '.join('?' * upserts.num_columns)})", rows)
            mark = batch.query, self.into, batch.number, batch.began_ms
            db.execute("replace into fkjoin_batches values (?, ?, ?, ?)", mark)

    def last_in(self, db, query):
        row = db.execute(LAST, (query, self.into)).fetchone()
        return row and BatchId(query, *row)

    @contextmanager
    def transaction(self):
        with closing(sqlite3.connect(self.database, timeout=60, isolation_level=None)) as db:
            db.execute("begin immediate")  # the second of two attempts waits here
            db.execute(BATCHES)
            yield db
            db.execute("commit")  # without it, closing takes all back


def listed(names, after="", between=", "):
    return between.join('"{}"{}'.format(name.replace('"', '""'), after) for name in names)
