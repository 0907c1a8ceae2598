"""Aggregates on Spark: built as people write them, through restarts, and read from their state."""

from __future__ import annotations

from collections import Counter, defaultdict
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
from fkjoin.sessions.settings import OPTIMIZE
from fkjoin.testing import CRASH, Driver
from tests.support.driven import Change, feed
from tests.support.orders import CUSTOMER, ORDER, History, tables
from tests.support.queries import run, table_of, values, write_lines
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("small_tables")


@pytest.mark.faults
@pytest.mark.parametrize("merged", sampled([True, False], [True]))
def test_a_join_is_summed_up_by_group_through_a_restart_and_can_be_read(
    spark: SparkSession, tmp_path: Path, merged: bool
) -> None:
    """Results are the same with regroup in place of resolve and after it."""
    spark.conf.set(OPTIMIZE, str(merged).lower())
    history, checkpoint, rows = History(tmp_path), tmp_path / "checkpoint", list[Row]()
    joined = fk_join(*tables(spark, tmp_path), "customer_id", name="joined")
    groups = joined.group_by("right.region", name="regions", validate=True)
    regions = groups.agg(orders=agg.count(), most=agg.max("left.items"))
    assert ("in place of" in regions.describe()) == merged
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
    assert remark.startswith("The join keeps no results" if merged else "A result has its row here")


def after(table: Table, *batches: list[Change]) -> dict[Any, dict[str, Any]]:
    """The table after these batches, in memory."""
    driver = Driver(table)
    for batch in batches:
        feed(driver, batch)
        driver.run()
    return driver.table


def test_an_aggregate_is_a_table_again(spark: SparkSession, tmp_path: Path) -> None:
    """Grouped once more, and joined with: customers with their orders' totals, by number of orders."""
    history = History(tmp_path)
    orders, customers = tables(spark, tmp_path)
    totals = orders.group_by("customer_id", name="totals").agg(orders=agg.count(), items=agg.sum("items"))
    with_names = fk_join(totals, customers, "customer_id", joiner=["left.orders", "right.region"], name="named")
    sizes = with_names.group_by(["region", "orders"], name="sizes").count()
    assert sizes.key == ("region", "orders")
    found = after(sizes, history.write(75), history.write(75))
    mine = Counter(order["customer_id"] for order in history.orders.values())
    regions = [(customer["region"], mine[key]) for key, customer in history.customers.items()]
    wanted = Counter(group for group in regions if None not in group and group[1])
    assert {key: row["count"] for key, row in found.items()} == wanted


def test_a_literal_is_not_taken_for_the_column_that_it_reads_like(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    joined = fk_join(*tables(spark, tmp_path), "customer_id", name="joined")
    totals = joined.group_by(F.lit("order_id").alias("all"), name="totals").agg(
        rows=agg.count(), one=agg.max(F.lit("order_id")), other=agg.max("order_id")
    )
    found = after(totals, history.write(80))
    live = [key for key, order in history.orders.items() if order["customer_id"] in history.customers]
    assert found == {"order_id": {"rows": len(live), "one": "order_id", "other": max(live)}}


def test_python_functions_get_values_and_rows(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    drawn = [change for change in history.write(120) if change[0] == "orders"]
    orders, _ = tables(spark, tmp_path)
    ids = orders.group_by("customer_id", value="order_id", name="ids").aggregate(
        set, lambda key, order, ids: ids | {order}, lambda key, order, ids: ids - {order}, returns="array<string>"
    )
    items = orders.group_by(F.upper("customer_id").alias("customer"), name="items").aggregate(
        0, lambda key, row, n: n + row.items + len(key), lambda key, row, n: n - row["items"] - len(key), column="n"
    )
    latest = orders.group_by("customer_id", value=["order_id", "items"], name="latest").reduce(
        lambda before, row: row, lambda before, row: before
    )
    of_customers: dict[str, list[str]] = defaultdict(list)
    sums: dict[str, int] = defaultdict(int)
    for key, order in sorted(history.orders.items()):
        of_customers[order["customer_id"]].append(key)
        sums[order["customer_id"].upper()] += order["items"] + 2
    assert after(ids, drawn) == {key: {"value": value} for key, value in of_customers.items()}
    assert after(items, drawn) == {key: {"n": n} for key, n in sums.items()}
    assert after(latest, drawn).keys() == of_customers.keys()


def test_filter_and_map_values_send_what_changes_and_tombstones_of_what_leaves(spark: SparkSession, tmp_path: Path) -> None:
    """KIP-557: a row's change that leaves what is seen of it as it was is dropped, also after a crash."""
    orders, _ = tables(spark, tmp_path)
    large = orders.filter("amount >= 10", name="large")
    tens = large.map_values("round(amount / 10) as tens", name="tens")
    drivers = Driver(large.select("amount")), Driver(tens)
    batches: list[list[Change]] = [
        [("orders", key, amount and {"amount": amount}) for key, amount in rows.items()]
        for rows in ({"a": 10.0, "b": 5.0, "c": 30.0, "d": None}, {"a": 11.0, "b": 6.0, "c": 3.0, "d": None})
    ]
    sent = []
    for driver in drivers:
        for batch in batches:
            feed(driver, batch)
            sent.append([(change.key, change.row and list(change.row.values())) for change in driver.run(CRASH)])
    assert [sorted(rows) for rows in sent] == [
        [("a", [10.0]), ("c", [30.0])],
        [("a", [11.0]), ("c", None)],
        [("a", [1.0]), ("c", [3.0])],
        [("c", None)],
    ]
    count = drivers[1].count
    assert (count["idempotent-update-skip"], count["tombstones-suppressed"]) == (1, 4)


def test_a_source_can_be_materialized_and_drops_what_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The older timestamp stays; and what is kept is kept also where the table is only read by another."""
    (tmp_path / "orders").mkdir()
    about: Any = {"key": "id", "version": "lsn", "timestamp": "at", "name": "orders"}
    about |= {"schema": "id int, amount int, lsn int, at bigint", "format": "json"}
    kept = Table.from_files(spark, tmp_path / "orders", **about).materialize("orders-now")
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


def test_right_rows_with_their_left_rows_by_key(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    orders, customers = tables(spark, tmp_path)
    about: Any = {"column": "orders", "name": "orders-of", "validate": True}
    book = customers.with_children(orders, "customer_id", **about).materialize("book")
    assert "store orders-of-children, materialized as book" in book.describe()
    driver = Driver(book)
    for _ in range(2):
        feed(driver, history.write(60))
        driver.run(CRASH)
        people = history.customers.items()
        wanted: dict[str, Any] = {key: [customer["region"]] for key, customer in people}
        for key, order in sorted(history.orders.items()):
            if order["customer_id"] in wanted:
                wanted[order["customer_id"]].append((key, order["amount"], order["items"]))
        books: dict[str, Any] = {}
        for key, row in driver.table.items():
            books[key] = [row["region"]]
            for name, order in dict(row["orders"]).items():
                books[key].append((name, order["amount"], order["items"]))
        assert books == wanted
    kept = {row["customer_id"]: row for row in driver.store("book").all()}
    assert kept.keys() == driver.table.keys()
    for key, row in driver.table.items():
        assert (kept[key]["region"], kept[key]["orders"]) == (row["region"], row["orders"])


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
