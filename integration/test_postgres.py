"""PostgreSQL tables kept up to date, in a real server: types, one transaction a batch, refusals, a query through restarts."""

from __future__ import annotations

import datetime
import threading
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fkjoin import fk_join
from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from integration.postgres import IDS, NUMBERS, batch, gone, select, target
from tests.support.batch_ids import batch_id
from tests.support.orders import History, tables
from tests.support.sessions import small


def test_every_type_arrives_as_it_is(dsn: str) -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)
    texts = ["", "a,\"b\"\n'c'\\N", "\\.", "ä €", None]
    columns = {
        "id": pa.array(range(5), pa.int64()),
        'Odd "name': pa.array(texts),
        "flag": pa.array([True, False, None, None, None]),
        "real": pa.array([0.1, float("inf"), float("-inf"), 1e300, None]),
        "price": pa.array([Decimal("1.50"), Decimal("-0.01"), None, None, None], pa.decimal128(9, 2)),
        "day": pa.array([at.date()] * 4 + [None]),
        "at": pa.array([at] * 4 + [None], pa.timestamp("us", "UTC")),
        "raw": pa.array(["\\x00ff", "\\x", None, None, None]),
        "list": pa.array(["[1,null]", "[]", None, None, None]),
    }
    given = pa.table(columns)
    kinds = {"raw": pa.binary(), "list": pa.list_(pa.int32())}  # Spark has made text of these
    schema = pa.schema([pa.field(item.name, kinds.get(item.name, item.type)) for item in given.schema])
    target(dsn, schema, "id").apply(batch_id(0), given, given.select(["id"]).slice(0, 0))
    found = select(dsn, "select * from shop.it order by id")
    assert [row[1] for row in found] == texts
    assert found[0] == (0, "", True, 0.1, Decimal("1.50"), at.date(), at, b"\x00\xff", [1, None])
    assert found[1][2:] == (False, float("inf"), Decimal("-0.01"), at.date(), at, b"", [])
    assert found[4] == (4, *[None] * 8)


def test_a_check_says_what_the_start_would_and_makes_nothing(dsn: str) -> None:
    sink, schema = Postgres("shop.it", dsn), NUMBERS
    for _ in range(2):
        sink.examine(schema, ("id",))
        assert select(dsn, "select to_regclass('shop.it'), to_regclass('shop.fkjoin_batches')") == [(None, None)]
    target(dsn, NUMBERS, "id")
    sink.examine(schema, ("id",))
    with pytest.raises(FkJoinError, match=r"table shop\.it cannot be kept as fkjoin's table is"):
        sink.examine(NUMBERS.append(pa.field("other", pa.string())), ("id",))
    with pytest.raises(FkJoinError, match="tried once, retry_s = 0"):
        Postgres("shop.it", "host=127.0.0.1 port=1").examine(schema, ("id",))


def test_rows_come_change_and_go_and_a_repeated_batch_does_nothing(dsn: str) -> None:
    postgres = target(dsn, NUMBERS, "id")
    postgres.apply(batch_id(0), batch(a=1, b=2), gone())
    postgres.apply(batch_id(1), batch(a=7), gone("b", "never there"))
    assert select(dsn, "select * from shop.it") == [("a", 7)]
    target(dsn, NUMBERS, "id").apply(batch_id(1), batch(a=1, b=2), gone())
    assert select(dsn, "select * from shop.it") == [("a", 7)]
    postgres.apply(batch_id(0, query="another query"), batch(c=3), gone())
    assert select(dsn, "select * from shop.it order by id") == [("a", 7), ("c", 3)]
    assert select(dsn, "select query, batch from shop.fkjoin_batches order by query") == [("another query", 0), ("q", 1)]


def test_another_batch_of_a_number_that_is_there_is_refused(dsn: str) -> None:
    postgres = target(dsn, NUMBERS, "id")
    postgres.apply(batch_id(0), batch(a=1), gone())
    postgres.apply(batch_id(1), batch(b=2), gone())
    postgres.apply(batch_id(1), batch(b=9), gone())
    for other, what in ((batch_id(1, 201), "another batch of that number"), (batch_id(0), "batch 0")):
        says = f"has batch 1 of the query, which is about to write {what}: the query runs twice"
        with pytest.raises(FkJoinError, match=says):
            postgres.apply(other, batch(c=3), gone("b"))
    assert select(dsn, "select * from shop.it order by id") == [("a", 1), ("b", 2)]
    assert select(dsn, "select query, batch, began_ms from shop.fkjoin_batches") == [("q", 1, 200)]


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


@pytest.mark.parametrize(
    ("existing", "says"),
    [
        ("id text primary key", 'column "n" does not exist. It needs the columns id, n and a primary key'),
        ("id text, n bigint", "no unique or exclusion constraint.* unique constraint of \\(id\\); or drop it"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_anything_runs(dsn: str, existing: str, says: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(f"create table shop.it ({existing})")  # type: ignore[call-overload]
    with pytest.raises(FkJoinError, match=f"table shop.it cannot be kept.*{says}"):
        target(dsn, NUMBERS, "id")


def test_a_join_is_kept_as_a_table_through_restarts(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    small(spark, tmp_path)
    history = History(tmp_path)
    for _ in range(2):
        history.write(60)
        joined = fk_join(*tables(spark, tmp_path), "customer_id")
        query = joined.to_postgres("shop.joined", dsn, checkpoint=tmp_path / "ck", trigger={"availableNow": True})
        query.awaitTermination()
        found = {key: (left, right) for key, left, right in select(dsn, 'select order_id, "left", "right" from shop.joined')}
        assert found == {
            key: (order | {"op": "u"}, history.customers[order["customer_id"]] | {"op": "u"})
            for key, order in history.orders.items()
            if order["customer_id"] in history.customers
        }


def test_two_tables_of_one_database_in_one_query(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """Each table knows which batches it has."""
    small(spark, tmp_path)
    history = History(tmp_path)
    for _ in range(2):
        history.write(60)
        joined = fk_join(*tables(spark, tmp_path), "customer_id", joiner=["left.items", "right.region"])
        both = Postgres("shop.one", dsn), Postgres("shop.two", dsn)
        joined.to(*both, checkpoint=tmp_path / "ck", trigger={"availableNow": True}).awaitTermination()
        expected = sorted(
            (key, order["items"], history.customers[order["customer_id"]]["region"])
            for key, order in history.orders.items()
            if order["customer_id"] in history.customers
        )
        for table in ("one", "two"):
            assert select(dsn, f"select order_id, items, region from shop.{table} order by 1") == expected
    batches = select(dsn, "select split_part(query, ' ', 3), batch from shop.fkjoin_batches order by 1")
    assert batches == [("shop.one", 1), ("shop.two", 1)]


def test_a_batch_is_of_a_query_and_a_target(dsn: str) -> None:
    """Another target of the same query has none of its batches."""
    postgres = target(dsn, NUMBERS, "id")
    postgres.apply(batch_id(0), batch(a=1), gone())
    assert Postgres("shop.other", dsn).last_batch("q") is None
    other = Postgres("shop.other", dsn)
    other.prepare(NUMBERS, ("id",))
    assert other.last_batch("q") is None
    with psycopg.connect(dsn) as connection:
        connection.execute("drop table shop.other")


def test_a_restore_leaves_the_rows_of_other_queries(dsn: str) -> None:
    postgres = target(dsn, NUMBERS, "id")
    postgres.apply(batch_id(0), batch(a=1), gone())
    postgres.apply(batch_id(0, query="another"), batch(b=2), gone())
    with pytest.raises(FkJoinError, match="query another writes to shop.it, too, and would lose its rows"):
        postgres.replace(batch_id(0), batch(a=1))
    assert select(dsn, "select * from shop.it order by id") == [("a", 1), ("b", 2)]
