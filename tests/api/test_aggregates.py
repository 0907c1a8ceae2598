"""Aggregates on Spark: built as people write them, through restarts, and read from their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.checkpoint.entries import look_up, remarks
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.testing import Driver
from tests.support.driven import feed
from tests.support.orders import CUSTOMER, ORDER, History, tables
from tests.support.plans.topologies import Sources
from tests.support.queries import run, table_of, values, write_lines

pytestmark = pytest.mark.usefixtures("small_tables")


def test_a_join_is_summed_up_by_group_through_a_restart_and_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """With regroup in place of resolve; results after it are the same: tests/plan/test_optimizer.py."""
    history, checkpoint, rows = History(tmp_path), tmp_path / "checkpoint", list[Row]()
    joined = fk_join(*tables(spark, tmp_path), "customer_id", name="joined")
    groups = joined.group_by("right.region", name="regions")
    regions = groups.agg(orders=agg.count(), most=agg.max("left.items"))
    assert "in place of" in regions.describe()
    for _ in range(2):
        history.write(60)
        rows += run(regions.changes, checkpoint).rows
    last = table_of(rows, "region")
    assert {key: (row.orders, row.most) for key, row in last.items()} == {
        key: (orders, most) for key, (orders, _, most) in history.by_region().items()
    }
    assert verify(spark, checkpoint) == []
    saved = {(row.region,): row for row in read_state(spark, str(checkpoint), "regions").collect()}
    columns = ["orders", "most", "_version"]
    assert values(saved, columns) == values(last, columns)
    state = saved_stores(spark, checkpoint)
    (group,) = look_up(state, "regions", "north")
    assert (group["kind"], group["row"]["orders"]) == ("aggregate", last[("north",)].orders)
    assert remarks(state, "regions", [group]) == []
    order = next(iter(history.orders))
    assert [entry["kind"] for entry in look_up(state, "regions", order)] == ["contribution"]
    (remark,) = remarks(state, "joined", look_up(state, "joined", order))
    assert remark.startswith("The join keeps no results")


def test_a_literal_is_not_taken_for_the_column_that_it_reads_like(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    joined = fk_join(*tables(spark, tmp_path), "customer_id", name="joined")
    totals = joined.group_by(F.lit("order_id").alias("all"), name="totals").agg(
        rows=agg.count(), one=agg.max(F.lit("order_id")), other=agg.max("order_id")
    )
    driver = Driver(totals)
    feed(driver, history.write(80))
    driver.run()
    live = [key for key, order in history.orders.items() if order["customer_id"] in history.customers]
    assert driver.table == {"order_id": {"rows": len(live), "one": "order_id", "other": max(live)}}


def test_a_source_can_be_materialized_and_drops_what_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The older timestamp stays; and what is kept is kept also where the table is only read by another."""
    sources = Sources(spark, tmp_path, {})
    source = sources.files("orders", "id", "id int, amount int, at bigint", timestamp="at")
    kept = source.materialize("orders-now")
    driver = Driver(kept.filter("amount < 100", name="small"))
    orders = driver.input("orders")
    for n in (1, 2, 3):
        orders.change(n, {"amount": n}, version=n, timestamp=n)
    assert {change.operation for change in driver.run()} == {"insert"}
    orders.change(1, {"amount": 1}, version=4, timestamp=9)
    orders.change(2, {"amount": 7}, version=5, timestamp=9)
    orders.delete(3, version=6, timestamp=9)
    assert sorted((change.key, change.operation) for change in driver.run()) == [(2, "update"), (3, "delete")]
    rows = sorted((row["id"], row["amount"], row["_timestamp"], row["_version"]) for row in driver.store("orders-now").all())
    assert rows == [(1, 1, 1, [4]), (2, 7, 9, [5])]


def test_a_batch_whose_commit_is_lost_is_made_again_with_the_time_it_had(spark: SparkSession, tmp_path: Path) -> None:
    """Versions of groups follow the batch's time, which Spark logs before the batch begins."""
    write_lines(tmp_path / "rows", "0", [{"id": "a", "team": "red", "n": 1}, {"id": "b", "team": "blue", "n": 2}])
    schema = "id string, team string, n int"
    rows = Table.from_files(spark, tmp_path / "rows", key="id", version="n", format="json", schema=schema)
    teams = rows.group_by("team", name="teams").agg(n=agg.count())
    first = run(teams.changes, tmp_path / "checkpoint").rows
    for kept in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        kept.unlink()
    again = run(teams.changes, tmp_path / "checkpoint").rows
    assert len(first) == 2
    assert sorted(again) == sorted(first)


MEMBERS: dict[str, Any] = {
    "buyers": agg.count_distinct("left.customer_id"),
    "listed": agg.collect_list("left.amount"),
    "by_items": agg.collect_list("left.order_id", order_by=["left.items", "left.amount"], descending=True),
    "amounts": agg.collect_set("left.amount"),
    "names": agg.string_agg("left.order_id", ", "),
    "cheapest": agg.min_by("left.order_id", "left.amount"),
    "largest": agg.max_by("struct(left.order_id, left.items)", "left.items", 2),
    "when_null": agg.max_by("left.amount", "left.order_id"),
}


def regions(spark: SparkSession, folder: Path) -> Table:
    return fk_join(*tables(spark, folder), "customer_id").group_by("right.region", name="regions").agg(**MEMBERS)


SMALLEST_FIRST = "array_sort(collect_list(struct(-items, order_id, struct(order_id, items) as it)))"
LARGEST_FIRST = "sort_array(collect_list(struct(items, amount, order_id)), false)"
BY_SPARK = {
    "buyers": "count(distinct customer_id)",
    "listed": "array_sort(collect_list(amount))",
    "by_items": f"transform({LARGEST_FIRST}, x -> x.order_id)",
    "amounts": "array_sort(collect_set(amount))",
    "names": "string_agg(order_id, ', ') within group (order by order_id)",
    "cheapest": "min_by(order_id, struct(amount, order_id)) filter (where amount is not null)",
    "largest": f"slice(transform({SMALLEST_FIRST}, x -> x.it), 1, 2)",
    "when_null": "max_by(amount, order_id)",
    "_largest": "max_by(struct(order_id, items), items, 2)",
}
"""Functions of Spark's that make each; of lists, in the order of the first column."""


def by_spark(spark: SparkSession, history: History) -> DataFrame:
    """Spark's functions over the rows that there are."""
    orders, customers = (
        spark.createDataFrame([Row(**row, lsn=0, op="") for row in rows.values()], schema)
        for rows, schema in ((history.orders, ORDER), (history.customers, CUSTOMER))
    )
    joined = orders.join(customers.select("customer_id", "region"), "customer_id").where("region is not null")
    columns = [F.expr(text).alias(name) for name, text in BY_SPARK.items()]
    return joined.groupBy("region").agg(*columns)


@pytest.mark.newest
def test_members_are_what_sparks_functions_make_of_the_rows_that_are_there(spark: SparkSession, tmp_path: Path) -> None:
    history, table = History(tmp_path), regions(spark, tmp_path)
    driver = Driver(table)
    for _ in range(2):
        feed(driver, history.write(60))
        driver.run()
    batch = by_spark(spark, history)
    wanted = {row.region: row for row in batch.collect()}
    assert driver.table.keys() == wanted.keys()
    for key, row in wanted.items():
        ours = driver.table[key]
        by_key = sorted(history.orders.values(), key=lambda order: order["order_id"])
        mine = [order for order in by_key if history.customers.get(order["customer_id"], {}).get("region") == key]
        assert ours["listed"] == [order["amount"] for order in mine if order["amount"] is not None]
        largest = [Row(**pair) for pair in ours["largest"]]
        assert [pair["items"] for pair in row["_largest"]] == [pair["items"] for pair in largest]
        same = ours | {"listed": sorted(ours["listed"]), "largest": largest}
        assert same == {name: row[name] for name in MEMBERS}
    assert {field.name: field.dataType.simpleString() for field in batch.schema if field.name in MEMBERS} == {
        field.name: field.dataType.simpleString() for field in table.changes.schema if field.name in MEMBERS
    }
