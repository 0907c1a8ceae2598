"""``resolve-makes-rows``: what joiners and views make of both rows is made by resolve, and is what Spark makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.plan.rules import RESOLVE_MAKES_ROWS
from fkjoin.sessions.settings import EXCLUDED
from fkjoin.stages import How
from tests.support.orders import CUSTOMER, ORDER, History
from tests.support.queries import run, table_of, values
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("own_rules")


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
        "coalesce(right.region, 'nowhere') || '!' as loud",
        "left.items * 2 as twice",
    ]
    return fk_join(orders, customers, "customer_id", how, columns, name="it")


def view(orders: Table, customers: Table, how: How) -> Table:
    """Also the key, and one whole row."""
    joined = fk_join(orders, customers, "customer_id", how, name="joined")
    some = joined.filter("left.items > 0 or right.region = 'north'")
    return some.map_values(["order_id as named", "right", "left.line.price.amount", "left.day", "left.line as l"], name="it")


def filtered(orders: Table, customers: Table, how: How) -> Table:
    """Both rows, as they are."""
    return fk_join(orders, customers, "customer_id", how, name="joined").filter("left.amount is not null", name="it")


def view_of_a_joiner(orders: Table, customers: Table, how: How) -> Table:
    joined = fk_join(orders, customers, "customer_id", how, ["left.line", "right.region as where"], name="joined")
    return joined.map_values(["where", "line.price.amount as amount", "line"]).filter(
        "where is null or amount > 0.1", name="it"
    )


def sums(orders: Table, customers: Table, how: How) -> Table:
    """Sums of a view, by expressions."""
    some = view(orders, customers, how).filter("named <> 'o1'")
    by = some.group_by(["right.region is null as nowhere", "l.items as n"], name="it")
    return by.agg(rows=agg.count(), sum=agg.sum("amount * 10"), last=agg.max("named"))


def join(orders: Table, customers: Table, how: How) -> Table:
    """A join of a view with its right table again, by an expression."""
    some = fk_join(orders, customers, "customer_id", how, name="joined").filter("left.items > 0 or left.amount > 0.1")
    again = some.map_values(["left.customer_id as buyer", "right.region as region", "left.items as items"])
    return fk_join(
        again, customers, "if(items > 2, 'c1', buyer)", how, ["left.items", "left.region", "right.region as more"], "it"
    )


MADE: list[tuple[Callable[[Table, Table, How], Table], How]] = [
    (joiner, "left"),
    (filtered, "inner"),
    (sums, "left"),
    (join, "inner"),
    (view, "left"),
    (view_of_a_joiner, "left"),
]
"""The last two are views, as those that sums and the other join are made of."""


@pytest.mark.faults
@pytest.mark.parametrize(("made", "how"), sampled(MADE, MADE[:4]))
def test_rows_are_those_that_spark_makes_and_the_state_is_the_same(
    spark: SparkSession, tmp_path: Path, made: Callable[[Table, Table, How], Table], how: How
) -> None:
    """One checkpoint is begun with the rule and goes on without it; the other one takes everything at once, without it."""
    history, rows = History(tmp_path), list[Row]()
    for excluded in ("", RESOLVE_MAKES_ROWS):
        history.write(80)
        spark.conf.set(EXCLUDED, excluded)
        table = made(*tables(spark, tmp_path), how)
        assert made in (sums, join) or (f"{RESOLVE_MAKES_ROWS} fired" in table.describe()) == (not excluded)
        sources, joins = (3, 2) if made is join else (2, 1)
        assert planned(table) == sources + 2 * joins * bool(excluded), "they are packed; rows of answers unpacked and packed"
        rows += run(table.changes, tmp_path / "on-and-off").rows
    found = table_of(rows, *table.key)
    wanted = table_of(run(table.changes, tmp_path / "off").rows, *table.key)
    plain = [item for item in rows[0].asDict() if not item.startswith("_")]
    assert values(found, plain) == values(wanted, plain)
    assert len({str(row) for row in values(found, plain).values()}) > 1
    assert how == "inner" or any(None in row for row in values(found, plain).values())


def planned(table: Table) -> int:
    """The number of times that the query's results pass through Python outside of operators."""
    plan = table._plan.frame._jdf.queryExecution().analyzed().toString()
    return int(plan.count("MapInArrow"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["upper(right.region) as region"], "the joiner is left to Spark"),
        (["left.line"], "its one column is a struct, and may be null"),
        (lambda left, right: left["items"], "the joiner is a function"),
    ],
)
def test_why_it_does_not_fire(spark: SparkSession, tmp_path: Path, given: Any, why: str) -> None:
    orders, customers = tables(spark, tmp_path)
    joined = fk_join(orders, customers, "customer_id", joiner=given, name="it")
    assert f"{RESOLVE_MAKES_ROWS} did not fire: {why}\n" in joined.describe()
    plain = fk_join(orders, customers, "customer_id", name="plain")
    assert RESOLVE_MAKES_ROWS not in plain.describe(), "both rows are there already"
    mapped = plain.map_values("upper(right.region) as region")
    said = f"{RESOLVE_MAKES_ROWS} did not fire: map_values upper(right.region) as region is left to Spark\n"
    assert said in mapped.describe()
    assert said in mapped.filter("region = 'NORTH'").describe(), "so are its rows"
    assert f"{RESOLVE_MAKES_ROWS} did not fire: {why}\n" in joined.filter("true").describe()
