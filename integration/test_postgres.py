"""PostgreSQL tables in a real server: what every sink has to do, attempts at a time, and restores.

Other ways in which a checkpoint and a table come apart: tests/sinks/test_restored_checkpoint.py.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from fkjoin.testing import SinkContract
from integration.postgres import IDS, NUMBERS, batch, execute, gone, kept_rows, select, sink
from tests.support.batch_ids import batch_id
from tests.support.orders import History, batch_join
from tests.support.sampling import EVERY
from tests.support.sessions import small
from tests.support.sinks import Backup, finished, joined


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a batch has values of the type as they are; of others Spark makes texts (test_postgres_types.py)."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind))


@pytest.mark.faults
class TestPostgres(SinkContract):
    every = 1 if EVERY else 9
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


def test_each_table_of_a_query_knows_which_batches_it_has(dsn: str) -> None:
    """Queries with several sinks: tests/sinks/test_several_sinks.py."""
    other = Postgres("shop.other", dsn)
    other.prepare(NUMBERS, ("id",))
    for postgres in (sink(dsn), other):
        postgres.apply(batch_id(0), batch(a=1), gone())
    assert select(dsn) == select(dsn, "select * from shop.other") == [("a", 1)]


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


def test_a_table_that_is_ahead_of_a_restored_checkpoint_is_refused_and_gets_its_rows_from_the_state(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    """The state's batch has the time that Spark logged for it."""
    small(spark, tmp_path)
    history, postgres = History(tmp_path), Postgres("shop.it", dsn)
    table = joined(spark, tmp_path).materialize("kept")

    def run() -> None:
        history.write(60)
        finished(table.to(postgres, checkpoint=tmp_path / "ck", trigger={"availableNow": True}))

    run()
    backup = Backup(tmp_path / "ck")
    run()
    backup.restore()
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and postgres shop.it is ahead, at batch 1: the checkpoint was"):
        run()
    assert table.restore(postgres, checkpoint=tmp_path / "ck") == ["postgres shop.it"]
    run()
    assert kept_rows(dsn) == {key: tuple(row.values()) for key, row in batch_join(history).items()}
    ((number, began_ms),) = select(dsn, "select batch, began_ms from shop.fkjoin_batches")
    assert number == 1
    assert f'"batchTimestampMs":{began_ms},' in (tmp_path / "ck" / "offsets" / "1").read_text()
