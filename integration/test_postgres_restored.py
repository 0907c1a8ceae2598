"""A checkpoint or a PostgreSQL table that was restored from a backup: the start is refused until the table is restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin.aggregates import count
from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from integration.postgres import NUMBERS, batch, gone, kept_rows, select, target
from tests.support.batch_ids import batch_id
from tests.support.orders import History, batch_join, tables
from tests.support.queries import write_lines
from tests.support.sessions import small
from tests.support.sinks import Backup, finished


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)


def join(spark: SparkSession, folder: Path) -> Table:
    return fk_join(*tables(spark, folder), "customer_id", joiner=["left.items", "right.region"], name="joined")


def kept_join(spark: SparkSession, folder: Path) -> Table:
    return join(spark, folder).materialize("kept")


def totals(spark: SparkSession, folder: Path) -> Table:
    return tables(spark, folder)[0].group_by("customer_id", name="totals").agg(orders=count())


def joined_rows(history: History) -> dict[str, Any]:
    return {key: tuple(row.values()) for key, row in batch_join(history).items()}


def total_rows(history: History) -> dict[str, Any]:
    customers = [order["customer_id"] for order in history.orders.values()]
    return {customer: (customers.count(customer),) for customer in customers}


def run(table: Table, dsn: str, folder: Path) -> None:
    finished(table.to_postgres("shop.it", dsn, checkpoint=folder / "ck", trigger={"availableNow": True}))


def restore(table: Table, dsn: str, folder: Path) -> list[str]:
    return table.restore(Postgres("shop.it", dsn), checkpoint=folder / "ck")


@pytest.mark.parametrize(("made", "wanted"), [(kept_join, joined_rows), (totals, total_rows)], ids=["join", "aggregate"])
def test_a_table_whose_rows_are_in_the_state_is_restored(
    spark: SparkSession, dsn: str, tmp_path: Path, made: Callable[..., Table], wanted: Callable[[History], dict[str, Any]]
) -> None:
    history = History(tmp_path)
    history.write(60)
    run(made(spark, tmp_path), dsn, tmp_path)
    backup = Backup(tmp_path / "ck")
    for _ in range(2):
        history.write(60)
        run(made(spark, tmp_path), dsn, tmp_path)
    backup.restore()
    history.write(60)
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and postgres shop.it is ahead, at batch 2: the checkpoint was"):
        run(made(spark, tmp_path), dsn, tmp_path)
    assert restore(made(spark, tmp_path), dsn, tmp_path) == ["postgres shop.it"]
    for _ in range(2):
        run(made(spark, tmp_path), dsn, tmp_path)
        assert kept_rows(dsn) == wanted(history)
        history.write(60)
    ((number, began_ms),) = select(dsn, "select batch, began_ms from shop.fkjoin_batches")
    assert number == 2
    assert f'"batchTimestampMs":{began_ms},' in (tmp_path / "ck" / "offsets" / "2").read_text()


def test_a_table_that_is_behind_its_checkpoint_is_refused_and_gets_its_rows_from_the_state(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    """The dump has the first batch; the last batch has no rows."""
    history, table = History(tmp_path), kept_join(spark, tmp_path)
    history.write(60)
    run(table, dsn, tmp_path)
    with psycopg.connect(dsn) as connection:
        for name in ("it", "fkjoin_batches"):
            connection.execute(f"create table shop.{name}_dump as table shop.{name}")  # type: ignore[call-overload]
    history.write(60)
    run(table, dsn, tmp_path)
    write_lines(tmp_path / "orders", "none", [{"order_id": "never", "lsn": 10**9, "op": "d"}])
    run(table, dsn, tmp_path)
    with psycopg.connect(dsn) as connection:
        for name in ("it", "fkjoin_batches"):
            connection.execute(f"delete from shop.{name}")  # type: ignore[call-overload]
            connection.execute(f"insert into shop.{name} table shop.{name}_dump")  # type: ignore[call-overload]
    with pytest.raises(
        FkJoinError, match=r"ck is at batch 2, and postgres shop.it is behind, at batch 0: it was restored from"
    ):
        run(table, dsn, tmp_path)
    restore(table, dsn, tmp_path)
    assert kept_rows(dsn) == joined_rows(history)
    run(table, dsn, tmp_path)
    assert kept_rows(dsn) == joined_rows(history)


def test_a_table_that_the_state_does_not_have_is_refused_and_the_way_on_is_a_new_checkpoint(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    history = History(tmp_path)
    history.write(60)
    run(join(spark, tmp_path), dsn, tmp_path)
    backup = Backup(tmp_path / "ck")
    history.write(60)
    run(join(spark, tmp_path), dsn, tmp_path)
    backup.restore()
    before = kept_rows(dsn)
    says = r"postgres shop\.it is ahead.*cannot be restored: joined keeps only hashes of its rows.*materialize"
    with pytest.raises(FkJoinError, match=rf"{says}.*\. Or start with a new checkpoint and an empty target"):
        restore(join(spark, tmp_path), dsn, tmp_path)
    assert kept_rows(dsn) == before == joined_rows(history)
    with psycopg.connect(dsn) as connection:
        connection.execute("truncate shop.it")
    backup.folder.rename(tmp_path / "ck-before")
    run(join(spark, tmp_path), dsn, tmp_path)
    assert kept_rows(dsn) == joined_rows(history)


def test_a_table_with_a_value_that_is_unique_is_restored_though_another_row_has_it_since(dsn: str) -> None:
    postgres = target(dsn, NUMBERS, "id")
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table shop.it add unique (n)")
    postgres.apply(batch_id(0), batch(a=1), gone())
    postgres.apply(batch_id(1), batch(b=1), gone("a"))
    postgres.replace(batch_id(0), batch(a=1))
    assert select(dsn, "select id, n from shop.it") == [("a", 1)]


def test_a_table_that_was_dropped_is_refused_and_made_from_the_state(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """The table with the batches is still there, so that the query's last one is known."""
    history, table = History(tmp_path), kept_join(spark, tmp_path)
    history.write(60)
    run(table, dsn, tmp_path)
    with psycopg.connect(dsn) as connection:
        connection.execute("drop table shop.it")
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and postgres shop.it has no batch of its query: it is another"):
        run(table, dsn, tmp_path)
    restore(table, dsn, tmp_path)
    assert kept_rows(dsn) == joined_rows(history)
    history.write(60)
    run(table, dsn, tmp_path)
    assert kept_rows(dsn) == joined_rows(history)
