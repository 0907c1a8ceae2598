"""PostgreSQL tables in a real server: what every sink has to do, attempts at a time, and restores.

A checkpoint and a table that come apart: tests/sinks/test_restored_checkpoint.py.  A query that writes to a table:
integration/test_example_job.py.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from fkjoin.testing import SinkContract
from integration.postgres import IDS, batch, execute, gone, select, sink
from tests.support.batch_ids import batch_id
from tests.support.sampling import EVERY


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a batch has values of the type as they are; of others Spark makes texts (test_postgres_types.py)."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind))


@pytest.mark.faults
class TestPostgres(SinkContract):
    every = 1 if EVERY else 14
    types: ClassVar[list[pa.DataType]] = [kind for kind in SinkContract.types if is_plain(kind)]

    @pytest.fixture(autouse=True)
    def place(self, dsn: str) -> None:
        self.dsn = dsn

    def make_sink(self, into: str) -> Postgres:
        return Postgres(f"shop.{into}", self.dsn)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            connection.execute("set time zone 'UTC'")
            return connection.execute(SQL("select * from {}").format(Identifier("shop", into))).fetchall()

    def drop(self, into: str) -> None:
        execute(self.dsn, SQL("drop table {}").format(Identifier("shop", into)))


def test_two_attempts_at_a_batch_at_the_same_time_count_once(dsn: str) -> None:
    sinks = [sink(dsn) for _ in range(3)]
    execute(
        dsn,
        "create table shop.log (n bigint)",  # the rows that are written
        "create function shop.note() returns trigger language plpgsql as "
        "$$ begin insert into shop.log values (new.n); perform pg_sleep(0.3); return new; end $$",
        "create trigger noted before insert or update on shop.it for each row execute function shop.note()",
    )
    attempts = [threading.Thread(target=one.apply, args=(batch_id(0), batch(a=1), gone())) for one in sinks]
    for attempt in attempts:
        attempt.start()
    for attempt in attempts:
        attempt.join(30)
    assert select(dsn, "select n from shop.log") == [(1,)]


def test_a_batch_that_fails_leaves_nothing(dsn: str) -> None:
    postgres = sink(dsn)
    postgres.apply(batch_id(0), batch(a=1), gone())
    execute(dsn, "alter table shop.it add check (n < 10)")
    with pytest.raises(FkJoinError, match="a row cannot be in table shop.it: id = 'c', column n = 99: new row for relation"):
        postgres.apply(batch_id(1), batch(b=2, c=99), gone("a"))
    assert select(dsn) == [("a", 1)]
    postgres.apply(batch_id(1), batch(b=2), gone("a"))
    assert select(dsn) == [("b", 2)]


def test_a_table_of_keys_alone(dsn: str) -> None:
    postgres = sink(dsn, IDS)
    postgres.apply(batch_id(0), gone("a", "b"), gone())
    postgres.apply(batch_id(1), gone("a"), gone("b"))
    assert select(dsn) == [("a",)]


def test_a_restore_leaves_the_rows_of_other_queries(dsn: str) -> None:
    postgres = sink(dsn)
    postgres.apply(batch_id(0), batch(a=1), gone())
    postgres.apply(batch_id(0, query="another"), batch(b=2), gone())
    with pytest.raises(FkJoinError, match="query another writes to shop.it, too, and a restore would delete its rows"):
        postgres.replace(batch_id(0), batch(a=1))
    assert select(dsn) == [("a", 1), ("b", 2)]


def test_a_table_with_a_value_that_is_unique_is_restored_though_another_row_has_it_since(dsn: str) -> None:
    postgres = sink(dsn, types="id text primary key, n bigint unique")
    postgres.apply(batch_id(0), batch(a=1), gone())
    postgres.apply(batch_id(1), batch(b=1), gone("a"))
    postgres.replace(batch_id(0), batch(a=1))
    assert select(dsn) == [("a", 1)]
