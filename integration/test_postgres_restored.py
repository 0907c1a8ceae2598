"""A checkpoint that was restored from a backup, beside a PostgreSQL table: the start is refused until the table is restored.

Other ways to come apart: tests/sinks/test_restored_checkpoint.py.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from integration.postgres import NUMBERS, batch, gone, kept_rows, select, target
from tests.support.batch_ids import batch_id
from tests.support.orders import History, batch_join
from tests.support.sessions import small
from tests.support.sinks import Backup, finished, joined


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)


def test_a_table_that_is_ahead_of_a_restored_checkpoint_is_refused_and_gets_its_rows_from_the_state(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    """The state's batch has the time that Spark logged for it."""
    history, sink = History(tmp_path), Postgres("shop.it", dsn)
    table = joined(spark, tmp_path).materialize("kept")

    def run() -> None:
        history.write(60)
        finished(table.to(sink, checkpoint=tmp_path / "ck", trigger={"availableNow": True}))

    run()
    backup = Backup(tmp_path / "ck")
    run()
    backup.restore()
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and postgres shop.it is ahead, at batch 1: the checkpoint was"):
        run()
    assert table.restore(sink, checkpoint=tmp_path / "ck") == ["postgres shop.it"]
    run()
    assert kept_rows(dsn) == {key: tuple(row.values()) for key, row in batch_join(history).items()}
    ((number, began_ms),) = select(dsn, "select batch, began_ms from shop.fkjoin_batches")
    assert number == 1
    assert f'"batchTimestampMs":{began_ms},' in (tmp_path / "ck" / "offsets" / "1").read_text()


def test_a_table_with_a_value_that_is_unique_is_restored_though_another_row_has_it_since(dsn: str) -> None:
    postgres = target(dsn, NUMBERS, "id")
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table shop.it add unique (n)")
    postgres.apply(batch_id(0), batch(a=1), gone())
    postgres.apply(batch_id(1), batch(b=1), gone("a"))
    postgres.replace(batch_id(0), batch(a=1))
    assert select(dsn, "select id, n from shop.it") == [("a", 1)]
