"""Aggregates of members on Spark, beside Spark's own functions over the rows that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.testing import Driver
from tests.support.driven import feed
from tests.support.orders import CUSTOMER, ORDER, History, tables

pytestmark = pytest.mark.usefixtures("small_tables")

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


def by_spark(spark: SparkSession, history: History) -> Any:
    """Spark's functions over the rows that there are, those of lists ordered by it."""
    orders = spark.createDataFrame([Row(**{**row, "lsn": 0, "op": ""}) for row in history.orders.values()], ORDER)
    customers = spark.createDataFrame([Row(**{**row, "lsn": 0, "op": ""}) for row in history.customers.values()], CUSTOMER)
    joined = orders.join(customers.select("customer_id", "region"), "customer_id").where("region is not null")
    pair = "struct(order_id, items)"
    return joined.groupBy("region").agg(
        F.count_distinct("customer_id").alias("buyers"),
        F.expr("array_sort(collect_list(amount))").alias("listed"),
        F.expr("transform(sort_array(collect_list(struct(items, amount, order_id)), false), x -> x.order_id)").alias(
            "by_items"
        ),
        F.expr("array_sort(collect_set(amount))").alias("amounts"),
        F.expr("string_agg(order_id, ', ') within group (order by order_id)").alias("names"),
        F.expr("min_by(order_id, struct(amount, order_id)) filter (where amount is not null)").alias("cheapest"),
        F.expr(f"slice(transform(array_sort(collect_list(struct(-items, order_id, {pair} as it))), x -> x.it), 1, 2)").alias(
            "largest"
        ),
        F.max_by("amount", "order_id").alias("when_null"),
        F.max_by(F.expr(pair), "items", 2).alias("_largest"),
    )


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
        for name in MEMBERS:
            found = ours[name]
            if name == "listed":
                found = sorted(found)
            if name == "largest":
                found = [Row(**one) for one in found]
            assert found == row[name], (key, name)
        assert [one["items"] for one in row["_largest"]] == [one["items"] for one in ours["largest"]]
        by_key = sorted(history.orders.values(), key=lambda order: order["order_id"])
        mine = [order for order in by_key if history.customers.get(order["customer_id"], {}).get("region") == key]
        assert ours["listed"] == [order["amount"] for order in mine if order["amount"] is not None]
    assert {field.name: field.dataType.simpleString() for field in batch.schema if field.name in MEMBERS} == {
        field.name: field.dataType.simpleString() for field in table.changes.schema if field.name in MEMBERS
    }
