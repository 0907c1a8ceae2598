"""Aggregates on Spark: built as people write them, through restarts, and read from their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.checkpoint.entries import look_up, remarks
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.testing import Driver
from tests.support.driven import feed
from tests.support.orders import History, tables
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


def test_members_of_a_group_are_those_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Values of any rows, in any order: tests/folds/test_members.py."""
    joined = fk_join(*tables(spark, tmp_path), "customer_id", name="joined")
    table = joined.group_by("right.region", name="regions").agg(**MEMBERS)
    driver = Driver(table)
    for customer in ("c1", "c2"):
        driver.input("customers").change(customer, {"region": "north"})
    for number, (customer, amount, items) in enumerate([("c1", 0.3, 1), ("c2", 0.1, 3), ("c1", 0.1, 2), ("c1", None, 3)]):
        driver.input("orders").change(f"o{number}", {"customer_id": customer, "amount": amount, "items": items})
    driver.run()
    assert driver.table["north"] == {
        "buyers": 2,
        "listed": [0.3, 0.1, 0.1],
        "by_items": ["o1", "o3", "o2", "o0"],
        "amounts": [0.1, 0.3],
        "names": "o0, o1, o2, o3",
        "cheapest": "o1",
        "largest": [{"order_id": "o1", "items": 3}, {"order_id": "o3", "items": 3}],
        "when_null": None,
    }
    names = "buyers:bigint,listed:array<double>,by_items:array<string>,amounts:array<double>,names:string,cheapest:string"
    pairs = "largest:array<struct<order_id:string,items:bigint>>"
    assert table.schema.simpleString() == f"struct<region:string,{names},{pairs},when_null:double>"
