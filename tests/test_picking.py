"""``resolve-picks-fields``: rows that are fields of both rows are made by resolve, and are those that Spark makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, fk_join
from fkjoin.rules import RESOLVE_PICKS_FIELDS
from fkjoin.spark.settings import EXCLUDED
from fkjoin.stages import How
from tests.conftest import small
from tests.test_spark_aggregates import CUSTOMER, ORDER, History
from tests.test_spark_engine import run, table_of

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    small(spark, tmp_path)
    yield
    spark.conf.set(EXCLUDED, "")  # else it would go on for the tests after these


def tables(spark: SparkSession, folder: Path) -> tuple[Table, Table]:
    """Orders with a struct of their columns, some of them null, and customers."""
    for name in ("orders", "customers"):
        (folder / name).mkdir(exist_ok=True)
    orders = spark.readStream.schema(ORDER).json(str(folder / "orders"))
    inner = F.struct("amount", F.array("items").alias("all"))
    line = F.when(F.col("items") != 3, F.struct("items", inner.alias("price"))).alias("line")
    orders = orders.select("*", line, F.to_date(F.lit("2026-01-01")).alias("day"))
    about: Any = {"version": "lsn", "deleted": "op = 'd'"}
    customers = spark.readStream.schema(CUSTOMER).json(str(folder / "customers"))
    return Table.from_stream(orders, key="order_id", name="orders", **about), Table.from_stream(
        customers, key="customer_id", name="customers", **about
    )


def joiner(orders: Table, customers: Table, how: How) -> Table:
    columns = [
        "left.day",
        "left.line.price",
        F.col("left.line.items").alias("n"),
        "left.line as l",
        "right.region",
        "left.items",
    ]
    return fk_join(orders, customers, "customer_id", how, columns, name="it")


def view(orders: Table, customers: Table, how: How) -> Table:
    """Also the key, and one whole row."""
    joined = fk_join(orders, customers, "customer_id", how, name="joined")
    return joined.map_values(["order_id as named", "right", "left.line.price.amount", "left.day", "left.line as l"], name="it")


def view_of_a_joiner(orders: Table, customers: Table, how: How) -> Table:
    joined = fk_join(orders, customers, "customer_id", how, ["left.line", "right.region as where"], name="joined")
    return joined.map_values(["where", "line.price.amount as amount", "line"], name="it")


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("made", [joiner, view, view_of_a_joiner])
def test_rows_are_those_that_spark_makes_and_the_state_is_the_same(
    spark: SparkSession, tmp_path: Path, made: Callable[[Table, Table, How], Table], how: How
) -> None:
    """One checkpoint goes on with the rule, without it and with it again; the other one is without it always."""
    history, seen = History(tmp_path), {"on and off": list[Row](), "off": list[Row]()}
    for excluded in ("", RESOLVE_PICKS_FIELDS, ""):
        history.write(60)
        for name, rows in seen.items():
            spark.conf.set(EXCLUDED, excluded if name == "on and off" else RESOLVE_PICKS_FIELDS)
            table = made(*tables(spark, tmp_path), how)
            fired = spark.conf.get(EXCLUDED) == ""
            assert (f"{RESOLVE_PICKS_FIELDS} fired" in table.describe()) == fired
            assert planned(table) == (2 if fired else 4), "both sources are packed; rows of answers are unpacked and packed"
            rows += run(table.changes, tmp_path / name).rows
        found = [{key: row.asDict(True) for key, row in table_of(rows, "order_id").items()} for rows in seen.values()]
        assert found[0] == found[1]
    assert len({str(row) for row in found[0].values()}) > 3
    column = {joiner: "region", view: "right", view_of_a_joiner: "where"}[made]
    assert how == "inner" or any(row[column] is None for row in found[0].values())


def planned(table: Table) -> int:
    """How often the query's results pass through Python outside of operators."""
    assert table.packed is not None
    plan = table.packed[0]._jdf.queryExecution().analyzed().toString()
    return int(plan.count("MapInArrow"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["left.items + 1 as more"], "the joiner makes more of the rows than fields of them"),
        (lambda left, right: left["items"], "the joiner is a function"),
    ],
)
def test_why_it_does_not_fire(spark: SparkSession, tmp_path: Path, given: Any, why: str) -> None:
    orders, customers = tables(spark, tmp_path)
    joined = fk_join(orders, customers, "customer_id", joiner=given, name="it")
    assert f"{RESOLVE_PICKS_FIELDS} did not fire: {why}\n" in joined.describe()
    plain = fk_join(orders, customers, "customer_id", name="plain")
    assert RESOLVE_PICKS_FIELDS not in plain.describe(), "there is nothing to pick"
    assert f"{RESOLVE_PICKS_FIELDS} did not fire: a filter leaves rows out\n" in plain.filter("true").describe()
    mapped = plain.map_values("left.items * 2 as twice")
    assert f"{RESOLVE_PICKS_FIELDS} did not fire: a column is more than a field of both rows\n" in mapped.describe()
