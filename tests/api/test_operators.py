"""Each kind of operator, in memory: after every part of a log, its rows are those that plain Python recomputes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table
from fkjoin.testing import CRASH, Driver
from tests.support.driven import feed_lines
from tests.support.golden_operators import KINDS, PARTS, QUERIES, Tables, final, log
from tests.support.sessions import small


@pytest.mark.parametrize("name", ["groups", "chain", "star", "tags", "pairs"])
@pytest.mark.usefixtures("small_tables")
def test_its_rows_are_recomputed(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Moves, nulls and deletes; each batch is begun again after a crash."""
    for kind in KINDS:
        (tmp_path / kind).mkdir()
    build, expected = QUERIES[name]
    driver = Driver(build(Tables(spark, tmp_path), "on-change"))
    changes, size = log(), len(log()) // PARTS
    for part in range(PARTS):
        for source, row in changes[part * size : (part + 1) * size]:
            if source in driver.inputs:
                feed_lines(driver, source, [{**row, "lsn": row["seq"]}])
        driver.run(CRASH)
        assert driver.table == expected(final(part + 1))


ORDER = "id string, buyer string, items array<struct<sku: string, n: int>>, lsn bigint, op string"


def orders_of(spark: SparkSession, folder: Path, **more: Any) -> Table:
    (folder / "orders").mkdir(exist_ok=True)
    about: Any = {"key": "id", "version": "lsn", "deleted": "op = 'd'", "format": "json", "schema": ORDER, **more}
    return Table.from_files(spark, folder / "orders", **about)


def order(key: str, lsn: int, buyer: str | None = None, op: str = "u", **items: int) -> dict[str, Any]:
    return {"id": key, "buyer": buyer, "items": [{"sku": sku, "n": n} for sku, n in items.items()], "lsn": lsn, "op": op}


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Table:
    small(spark, tmp_path)
    return orders_of(spark, tmp_path)


def test_keys_and_columns_are_those_of_the_rows(orders: Table) -> None:
    lines = orders.flat_map("items", key=["id", "sku"])
    assert (lines.key, lines.columns) == (("id", "sku"), ["id", "sku", "n"])
    words = orders.flat_map("split(buyer, ' ')", key=["id", "col as word"])
    assert (words.key, words.columns) == (("id", "word"), ["id", "word", "col"])
    for chosen in (orders.select("buyer", F.col("items")), orders.select(["buyer", "items"])):
        assert chosen.columns == ["id", "buyer", "items"]
    assert orders.select("*", "1 as one").columns == [*orders.columns, "one"]


def test_of_orders_with_one_new_key_the_first_is_shown_and_then_the_next(orders: Table) -> None:
    by_buyer = orders.rekey("upper(buyer) as who", name="by-buyer")
    shown = by_buyer.with_columns({"n": "items[0].n", "op": F.lit(1)}).drop("items")
    assert shown.columns == ["who", "id", "buyer", "op", "n"]
    driver = Driver(shown)
    feed_lines(driver, "orders", [order("2", 1, "ann", a=2), order("1", 1, "ann", a=1), order("3", 1, None, a=3)])
    driver.run()
    assert {key: (row["id"], row["n"]) for key, row in driver.table.items()} == {"ANN": ("1", 1)}
    assert driver.count["hidden-outputs"] == 1
    feed_lines(driver, "orders", [order("1", 2, "bob", a=1), order("3", 2, "eve", a=3)])
    driver.run()
    assert {key: row["id"] for key, row in driver.table.items()} == {"ANN": "2", "BOB": "1", "EVE": "3"}


def items_of(key: str, row: Row) -> list[Any]:
    """The items, but for an order that it does not like; a row may be a tuple or a dict."""
    if row.buyer == "mallory":
        raise ValueError("no")
    return [{"sku": item.sku, "n": item.n} if item.n else (item.sku, item.n) for item in row["items"]]


TWICE = {**order("4", 1), "items": [{"sku": "a", "n": 1}, {"sku": "a", "n": 2}, {"sku": "b", "n": 1}]}


def test_a_row_that_makes_a_key_twice_or_throws_is_a_dead_letter(spark: SparkSession, tmp_path: Path, orders: Table) -> None:
    """Its last good rows stay; a row whose key has a null is dropped."""
    rows = [order("1", 1, "ann", a=1), order("2", 1, "mallory", a=1), order("3", 1, "bob", a=1, b=0), TWICE]
    rows.append({**order("5", 1), "items": [{"sku": None, "n": 1}, {"sku": "c", "n": 1}]})
    lines = orders.flat_map(items_of, key=["id", "sku", "10 div n as part"], returns="sku string, n int", name="lines")
    plain = orders.flat_map(items_of, key=["id", "sku"], returns="sku string, n int", name="plain")
    numbered = "transform(items, (item, n) -> struct(item.sku, item.n, n as line))"
    by_line = orders.flat_map(numbered, key=["id", "line"], name="numbered")
    drivers = [Driver(table) for table in (lines, plain, by_line)]
    for driver in drivers:
        feed_lines(driver, "orders", rows)
        driver.run()
    assert set(drivers[0].table) == {("1", "a", 10), ("4", "a", 10), ("4", "a", 5), ("4", "b", 10), ("5", "c", 10)}
    assert (drivers[0].count["dead-letters"], drivers[0].count["null-key-dropped"]) == (2, 1)
    said = [(json.loads(one["value"])["id"], one["reason"]) for driver in drivers[:2] for one in driver.dead_letters]
    assert [key for key, _ in said] == ["2", "3", "2", "4"]
    assert said[0][1] == said[2][1] == "flat_map: ValueError: no"
    assert "10 div n as part" in said[1][1]
    assert "division by zero" in said[1][1]
    way = "number them, as in transform(items, (item, n) -> …)"
    assert said[3][1] == f'flat_map: two of its rows have the key ["4", "a"]; {way}'
    assert {key: row["sku"] for key, row in drivers[2].table.items() if key[0] == "4"} == {
        ("4", 0): "a",
        ("4", 1): "a",
        ("4", 2): "b",
    }
    failing = Driver(orders_of(spark, tmp_path, on_error="fail").flat_map("items", key=["id", "sku"], name="failing"))
    feed_lines(failing, "orders", [TWICE])
    with pytest.raises(Exception, match=r"flat_map of orders, key 4: two of its rows have .* are set aside"):
        failing.run()


def test_a_stream_that_explodes_rows_is_warned_of_once(
    spark: SparkSession, tmp_path: Path, orders: Table, caplog: pytest.LogCaptureFixture
) -> None:
    raw = spark.readStream.schema(ORDER).json(str(tmp_path / "orders"))

    def warned_of(frame: DataFrame) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fkjoin"):
            Table.from_stream(frame, key="id", version="lsn", name="lines")
        return [record.getMessage() for record in caplog.records if record.name == "fkjoin"]

    exploded = raw.select("id", "lsn", F.explode("items").alias("item"))
    for frame in (exploded, raw.selectExpr("id", "lsn", "inline(items)").where("n > 0").withColumn("more", F.lit(1))):
        (said,) = warned_of(frame)
        assert "table lines: its stream makes several rows of one" in said
        assert "flat_map" in said
    lines = orders.flat_map("items", key=["id", "sku"], name="made")
    mapped = lines.changes.where("_operation != 'delete'").withColumn("lsn", F.lit(1))
    one_each = raw.selectExpr("id", "lsn", "json_tuple(buyer, 'name') as buyer")
    assert [warned_of(frame) for frame in (raw, one_each, mapped)] == [[], [], []]
