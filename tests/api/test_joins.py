"""Joins by foreign key and by primary key: restarts, settings of a checkpoint, functions, compiled code.

Also joins in a row by foreign keys of one left table, which are one: its state, and why some joins are not.

Rows after random changes: tests/api/test_operators.py and tests/stages.
Traces: tests/replay and integration/test_join.py.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from fkjoin import FkJoinError, StateReader, Table, cogroup, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.checkpoint import upkeep
from fkjoin.checkpoint.entries import look_up, remarks
from fkjoin.checkpoint.saved import entries, saved_stores
from fkjoin.checkpoint.stores import SavedStore, named
from fkjoin.checkpoint.upkeep import rebuild, verify
from fkjoin.errors import SessionError
from fkjoin.plan.rules import STAGES_SHARE_AN_OPERATOR
from fkjoin.sessions.settings import BUCKETS, EXCLUDED, LATENCY, PARTITIONS
from fkjoin.stages.counters import metrics_name
from fkjoin.testing import Driver
from tests.support.driven import feed
from tests.support.orders import History, batch_join, tables
from tests.support.plans.topologies import Sources
from tests.support.queries import run, table_of, values, write_lines
from tests.support.sessions import small


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, buckets=2, validate=True)


def test_a_query_goes_on_from_its_checkpoint_with_its_index_lost_or_too_old(spark: SparkSession, tmp_path: Path) -> None:
    history, index = History(tmp_path), tmp_path / "index"
    columns, rows, count = ["left.items", "right.region"], list[Row](), Counter[str]()
    for number in range(3):
        history.write(60)
        if number == 1:
            index.rename(tmp_path / "old")
        if number == 2:
            shutil.rmtree(index)
            (tmp_path / "old").rename(index)
        joined = fk_join(*tables(spark, tmp_path), "customer_id", joiner=columns, name="joined")
        batch = run(joined.changes, tmp_path / "checkpoint", metrics_name("joined"))
        rows += batch.rows
        count.update(batch.count)
        last = values(table_of(rows, "order_id"), ["items", "region"])
        wanted = values(batch_join(history), ["items", "region"])
        assert {key: row for (key,), row in last.items()} == wanted
        # An index that is too old reads the rest of its log.
        assert (batch.count["index-rebuilt"] > 0) == (number == 1)
    assert count["left-in"] + count["right-in"] == history.lsn
    assert count["out"] == len(rows)
    assert rows[0]._left_version is not None


def test_callables_extract_and_join_and_only_changed_results_are_sent(spark: SparkSession, tmp_path: Path) -> None:
    """A self join by Python callables, whose joined value hides most changes of the rows; without a type it is JSON."""

    def boss(key: str, row: Row) -> str | None:
        return row.path.rsplit("/", 1)[0] if "/" in key else None

    def label(left: Row, right: Row | None) -> str | None:
        return None if right is None else f"{left.title} under {right.title}"

    (tmp_path / "tree").mkdir()
    about: Any = {"schema": "path string, title string, n int, v bigint", "format": "json", "name": "tree"}
    tree = Table.from_files(spark, tmp_path / "tree", key="path", version="v", timestamp="v", **about)
    joined = fk_join(tree, tree, boss, how="left", joiner=label, name="boss-of")
    untyped = fk_join(tree, tree, boss, joiner=lambda left, right: {"of": left.path, "under": right})
    labels, objects, sent = Driver(joined), Driver(untyped), list[Any]()
    for batch in (
        [("a", "A", 1, 1), ("a/b", "B", 1, 2)],
        [("a/b", "B", 2, 3), ("a/b/c", "C", 1, 4)],
        [("a", "AA", 1, 5), ("a/b/c", "C", 7, 6)],
    ):
        for driver in (labels, objects):
            for path, title, n, time in batch:
                driver.input("tree").change(path, {"title": title, "n": n}, timestamp=time)
        objects.run()
        sent += [(change.key, change.operation, change.row, change.timestamp) for change in labels.run()]
    assert sent == [
        ("a/b", "insert", {"value": "B under A"}, 2),
        ("a/b/c", "insert", {"value": "C under B"}, 4),
        ("a/b", "update", {"value": "B under AA"}, 5),
    ]
    assert labels.count["idempotent-update-skip"] == 2
    under = {"path": "a", "title": "AA", "n": 1}
    assert json.loads(objects.table["a/b"]["value"]) == {"of": "a/b", "under": under}
    assert joined.changes.schema["value"].dataType.simpleString() == "string"


def test_left_rows_of_one_foreign_key_may_be_spread_over_buckets(spark: SparkSession, tmp_path: Path) -> None:
    """Two batches with a check of all stores, the last of them in another query; other settings are refused."""
    spark.conf.set(BUCKETS, "4")
    checkpoint = tmp_path / "checkpoint"

    def write(number: int, name: str, *orders: tuple[str, str]) -> None:
        lines = [{"order_id": key, "customer_id": person, "lsn": number} for key, person in orders]
        write_lines(tmp_path / "orders", str(number), lines)
        hot = {"customer_id": "hot", "region": name, "lsn": number}
        write_lines(tmp_path / "customers", str(number), [hot])

    def joined(spread: int) -> Table:
        orders, customers = tables(spark, tmp_path, deleted=None)
        more: Any = {"joiner": ["right.region"], "spread": spread}
        return fk_join(orders, customers, "customer_id", "left", name="joined", **more)

    write(1, "hot", *[(f"o{number}", "hot") for number in range(40)])
    assert "left rows of a foreign key over 3 buckets" in joined(3).describe()
    rows = run(joined(3).changes, checkpoint).rows
    write(2, "warm", *[(f"o{number}", "cold") for number in range(10)])
    last = table_of([*rows, *run(joined(3).changes, checkpoint).rows], "order_id")
    cold = {f"o{number}": None for number in range(10)}
    warm = {f"o{number}": "warm" for number in range(10, 40)}
    assert {key: row.region for (key,), row in last.items()} == cold | warm
    assert verify(spark, checkpoint) == []
    state = saved_stores(spark, checkpoint)
    known = look_up(state, "joined", "o20")
    assert {"subscription", "right", "result"} <= {entry["kind"] for entry in known}
    says = ["A result has its row here if the join is materialized. Else the store keeps a hash of it."]
    assert remarks(state, "joined", known) == says
    stored = entries(spark, named("joined-subscription", state)).where("kind = 'subscription'")
    assert stored.where("""foreign_key = '"hot"'""").select("bucket").distinct().count() == 3
    write(3, "hot")
    with pytest.raises(Exception, match=r"spread"):
        run(joined(2).changes, checkpoint)


STORES = ["joined-rekey", "joined-subscription", "joined-resolve", "counts-regroup", "counts-aggregate"]


def counts(spark: SparkSession, folder: Path) -> Table:
    """The numbers of orders by their customers' regions, of a join that is kept."""
    orders, customers = tables(spark, folder)
    columns = ["left.amount", "right.region"]
    joined = fk_join(orders, customers, "customer_id", joiner=columns, name="joined").materialize("kept")
    return joined.group_by("region", name="counts").count()


def write(table: Table, folder: Path) -> None:
    table.to_parquet(folder / "out", checkpoint=folder / "checkpoint", trigger="available-now").awaitTermination()


def test_stores_of_a_shared_operator_are_read_verified_and_rebuilt_and_need_its_rule(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set(BUCKETS, "1")
    history, checkpoint = History(tmp_path), tmp_path / "checkpoint"

    def regions() -> dict[str, str | None]:
        return {key: row["region"] for key, row in batch_join(history).items()}

    history.write(60)
    table = counts(spark, tmp_path)
    assert "in the same operator" in table.describe()
    write(table, tmp_path)
    assert {path.name for path in (checkpoint / "state").iterdir()} == {"0", "1"}  # Spark makes rows of a kept join
    assert [store.name for store in saved_stores(spark, checkpoint)] == STORES
    with StateReader(checkpoint, "kept") as reader:
        rows = reader.get_many(list(history.orders))
        assert {row["order_id"]: row["region"] for row in rows if row is not None} == regions()
        history.write(40)
        write(counts(spark, tmp_path), tmp_path)
        reader.refresh()
        wanted = regions()
        rows = reader.get_many(list(wanted))
        assert {row["order_id"]: row["region"] for row in rows if row is not None} == wanted
    saved = read_state(spark, checkpoint, "kept").collect()
    assert {row.order_id: row.region for row in saved} == wanted
    totals = {row.region: row["count"] for row in read_state(spark, checkpoint, "counts").collect()}
    numbers = [region for region in wanted.values() if region is not None]
    assert totals == {region: numbers.count(region) for region in numbers}
    assert verify(spark, checkpoint) == []
    assert len(rebuild(spark, checkpoint, str(tmp_path / "index"))) == len(STORES)
    spark.conf.set(EXCLUDED, STAGES_SHARE_AN_OPERATOR)
    apart = counts(spark, tmp_path)
    assert "in the same operator" not in apart.describe()
    says = "together was true and is now null; if the tables are the same, a rule of the optimizer is not"
    with pytest.raises(FkJoinError, match=says):
        write(apart, tmp_path)


def test_low_latency_is_one_bucket_unless_a_user_sets_their_number(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.unset(BUCKETS)
    spark.conf.set(LATENCY, "low")
    try:
        spark.conf.unset(PARTITIONS)
        assert counts(spark, tmp_path)._planned.bound.settings.buckets == 1
        assert spark.conf.get(PARTITIONS) == "1"
        spark.conf.set(BUCKETS, "2")
        assert counts(spark, tmp_path)._planned.bound.settings.buckets == 2
        spark.conf.set(LATENCY, "lowest")
        spark.conf.unset(BUCKETS)
        with pytest.raises(SessionError, match="spark.fkjoin.latency is 'lowest': it must be low or default"):
            counts(spark, tmp_path)
    finally:
        spark.conf.unset(LATENCY)


def dear(left: Any, right: Any) -> str | None:
    """A joiner that is Spark's: null, which is no result, and an exception."""
    if left is not None and left.amount == 7:
        raise ValueError("no")
    return None if left is None or left.amount == 0 else f"{left.amount}/{right and right.amount}"


def test_a_joiner_that_throws_makes_dead_letters_and_the_last_result_stays(spark: SparkSession, tmp_path: Path) -> None:
    """A function, behind which a second stage stands, and an expression of the workers."""
    sources = Sources(spark, tmp_path, {})
    joined = sources.orders.join(sources.returns, how="left", joiner=dear, name="joined")
    driver, tables = Driver(joined), []
    for orders, returns in (({"x": 1, "y": 2}, {}), ({"x": 7, "y": 4}, {}), ({"x": 5}, {"y": 3})):
        feed(driver, [("orders", key, {"amount": amount}) for key, amount in orders.items()])
        feed(driver, [("returns", key, {"amount": amount}) for key, amount in returns.items()])
        driver.run()
        tables.append({key: row["value"] for key, row in driver.table.items()})
    assert tables == [
        {"x": "1.0/None", "y": "2.0/None"},
        {"x": "1.0/None", "y": "4.0/None"},
        {"x": "5.0/None", "y": "4.0/3.0"},
    ]
    (letter,) = driver.dead_letters
    assert (letter["table"], json.loads(bytes(letter["key"]))) == ("joined", {"order_id": "x"})
    assert driver.count["dead-letters"] == 1
    assert "ValueError: no" in letter["reason"]
    assert re.findall(r"Sub-topology: \d +(\w+) .*store", joined.describe()) == ["pair", "resolve"]
    by_expression = sources.orders.join(sources.returns, how="left", joiner=["100 / left.amount as value"], name="divided")
    driver = Driver(by_expression)
    for amount in (5, 0):
        driver.input("orders").change("x", {"amount": amount})
        driver.run()
    assert {key: row["value"] for key, row in driver.table.items()} == {"x": 20.0}
    (letter,) = driver.dead_letters
    assert "division by zero" in letter["reason"].lower()


def test_with_a_foreign_key_it_is_fk_join(spark: SparkSession, tmp_path: Path) -> None:
    orders, customers = tables(spark, tmp_path)
    more: Any = {"joiner": "right.region", "name": "joined", "emit": "on-update"}
    by_method = orders.join(customers, on="customer_id", how="left", **more)
    by_function = fk_join(orders, customers, "customer_id", "left", **more)
    assert by_method._planned.node == by_function._planned.node
    assert by_method.describe() == by_function.describe()


def sold(of: Sources) -> Table:
    columns = ["left.amount", "left.product", "left.shop", "right.name"]
    with_customer = fk_join(of.orders, of.customers, "customer_id", joiner=columns)
    columns = ["left.amount", "left.name", "left.shop", "right.title", "right.price"]
    with_product = fk_join(with_customer, of.products, "product.id", joiner=columns)
    columns = ["left.amount", "left.name", "left.title", "left.price", "right.town"]
    return fk_join(with_product, of.shops, "shop", "left", columns, name="sold")


def test_on_spark_a_multi_way_join_and_its_state_have_their_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: dict[str, dict[str, Any]] = {
        "orders": {"order_id": "o1", "customer_id": "c1", "product": {"id": "p1", "n": 7}, "shop": "s1", "amount": 2.5},
        "customers": {"customer_id": "c1", "name": "Ann", "region": "north"},
        "products": {"id": "p1", "title": "pen", "price": 1.0, "maker": "m1"},
    }
    for name, row in rows.items():
        write_lines(tmp_path / name, "0", [{**row, "lsn": 1, "op": "u"}])
    table = sold(Sources(spark, tmp_path, {}))
    (row,) = run(table.changes, tmp_path / "ck").rows
    sold_row = {"amount": 2.5, "name": "Ann", "title": "pen", "price": 1.0, "town": None}
    assert {name: row[name] for name in sold_row} == sold_row
    state = saved_stores(spark, tmp_path / "ck")
    left, *others, result = look_up(state, "sold", "o1")
    assert left["foreign_key"] == {"customers": "c1", "products": "p1", "shops": "s1"}
    assert [one["row"] for one in others if one["kind"] == "right"] == [{"name": "Ann"}, {"title": "pen", "price": 1.0}]
    assert [one["foreign_key"] for one in others if one["kind"] == "subscription"] == [
        {"customers": "c1"},
        {"products": "p1"},
        {"shops": "s1"},
    ]
    assert result["row"] == sold_row
    assert result["version"] == [[1], [1], [1], []]
    assert verify(spark, tmp_path / "ck") == []
    examined = upkeep._examined

    def without_subscriptions(spark: SparkSession, store: SavedStore) -> DataFrame:
        return examined(spark, store).where(f"combined is null or '{store.stage}' != 'subscription'")

    monkeypatch.setattr(upkeep, "_examined", without_subscriptions)
    (problem,) = verify(spark, tmp_path / "ck")
    assert problem.startswith(
        "store sold-subscription lacks the subscriptions of 3 left rows, first b'\\x00o1' under b'\\x00c1'"
    )


def test_why_joins_are_not_one_is_said(spark: SparkSession, tmp_path: Path) -> None:
    """More reasons: tests/golden/plans."""
    of = Sources(spark, tmp_path, {})

    def first(name: str, **more: Any) -> Table:
        return fk_join(of.orders, of.customers, "customer_id", name=name, **more)

    joined, loud = of.joined, first("loud", joiner=["upper(right.name) as name", "left.shop"])
    doubled = ["left.left.amount * 2 as twice"]
    for table, why in (
        (fk_join(joined, of.products, "upper(left.shop)"), "the foreign key is more than fields"),
        (fk_join(joined, of.products, lambda key, row: None), "the extractor is a function"),
        (fk_join(joined, of.shops, "left.shop", emit="on-update"), "it is on-update"),
        (fk_join(first("all", emit="on-update"), of.shops, "left.shop"), "all is on-update"),
        (fk_join(loud, of.shops, "shop"), "loud makes more of the rows than fields of them"),
        (
            fk_join(joined, of.shops, "left.shop", joiner=doubled),
            "the joiner makes more of the rows than fields of them",
        ),
    ):
        assert f"joins-share-stages did not fire: {why}" in table.describe()
    counted = cogroup(
        joined.group_by("left.shop as shop").count(), of.shops.group_by("shop").agg(n=agg.count()), emit="on-update"
    )
    assert counted.describe().count("aggregate-reads-answers did not fire: joined is on-change") == 1
    assert "share" not in fk_join(of.orders, of.shops, "shop").describe()


KNOWN, MORE = 3, 1
"""Runs after which all code of a query is known, since the first ones have an empty table, and runs after them."""


def order(number: int) -> dict[str, Any]:
    return {"order_id": f"o{number % 3}", "customer_id": "c1", "amount": float(number), "items": 1, "lsn": number, "op": "u"}


def test_later_batches_run_code_that_is_compiled(spark: SparkSession, tmp_path: Path) -> None:
    """A number that differs in each batch, such as its time, must not be part of the code."""
    small(spark, tmp_path)
    write_lines(tmp_path / "customers", "c1", [{"customer_id": "c1", "region": "north", "lsn": 1, "op": "c"}])
    write_lines(tmp_path / "orders", "o0", [order(0)])
    compilations = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()  # type: ignore[union-attr]
    counts = []
    for number in range(1, KNOWN + MORE + 1):
        table = fk_join(*tables(spark, tmp_path), "customer_id", name="held", emit="periodic 100 ms")
        table.to_parquet(tmp_path / "out", checkpoint=tmp_path / "checkpoint", trigger="available-now").awaitTermination()
        counts.append(compilations.getCount())
        write_lines(tmp_path / "orders", f"o{number}", [order(number)])
    assert counts[KNOWN:] == [counts[KNOWN - 1]] * MORE, counts
