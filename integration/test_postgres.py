"""PostgreSQL tables kept up to date, in a real server: one transaction a batch, attempts at a time, a query through restarts.

What every sink has to do: test_postgres_contract.py.
"""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from integration.postgres import IDS, NUMBERS, batch, gone, select, target
from tests.support.batch_ids import batch_id
from tests.support.orders import History, batch_join
from tests.support.sessions import small
from tests.support.sinks import finished, joined


def test_two_attempts_at_a_batch_at_the_same_time_count_once(dsn: str) -> None:
    target(dsn, NUMBERS, "id")
    with psycopg.connect(dsn) as connection:  # counts the rows that are written
        connection.execute("create table shop.log (n bigint)")
        connection.execute(
            "create function shop.note() returns trigger language plpgsql as "
            "$$ begin insert into shop.log values (new.n); perform pg_sleep(0.3); return new; end $$"
        )
        connection.execute("create trigger noted before insert or update on shop.it for each row execute function shop.note()")
    given = batch_id(0), batch(a=1), gone()
    attempts = [threading.Thread(target=target(dsn, NUMBERS, "id").apply, args=given) for _ in range(3)]
    for attempt in attempts:
        attempt.start()
    for attempt in attempts:
        attempt.join(30)
    assert select(dsn, "select n from shop.log") == [(1,)]


def test_a_batch_that_fails_leaves_nothing(dsn: str) -> None:
    postgres = target(dsn, NUMBERS, "id")
    postgres.apply(batch_id(0), batch(a=1), gone())
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table shop.it add check (n < 10)")
    with pytest.raises(FkJoinError, match="a row cannot be in table shop.it: id = 'c', column n = 99: new row for relation"):
        postgres.apply(batch_id(1), batch(b=2, c=99), gone("a"))
    assert select(dsn, "select * from shop.it") == [("a", 1)]
    postgres.apply(batch_id(1), batch(b=2), gone("a"))
    assert select(dsn, "select * from shop.it") == [("b", 2)]


def test_a_table_of_keys_alone(dsn: str) -> None:
    postgres = target(dsn, IDS, "id")
    postgres.apply(batch_id(0), gone("a", "b"), gone())
    postgres.apply(batch_id(1), gone("a"), gone("b"))
    assert select(dsn, "select * from shop.it") == [("a",)]


def test_two_tables_are_kept_by_one_query_through_a_restart(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """Each table knows which batches it has."""
    small(spark, tmp_path)
    history = History(tmp_path)
    for _ in range(2):
        history.write(60)
        both = Postgres("shop.one", dsn), Postgres("shop.two", dsn)
        finished(joined(spark, tmp_path).to(*both, checkpoint=tmp_path / "ck", trigger={"availableNow": True}))
        expected = sorted((key, row["items"], row["region"]) for key, row in batch_join(history).items())
        for table in ("one", "two"):
            assert select(dsn, f"select order_id, items, region from shop.{table} order by 1") == expected
    batches = select(dsn, "select split_part(query, ' ', 3), batch from shop.fkjoin_batches order by 1")
    assert batches == [("shop.one", 1), ("shop.two", 1)]


def test_a_restore_leaves_the_rows_of_other_queries(dsn: str) -> None:
    postgres = target(dsn, NUMBERS, "id")
    postgres.apply(batch_id(0), batch(a=1), gone())
    postgres.apply(batch_id(0, query="another"), batch(b=2), gone())
    with pytest.raises(FkJoinError, match="query another writes to shop.it, too, and a restore would delete its rows"):
        postgres.replace(batch_id(0), batch(a=1))
    assert select(dsn, "select * from shop.it order by id") == [("a", 1), ("b", 2)]
