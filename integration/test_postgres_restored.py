"""A checkpoint set back to a backup: its PostgreSQL table is set back from the state with it, or the start is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin.aggregates import count
from fkjoin.checkpoint.batch_log import Mark
from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from fkjoin.sinks.restored import SetBack
from fkjoin.sinks.table_sink import BatchId
from integration.postgres import NUMBERS, batch, gone, kept_rows, select, target
from tests.support.orders import History, batch_join, tables
from tests.support.sessions import small
from tests.support.sinks import Backup, finished, no_input


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


def run(table: Table, dsn: str, folder: Path, **more: Any) -> None:
    finished(table.to_postgres("shop.it", dsn, checkpoint=folder / "ck", trigger={"availableNow": True}, **more))


@pytest.mark.parametrize(("made", "wanted"), [(kept_join, joined_rows), (totals, total_rows)], ids=["join", "aggregate"])
def test_a_table_whose_rows_are_in_the_state_is_set_back(
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
    with pytest.raises(
        FkJoinError, match=r"ck was set back: it is at batch 0, and postgres shop.it has batch 2 of its query\."
    ):
        run(made(spark, tmp_path), dsn, tmp_path)
    for _ in range(2):
        run(made(spark, tmp_path), dsn, tmp_path, on_restore="set-back")
        assert kept_rows(dsn) == wanted(history)
        history.write(60)
    ((number, began_ms),) = select(dsn, "select batch, began_ms from shop.fkjoin_batches")
    assert number == 2
    assert f'"batchTimestampMs":{began_ms},' in (tmp_path / "ck" / "offsets" / "2").read_text()


def test_the_checkpoint_that_was_replaced_is_refused_or_sets_the_table_back(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    """No batch had rows since the table was set back for the backup."""
    history = History(tmp_path)
    history.write(60)
    run(kept_join(spark, tmp_path), dsn, tmp_path)
    backup = Backup(tmp_path / "ck")
    history.write(60)
    run(kept_join(spark, tmp_path), dsn, tmp_path)
    newer, before = Backup(tmp_path / "ck", "newer"), kept_rows(dsn)
    backup.restore()
    with no_input(tmp_path):
        run(kept_join(spark, tmp_path), dsn, tmp_path, on_restore="set-back")
    assert kept_rows(dsn) != before
    newer.restore()
    with pytest.raises(FkJoinError, match=r"ck is at batch 1, and postgres shop.it was set back since for another copy of it"):
        run(kept_join(spark, tmp_path), dsn, tmp_path)
    run(kept_join(spark, tmp_path), dsn, tmp_path, on_restore="set-back")
    assert kept_rows(dsn) == before
    run(kept_join(spark, tmp_path), dsn, tmp_path)


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
    says = r"on_restore: postgres shop\.it cannot be set back to batch 0 of .*joined keeps only hashes of its rows.*materialize"
    with pytest.raises(FkJoinError, match=rf"{says}.*\. Start with a new checkpoint and an empty target"):
        run(join(spark, tmp_path), dsn, tmp_path, on_restore="set-back")
    assert kept_rows(dsn) == before == joined_rows(history)
    with psycopg.connect(dsn) as connection:
        connection.execute("truncate shop.it")
    backup.folder.rename(tmp_path / "ck-before")
    run(join(spark, tmp_path), dsn, tmp_path)
    assert kept_rows(dsn) == joined_rows(history)


def test_a_checkpoint_from_before_its_first_batch_was_done_makes_the_table_empty(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    class Log:
        checkpoint, last, done = "", 0, -1

        def mark(self, number: int) -> Mark:
            return Mark(number, None)

    History(tmp_path).write(60)
    run(join(spark, tmp_path), dsn, tmp_path)
    sink, log = Postgres("shop.it", dsn), Log()
    sink.begin(join(spark, tmp_path)._lowered)
    ((query,),) = select(dsn, "select query from shop.fkjoin_batches")
    assert kept_rows(dsn)
    for _ in range(2):
        sink.way_back(join(spark, tmp_path)._lowered, query, log, SetBack(7, None))()  # type: ignore[arg-type]
        assert kept_rows(dsn) == {}
        assert sink.last(spark, query) is None


def test_a_table_with_a_value_that_is_unique_is_set_back_though_another_row_has_it_since(dsn: str) -> None:
    postgres = target(dsn, NUMBERS, "id")
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table shop.it add unique (n)")
    postgres.apply(BatchId("q", 0, 100), batch(a=1), gone())
    postgres.apply(BatchId("q", 1, 200), batch(b=1), gone("a"))
    postgres.replace(BatchId("q", 0, 100, 7), batch(a=1))
    assert select(dsn, "select id, n from shop.it") == [("a", 1)]


def test_a_table_that_was_dropped_between_two_runs_is_refused(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """The table with the batches is still there, so that the query's last one is known."""
    history = History(tmp_path)
    history.write(60)
    run(join(spark, tmp_path), dsn, tmp_path)
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table shop.it rename to aside")
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and postgres shop.it is not there: made anew it would lack"):
        run(join(spark, tmp_path), dsn, tmp_path)
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table shop.aside rename to it")
    history.write(60)
    run(join(spark, tmp_path), dsn, tmp_path)
    assert kept_rows(dsn) == joined_rows(history)
