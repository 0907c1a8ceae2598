"""Emission by a clock, and by stream time, on Spark.

Rows that are held back through restarts, sent by the clock alone, and readable while they wait;
windows that close, of two sources that are joined.
"""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import fkjoin
from fkjoin import Table, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.checkpoint.entries import look_up
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.lowering.handle import planned_of
from fkjoin.lowering.operators import plan
from fkjoin.plan.physical import Read, reads, replaced
from fkjoin.stages.counters import metrics_name
from fkjoin.testing import CRASH, Driver
from tests.support.orders import tables
from tests.support.plans.topologies import Sources
from tests.support.queries import run, table_of, write_lines
from tests.support.sessions import small

LONG = "periodic 20000 days"
"""Such an interval began in 2024, and will be over in 2079."""
SHORT = "periodic 100 ms"


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, buckets=2, validate=True)


def order(key: str, customer: str, amount: float, lsn: int, op: str = "u") -> dict[str, Any]:
    return {"order_id": key, "customer_id": customer, "amount": amount, "items": 1, "lsn": lsn, "op": op}


def joined(orders: Table, customers: Table, emit: str) -> Table:
    return fk_join(orders, customers, "customer_id", name="joined", emit=emit)


def test_changes_wait_through_restarts_and_the_last_one_is_sent(spark: SparkSession, tmp_path: Path) -> None:
    """With one bucket, whose stages share an operator."""
    small(spark, tmp_path, validate=True)
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


Shown = tuple[str, str, str, int, int, int]


def timed(key: str, customer: str, amount: int, at: str, lsn: int) -> dict[str, Any]:
    time = f"2026-01-01T{at}:00Z"
    return {"order_id": key, "customer_id": customer, "amount": amount, "at": time, "sent": time, "lsn": lsn}


ORDERS = "order_id string, customer_id string, amount bigint, at timestamp, sent timestamp"
CUSTOMERS = "customer_id string, region string, seen timestamp"


def windows(spark: SparkSession, folder: Path, idle: str) -> Table:
    sources = Sources(spark, folder, {})
    orders = sources.files("orders", "order_id", ORDERS, timestamp="sent")
    customers = sources.files("customers", "customer_id", CUSTOMERS, timestamp="seen")
    joined = orders.join(customers, "customer_id", joiner=["left.at", "left.amount", "right.region"], name="joined")
    key = [fkjoin.window("at", "10 minutes", "5 minutes"), "region"]
    grouped = joined.group_by(key, name="sums", emit="on-close", grace="2 minutes", idle=idle)
    return grouped.agg(rows=agg.count(), total=agg.sum("amount"), most=agg.max("amount"))


def shown(rows: list[Row]) -> list[Shown]:
    assert all(row["_operation"] == "insert" for row in rows)
    return sorted(
        (f"{row['window_start']:%H:%M}", f"{row['window_end']:%H:%M}", row["region"], row["rows"], row["total"], row["most"])
        for row in rows
    )


CLOSED = [
    ("09:55", "10:05", "north", 1, 6, 6),
    ("09:55", "10:05", "south", 1, 7, 7),
    ("10:00", "10:10", "north", 2, 7, 6),
    ("10:00", "10:10", "south", 1, 7, 7),
    ("10:05", "10:15", "north", 2, 3, 2),
    ("10:10", "10:20", "north", 1, 2, 2),
]


def test_windows_of_two_joined_sources_close_once(spark: SparkSession, tmp_path: Path) -> None:
    table, checkpoint = windows(spark, tmp_path, "1 hour"), tmp_path / "ck"
    seen = {"seen": "2026-01-01T10:30:00Z", "lsn": 1}
    regions = [{"customer_id": "c1", "region": "north", **seen}, {"customer_id": "c2", "region": "south", **seen}]
    write_lines(tmp_path / "customers", "0", regions)
    first = [timed("o2", "c2", 7, "10:04", 2), timed("o3", "c1", 1, "10:06", 3), timed("o4", "c1", 2, "10:12", 5)]
    changed = [timed("o1", "c1", 5, "10:01", 1), timed("o1", "c1", 6, "10:01", 4)]
    write_lines(tmp_path / "orders", "0", [*changed, *first])
    rows = run(table.changes, checkpoint).rows
    assert [end for _, end, *_ in shown(rows)] == ["10:05", "10:05", "10:10", "10:10"]
    write_lines(tmp_path / "orders", "2", [timed("late", "c1", 100, "10:03", 6), timed("o5", "c1", 9, "10:40", 7)])
    late = run(table.changes, checkpoint, metrics_name("sums"))
    assert late.count["late-dropped"] == 2, "one for each of its windows"
    rows += late.rows
    assert shown(rows) == CLOSED, "stream time was kept, and is that of the slower source"
    state = saved_stores(spark, checkpoint)
    assert {record["kind"] for record in look_up(state, "sums", "o5")} == {"contribution"}
    assert list(verify(spark, checkpoint)) == []


def test_a_folder_that_is_read_in_two_ways_has_a_time_of_each(spark: SparkSession, tmp_path: Path) -> None:
    """Spark lists the files of each reading by itself: here workers have both in the batch in which it has one."""
    orders = Sources(spark, tmp_path, {}).files("orders", "order_id", ORDERS, timestamp="sent")
    parts = orders.filter("at = at + make_interval(0)", name="parts")
    joined = parts.join(orders, "customer_id", joiner=["left.at", "left.amount"], name="joined")
    key = fkjoin.window("at", "10 minutes")
    table = joined.group_by(key, name="sums", emit="on-close").agg(total=agg.sum("amount"))
    write_lines(tmp_path / "orders", "0", [timed("whole", "none", 9, "10:00", 1), timed("o1", "whole", 1, "10:01", 2)])
    write_lines(tmp_path / "orders", "1", [timed("o2", "whole", 8, "10:03", 3), timed("o3", "whole", 2, "10:30", 4)])
    os.utime(tmp_path / "orders" / "0.json", (1, 1))
    windows = plan(planned_of("table", table))
    (by_spark,) = reads(planned_of("orders", orders).bound.rows)
    assert isinstance(by_spark, Read)
    slower = {by_spark: replace(by_spark, options={**by_spark.options, "maxFilesPerTrigger": "1"})}
    assert set(reads(windows.top)) > {by_spark}
    rows = run(windows.on_spark(replaced(windows.results_plan, slower.get)), tmp_path / "ck").rows
    assert [row["row"]["total"] for row in rows] == [1 + 8]


def test_a_row_from_the_future_closes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Timestamps are an expression of Spark's; in memory, the row is a dead letter."""
    far = {**timed("far", "c1", 1, "10:00", 1), "at": "2100-01-01T00:00:00Z", "sent": "2100-01-01T00:00:00Z"}
    more = [timed("o1", "c1", 1, "10:01", 2), timed("o2", "c1", 1, "10:02", 3), timed("o3", "c1", 1, "10:30", 4)]
    write_lines(tmp_path / "orders", "0", [far, *more])
    orders = Sources(spark, tmp_path, {}).files("orders", "order_id", ORDERS, timestamp="sent + make_interval(0)")
    grouped = orders.group_by(fkjoin.window("at", "10 minutes"), name="sums", emit="on-close", ahead="1 hour")
    table = grouped.agg(rows=agg.count())
    rows = run(table.changes, tmp_path / "ck").rows
    assert [(f"{row['window_end']:%H:%M}", row["rows"]) for row in rows] == [("10:10", 2)]
    driver = Driver(table)
    moment = datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc)
    driver.input("orders").change("far", {"customer_id": "c1", "amount": 1, "at": moment, "sent": moment}, timestamp=moment)
    driver.run()
    (letter,) = driver.dead_letters
    assert letter["reason"].endswith("3600 s ahead of the batch's time")


def test_windows_close_in_the_driver_by_its_clock(spark: SparkSession, tmp_path: Path) -> None:
    driver = Driver(windows(spark, tmp_path, "1 minute"))

    def at(minute: int) -> datetime.datetime:
        return datetime.datetime(2026, 1, 1, 10, minute, tzinfo=datetime.timezone.utc)

    def order(key: str, minute: int) -> None:
        row = {"customer_id": "c1", "amount": minute, "at": at(minute)}
        driver.input("orders").change(key, row, timestamp=at(minute))

    driver.input("customers").change("c1", {"region": "north"}, timestamp=at(0))
    order("o1", 1)
    order("o2", 20)
    assert driver.run(CRASH) == [], "the customers hold stream time back"
    assert driver.advance("15 seconds") == []
    order("o3", 2)
    closed = [change for _ in range(6) for change in driver.advance("15 seconds")]
    rows = [(change.key[1].minute, change.row["total"]) for change in closed if change.row]
    assert sorted(rows) == [(5, 3), (10, 3)]
    order("o4", 3)
    driver.run()
    assert driver.count["late-dropped"] == 2
    letter = "sums", b'{"order_id":"o4"}', "group_by sums: the window was closed"
    letters = [(one["table"], bytes(one["key"]), one["reason"]) for one in driver.dead_letters]
    assert letters == [letter] * 2
