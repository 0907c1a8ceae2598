"""Aggregates on Spark: built as people write them, through restarts, and read from their state."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, TopologyError, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.checkpoint.entries import look_up, remarks
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.errors import FkJoinError
from fkjoin.sessions.settings import OPTIMIZE
from fkjoin.stages.counters import metrics_name
from tests.support.orders import History, tables
from tests.support.queries import run, table_of, write_lines
from tests.support.sampling import sampled
from tests.support.sessions import small


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)


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
    known = look_up(saved_stores(spark, tmp_path / "checkpoint"), "regions", "north")
    assert [(entry["kind"], entry["row"]["orders"]) for entry in known] == [("aggregate", now[("north",)][0])]
    order = next(iter(history.orders))
    kinds = [entry["kind"] for entry in look_up(saved_stores(spark, tmp_path / "checkpoint"), "regions", order)]
    assert kinds == ["contribution"]
    state = saved_stores(spark, tmp_path / "checkpoint")
    (join,) = {store.operator_name for store in state} - {"regions"}
    of_join = look_up(state, join, order)
    assert ("result" in {entry["kind"] for entry in of_join}) == (not merged)
    (says,) = remarks(state, join, of_join)
    assert says.startswith("The join keeps no results" if merged else "A result has its row here")
    assert remarks(state, "regions", known) == []
    with pytest.raises(FkJoinError, match=f"has several operators; add --operator with one of {join}, regions"):
        look_up(state, "", order)
    kept = read_state(spark, str(tmp_path / "checkpoint"), "regions").collect()
    assert {(row.region,): (row.orders, row.revenue, row.most) for row in kept} == now
    assert kept[0]._version == table_of(rows, "region")[(kept[0].region,)]._version


def test_an_aggregate_is_a_table_again(spark: SparkSession, tmp_path: Path) -> None:
    """Grouped once more, and joined with: customers with their orders' totals, by number of orders."""
    history = History(tmp_path)
    history.write(150)
    orders, customers = tables(spark, tmp_path)
    totals = orders.group_by("customer_id", name="totals").agg(orders=agg.count(), items=agg.sum("items"))
    with_names = fk_join(totals, customers, "customer_id", joiner=["left.orders", "right.region"], name="named")
    sizes = with_names.group_by(["region", "orders"], name="sizes").count()
    assert sizes.key == ("region", "orders")
    found = table_of(run(sizes.changes, tmp_path / "checkpoint").rows, "region", "orders")
    wanted: dict[Any, int] = defaultdict(int)
    for key, customer in history.customers.items():
        mine = sum(order["customer_id"] == key for order in history.orders.values())
        if mine and customer["region"] is not None:
            wanted[customer["region"], mine] += 1
    assert {key: row["count"] for key, row in found.items()} == wanted

    other = with_names.group_by(["region", "orders"], name="sizes").agg(count=agg.sum("orders"))
    history.write(10)
    with pytest.raises(
        StreamingQueryException, match=r'store sizes-(regroup|aggregate), columns was \["count = count\(\): int64"\]'
    ):
        run(other.changes, tmp_path / "checkpoint")


def test_a_literal_is_not_taken_for_the_column_that_it_reads_like(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    history.write(80)
    joined = fk_join(*tables(spark, tmp_path), "customer_id", name="joined")
    totals = joined.group_by(F.lit("order_id").alias("all"), name="totals").agg(
        rows=agg.count(), one=agg.max(F.lit("order_id")), other=agg.max("order_id")
    )
    (row,) = table_of(run(totals.changes, tmp_path / "checkpoint").rows, "all").values()
    live = [key for key, order in history.orders.items() if order["customer_id"] in history.customers]
    assert (row["all"], row["rows"], row["one"], row["other"]) == ("order_id", len(live), "order_id", max(live))


def test_python_functions_get_values_and_rows(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    history.write(120)
    orders, _ = tables(spark, tmp_path)
    ids = orders.group_by("customer_id", value="order_id", name="ids").aggregate(
        set, lambda key, order, ids: ids | {order}, lambda key, order, ids: ids - {order}, returns="array<string>"
    )
    found = table_of(run(ids.changes, tmp_path / "one").rows, "customer_id")
    wanted: dict[Any, list[str]] = defaultdict(list)
    for key, order in sorted(history.orders.items()):
        wanted[(order["customer_id"],)].append(key)
    assert {key: row["value"] for key, row in found.items()} == wanted
    items = orders.group_by(F.upper("customer_id").alias("customer"), name="items").aggregate(
        0, lambda key, row, n: n + row.items + len(key), lambda key, row, n: n - row["items"] - len(key), column="n"
    )
    found = table_of(run(items.changes, tmp_path / "two").rows, "customer")
    sums: dict[Any, int] = defaultdict(int)
    for order in history.orders.values():
        sums[(order["customer_id"].upper(),)] += order["items"] + 2
    assert {key: row["n"] for key, row in found.items()} == sums
    latest = orders.group_by("customer_id", value=["order_id", "items"], name="latest").reduce(
        lambda before, row: row, lambda before, row: before
    )
    found = table_of(run(latest.changes, tmp_path / "three").rows, "customer_id")
    assert {key: row["value"]["items"] for key, row in found.items()}.keys() == wanted.keys()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: t.group_by([]), "key: name at least one column"),
        (lambda t: t.group_by("custmer_id"), "key: table orders has no column 'custmer_id'; did you mean 'customer_id'"),
        (lambda t: t.group_by("customer_id").agg(), "agg: name each column, such as agg"),
        (lambda t: t.group_by("customer_id").agg({"amount": "sum"}), "agg: name each column, such as agg"),
        (
            lambda t: t.group_by("customer_id").agg(n="amount"),
            "agg: n must be one of avg, collect_list, collect_set, count, count_distinct, max, max_by, min, min_by,",
        ),
        (lambda t: t.group_by("customer_id").sum("op"), "sum: op is string, a number is needed; cast it"),
        (
            lambda t: t.group_by("customer_id").max("struct(items)"),
            r"max: struct\(items\) is struct<.*, which has no order",
        ),
        (lambda t: t.group_by("customer_id").agg(customer_id=agg.count()), "agg: column 'customer_id' is already there as"),
        (
            lambda t: t.group_by("customer_id", value="items").sum("amount"),
            "agg: amount is not the plain name of a column of the v",
        ),
        (lambda t: t.group_by("customer_id", name="orders").count(), "name: 'orders' already names an input of this aggregate"),
        (lambda t: t.group_by("customer_id", emit="never").count(), "emit: 'never' is not one of"),
        (
            lambda t: t.group_by("op").count().to_kafka("t", "b", checkpoint="c", positions=True),
            "positions: a row that sums up",
        ),
        (lambda t: t.group_by("op", upgrade_from=0).count(), 'upgrade_from: it is for deployment="staged"'),
        (lambda t: t.group_by("op", deployment="staged").count(), r"deployment: the staged deployment aggregates tables made"),
        (lambda t: t.group_by(["customer_id", "customer_id"]).count(), "key: two columns are called 'customer_id'"),
        (lambda t: t.group_by("op").aggregate([], 3, max), r"adder: a callable of \(key, value, aggregate\) is needed, 3"),
        (
            lambda t: t.group_by("op").aggregate(0, "array(amount)", "aggregate"),
            r"adder: array\(amount\) is array<\w+>, the aggregate is bigint: cast it, or give returns=",
        ),
        (
            lambda t: t.group_by("op").aggregate([], max, max),
            "returns: give the aggregate's Spark type",
        ),
        (lambda t: t.group_by("op").aggregate([], max, max, returns="arry<x>"), "returns: 'arry<x>' is no type of Spark's"),
        (lambda t: t.group_by("op").reduce(max, 3), r"subtractor: a callable of \(aggregate, value\) is needed, 3 is none"),
    ],
)
def test_an_aggregate_described_wrongly_is_refused(spark: SparkSession, tmp_path: Path, make: Any, says: str) -> None:
    orders, _ = tables(spark, tmp_path)
    with pytest.raises(TopologyError, match=says):
        make(orders)


def test_describe_reads_like_this(spark: SparkSession, tmp_path: Path) -> None:
    orders, _ = tables(spark, tmp_path)
    sums = orders.group_by("customer_id", name="sums").agg(n=agg.count(), total=agg.sum("amount * items"))
    assert sums.materialize("by-customer").describe().split("\n")[8:] == [
        "aggregate sums  (on-change)",
        "  of           orders",
        "  group by     customer_id",
        "  value        amount * items",
        "  n            count()",
        "  total        sum(amount * items)",
        "  rule         workers-evaluate-steps fired",
        "  Sub-topology: 1  regroup       repartition by order_id; store sums-regroup",
        "  Sub-topology: 2  aggregate     repartition by group; store sums-aggregate, materialized as by-customer",
    ]


def test_filter_and_map_values_send_what_changes_and_tombstones_of_what_leaves(spark: SparkSession, tmp_path: Path) -> None:
    """KIP-557: a row's change that leaves what is seen of it as it was is dropped, also after a restart."""
    folder = tmp_path / "orders"

    def write(name: str, *rows: tuple[str, float, int, str]) -> None:
        write_lines(folder, name, [{"order_id": k, "amount": a, "lsn": n, "op": op} for k, a, n, op in rows])

    def seen(table: Table) -> list[tuple[Any, ...]]:
        rows = run(table.changes, tmp_path / table.name, metrics_name(table.name))
        skipped.update(rows.count)
        return sorted(tuple(row)[:-2] for row in rows.rows)

    def build() -> tuple[Table, Table]:
        orders = Table.from_files(spark, folder, key="order_id", version="lsn", deleted="op = 'd'", name="orders")
        large = orders.filter("amount >= 10", name="large")
        return large, large.map_values("round(amount / 10) as tens", name="tens")

    skipped: dict[str, int] = {}
    write("1", ("a", 10.0, 1, "u"), ("b", 5.0, 2, "u"), ("c", 30.0, 3, "u"), ("d", 1.0, 4, "d"))
    large, tens = build()
    assert seen(large) == [("a", 10.0, "u", "insert"), ("c", 30.0, "u", "insert")]
    assert seen(tens) == [("a", 1.0, "insert"), ("c", 3.0, "insert")]
    write("2", ("a", 11.0, 5, "u"), ("b", 6.0, 6, "u"), ("c", 3.0, 7, "u"), ("d", 1.0, 8, "d"))
    write("3", ("a", 11.0, 5, "u"))
    large, tens = build()
    assert seen(large) == [("a", 11.0, "u", "update"), ("c", None, None, "delete")]
    assert seen(tens) == [("c", None, "delete")]
    assert (skipped["idempotent-update-skip"], skipped["tombstones-suppressed"], skipped["stale-dropped"]) == (1, 2, 1)
    by_op = tens.group_by("tens", name="by-tens").count()
    assert [tuple(row)[:3] for row in run(by_op.changes, tmp_path / "by-tens").rows] == [(1.0, 1, "insert")]
    assert large.describe().split("\n")[8:] == [
        "view large  (on-change)",
        "  of           orders",
        "  filter       amount >= 10",
        "  rule         workers-evaluate-steps fired",
        "  Sub-topology: 1  for sinks     repartition by order_id; store large-resolve",
    ]
    with pytest.raises(TopologyError, match="condition: amount is double, a boolean is needed"):
        large.filter("amount")
    with pytest.raises(TopologyError, match="columns: two columns are called 'op'"):
        large.map_values(["op", "op"])


def test_a_source_can_be_materialized_and_drops_what_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The older timestamp stays; and what is kept is kept also where the table is only read by another."""
    folder, checkpoint = tmp_path / "orders", tmp_path / "checkpoint"

    def build() -> Table:
        about: Any = {"key": "id", "version": "lsn", "timestamp": "at", "deleted": "gone", "name": "orders"}
        return Table.from_files(spark, folder, **about).materialize("orders-now").filter("amount < 100", name="small")

    write_lines(folder, "1", [{"id": n, "amount": n, "lsn": n, "at": n, "gone": False} for n in (1, 2, 3)])
    assert {row["_operation"] for row in run(build().changes, checkpoint).rows} == {"insert"}
    again = [
        {"id": 1, "amount": 1, "lsn": 4, "at": 9},
        {"id": 2, "amount": 7, "lsn": 5, "at": 9},
        {"id": 3, "amount": 3, "lsn": 6},
    ]
    write_lines(folder, "2", [{"at": 9, "gone": line["id"] == 3, **line} for line in again])
    found = run(build().changes, checkpoint, metrics_name("orders-rows"))
    assert sorted((row["id"], row["_operation"]) for row in found.rows) == [(2, "update"), (3, "delete")]
    assert found.count["idempotent-update-skip"] == 1
    kept = read_state(spark, str(checkpoint), "orders-now").collect()
    assert sorted((row.id, row.amount, row._timestamp, row._version) for row in kept) == [(1, 1, 1, [4]), (2, 7, 9, [5])]


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
