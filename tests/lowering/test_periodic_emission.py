"""Periodic emission on Spark: held back through restarts, sent by the clock alone, readable while it waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join, read_state
from fkjoin.checkpoint.entries import look_up
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import verify
from tests.support.orders import tables
from tests.support.queries import run, table_of, write_lines
from tests.support.sessions import small

LONG = "periodic 20000 days"
"""Such an interval began in 2024, and will be over in 2079."""
SHORT = "periodic 100 ms"


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, buckets=3)


def order(key: str, customer: str, amount: float, lsn: int, op: str = "u") -> dict[str, Any]:
    return {"order_id": key, "customer_id": customer, "amount": amount, "items": 1, "lsn": lsn, "op": op}


def joined(orders: Table, customers: Table, emit: str) -> Table:
    return fk_join(orders, customers, "customer_id", name="joined", emit=emit, validate=True)


def test_changes_wait_through_restarts_and_the_last_one_is_sent(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint, sources = tmp_path / "ck", tables(spark, tmp_path)
    held, soon = joined(*sources, LONG), joined(*sources, SHORT)
    write_lines(tmp_path / "customers", "0", [{"customer_id": "c1", "region": "north", "lsn": 1, "op": "u"}])
    write_lines(tmp_path / "orders", "0", [order("o1", "c1", 1.0, 2), order("o2", "c1", 1.0, 3)])
    rows = run(held.changes, checkpoint).rows
    assert {key: row.left.amount for (key,), row in table_of(rows, "order_id").items()} == {"o1": 1.0, "o2": 1.0}
    write_lines(tmp_path / "orders", "1", [order("o1", "c1", 3.0, 5), order("o2", "c1", 1.0, 6, "d")])
    assert run(held.changes, checkpoint).rows == []
    kept = {record["kind"]: record for record in look_up(saved_stores(spark, checkpoint), "joined", "o1")}
    assert {"waiting", "sent"} <= kept.keys()
    assert kept["waiting"]["row"] is not None
    assert list(verify(spark, checkpoint)) == []
    rows += run(soon.changes, checkpoint).rows
    assert {key: row.left.amount for (key,), row in table_of(rows, "order_id").items()} == {"o1": 3.0}


def test_no_data_need_come_for_an_interval_to_end(spark: SparkSession, tmp_path: Path) -> None:
    orders, customers = tables(spark, tmp_path)
    table = joined(orders, customers, "periodic 3 seconds").materialize("joined")
    query = table.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck")
    try:
        write_lines(tmp_path / "customers", "0", [{"customer_id": "c1", "region": "north", "lsn": 1, "op": "u"}])
        for number in range(3):  # they do not all come with the end of an interval
            write_lines(tmp_path / "orders", str(number), [order(f"o{number}", "c1", 1.0, 2 + number)])
            time.sleep(1.3)
        until = time.monotonic() + 60
        found: list[str] = []
        while len(found) < 3 and time.monotonic() < until:
            time.sleep(0.5)
            files = [str(file) for file in (tmp_path / "out").glob("batch=*/*.parquet")]
            found = [row["order_id"] for row in spark.read.parquet(*files).collect()] if files else []
        assert sorted(found) == ["o0", "o1", "o2"]
        assert query.exception() is None
    finally:
        query.stop()
    assert read_state(spark, tmp_path / "ck", "joined").count() == 3
