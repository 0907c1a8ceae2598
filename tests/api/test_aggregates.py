"""Aggregates on Spark: built as people write them, through restarts, and read from their state."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, TopologyError, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.checkpoint.entries import look_up, remarks
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.sessions.settings import OPTIMIZE
from fkjoin.stages.counters import metrics_name
from fkjoin.testing import CRASH, Driver
from tests.support.driven import Change, feed
from tests.support.orders import History, tables
from tests.support.queries import run, table_of, write_lines
from tests.support.sampling import sampled
from tests.support.sessions import small

pytestmark = pytest.mark.usefixtures("small_tables")


@pytest.fixture(scope="module")
def described(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table that no query reads."""
    orders, _ = tables(spark, tmp_path_factory.mktemp("described"))
    return orders


@pytest.mark.faults
@pytest.mark.parametrize("merged", sampled([True, False], [True]))
def test_a_join_is_summed_up_by_group_through_restarts_and_can_be_read(
    spark: SparkSession, tmp_path: Path, merged: bool
) -> None:
    """Results are the same with regroup in place of resolve and after it."""
    small(spark, tmp_path, partitions=2)
    spark.conf.set(OPTIMIZE, str(merged).lower())
    history, rows = History(tmp_path), list[Row]()
    for _ in sampled(range(3), range(2)):
        history.write(60)
        joined = fk_join(*tables(spark, tmp_path), "customer_id")
        regions = joined.group_by("right.region", name="regions", validate=True).agg(
            orders=agg.count(), revenue=agg.sum("left.amount"), most=agg.max("left.items")
        )
        assert regions.key == ("region",)
        assert ("in place of" in regions.describe()) == merged
        assert regions.changes.columns == ["region", "orders", "revenue", "most", "_operation", "_version", "_timestamp"]
        found = run(regions.changes, tmp_path / "checkpoint", metrics_name("regions"))
        rows += found.rows
        now = {key: tuple(row)[1:4] for key, row in table_of(rows, "region").items()}
        wanted = history.by_region()
        assert {key: (one[0], one[1] and round(one[1], 9), one[2]) for key, one in now.items()} == wanted
        assert found.count["out"] == len(found.rows)
    assert verify(spark, tmp_path / "checkpoint") == []
    state = saved_stores(spark, tmp_path / "checkpoint")
    known = look_up(state, "regions", "north")
    assert [(entry["kind"], entry["row"]["orders"]) for entry in known] == [("aggregate", now[("north",)][0])]
    order = next(iter(history.orders))
    assert [entry["kind"] for entry in look_up(state, "regions", order)] == ["contribution"]
    (join,) = {store.operator_name for store in state} - {"regions"}
    of_join = look_up(state, join, order)
    assert ("result" in {entry["kind"] for entry in of_join}) == (not merged)
    (says,) = remarks(state, join, of_join)
    assert says.startswith("The join keeps no results" if merged else "A result has its row here")
    assert remarks(state, "regions", known) == []
    kept = read_state(spark, str(tmp_path / "checkpoint"), "regions").collect()
    assert {(row.region,): (row.orders, row.revenue, row.most) for row in kept} == now
    assert kept[0]._version == table_of(rows, "region")[(kept[0].region,)]._version


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


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: t.group_by("custmer_id"), "key: table orders has no column 'custmer_id'; did you mean 'customer_id'"),
        (lambda t: t.group_by("customer_id").agg({"amount": "sum"}), "agg: name each column, such as agg"),
        (
            lambda t: t.group_by("customer_id").agg(n="amount"),
            "agg: n must be one of avg, collect_list, collect_set, count, count_distinct, max, max_by, min, min_by,",
        ),
        (lambda t: t.group_by("customer_id", name="orders").count(), "name: 'orders' already names an input of this aggregate"),
        (lambda t: t.group_by("customer_id", emit="never").count(), "emit: 'never' is not one of"),
        (lambda t: t.group_by(["customer_id", "customer_id"]).count(), "key: two columns are called 'customer_id'"),
        (lambda t: t.group_by("op").aggregate([], 3, max), r"adder: 3 is not callable; give a function of \(key, value,"),
        (lambda t: t.group_by("op").aggregate([], max, max, returns="arry<x>"), "returns: 'arry<x>' is not a Spark type"),
        (lambda t: t.group_by("op").reduce(max, 3), r"subtractor: 3 is not callable; give a function of \(aggregate, value\)"),
    ],
)
def test_an_aggregate_described_wrongly_is_refused(described: Table, make: Any, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        make(described)


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
    for wrong, says in (
        (lambda: large.filter("amount"), "condition: amount is double, a boolean is needed"),
        (lambda: large.map_values(["op", "op"]), "columns: two columns are called 'op'"),
    ):
        with pytest.raises(TopologyError, match=says):
            wrong()


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
    small(spark, tmp_path, partitions=2)
    history, rows = History(tmp_path), list[Row]()
    for _ in range(2):
        history.write(60)
        orders, customers = tables(spark, tmp_path)
        book = customers.with_children(orders, "customer_id", column="orders", name="orders-of", validate=True)
        book = book.materialize("book")
        rows += run(book.changes.withColumn("ids", F.map_keys("orders")), tmp_path / "checkpoint").rows
        found = table_of(rows, "customer_id")
        wanted = {
            (key,): (
                customer["region"],
                {
                    order_id: (order["amount"], order["items"])
                    for order_id, order in sorted(history.orders.items())
                    if order["customer_id"] == key
                },
            )
            for key, customer in history.customers.items()
        }
        now = {
            key: (row["region"], {child: (order.amount, order["items"]) for child, order in row["orders"].items()})
            for key, row in found.items()
        }
        assert now == wanted
        assert all(row.ids == sorted(row.ids) for row in found.values())
    assert verify(spark, tmp_path / "checkpoint") == []
    kept = {(row.customer_id,): row for row in read_state(spark, str(tmp_path / "checkpoint"), "book").collect()}
    assert {key: row.orders.keys() for key, row in kept.items()} == {key: row.orders.keys() for key, row in found.items()}
    assert all(row._version == found[key]._version for key, row in kept.items())
    assert (
        "  Sub-topology: 3  children      repartition by foreign key; store orders-of-children, materialized as book"
        in book.describe()
    )
    with pytest.raises(TopologyError, match="column: customers has a column 'region' already"):
        customers.with_children(orders, "customer_id", column="region")


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
