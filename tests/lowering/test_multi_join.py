"""Joins in a row by foreign keys of one left table, on Spark: as one, and as they are written."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.checkpoint import upkeep
from fkjoin.checkpoint.entries import look_up
from fkjoin.checkpoint.saved import entries, saved_stores
from fkjoin.checkpoint.stores import SavedStore
from fkjoin.checkpoint.upkeep import verify
from fkjoin.plan.rules import JOINS_SHARE_STAGES
from fkjoin.sessions.settings import EXCLUDED
from fkjoin.testing import Driver
from tests.support.driven import feed_lines
from tests.support.queries import run, values, write_lines
from tests.support.stores import contents

pytestmark = pytest.mark.usefixtures("small_tables")

ORDER = "order_id string, customer_id string, product struct<id: string, n: bigint>, shop string, amount double"
SIDES = {
    "customers": "customer_id string, name string, tier string, lsn bigint, op string",
    "products": "id string, title string, price double, lsn bigint, op string",
    "shops": "shop string, town string, lsn bigint, op string",
}
KEYS = {"orders": "order_id", "customers": "customer_id", "products": "id", "shops": "shop"}


SOLD = ["amount", "name", "title", "price", "town"]
"""Rows that the joins in a row make of an order."""


class Shop:
    """Random changes of four tables, as files, and the tables that they lead to."""

    def __init__(self, folder: Path) -> None:
        self.rng, self.lsn = random.Random(3), 0
        self.now: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in KEYS}
        for name in KEYS:
            (folder / name).mkdir()

    def change(self, changes: int) -> dict[str, list[dict[str, Any]]]:
        """Draw changes, in order; those of each table."""
        rng, lines = self.rng, {name: list[dict[str, Any]]() for name in KEYS}
        for _ in range(changes):
            self.lsn += 1
            kind = rng.choice(("orders", "orders", *SIDES))
            number = rng.randrange(20 if kind == "orders" else 4)
            row: dict[str, Any] = {KEYS[kind]: f"{kind[0]}{number}"}
            if kind == "orders":
                row |= {
                    "customer_id": f"c{rng.randrange(5)}",
                    "product": {"id": rng.choice(("p0", "p1", "p2", None)), "n": number},
                }
                row |= {"shop": rng.choice(("s0", "s1", "s9")), "amount": rng.choice((1.5, 2.0, None))}
            elif kind == "customers":
                row |= {"name": rng.choice(("Ann", "Bob")), "tier": rng.choice(("gold", None))}
            elif kind == "products":
                row |= {"title": rng.choice(("pen", "cup")), "price": rng.choice((1.0, 2.0))}
            else:
                row |= {"town": rng.choice(("Ulm", "Bonn"))}
            gone = rng.random() < 0.2
            lines[kind].append({**row, "lsn": self.lsn, "op": "d" if gone else "u"})
            self.now[kind].pop(row[KEYS[kind]], None)
            if not gone:
                self.now[kind][row[KEYS[kind]]] = row
        return lines

    def sold(self) -> dict[str, list[Any]]:
        """By order: amount, customer, title and price, town; a shop need not be known."""
        found = {}
        for key, order in self.now["orders"].items():
            customer, product = (
                self.now["customers"].get(order["customer_id"]),
                self.now["products"].get(order["product"]["id"]),
            )
            if customer is not None and product is not None:
                shop = self.now["shops"].get(order["shop"], {})
                found[key] = [order["amount"], customer["name"], product["title"], product["price"], shop.get("town")]
        return found


def tables(spark: SparkSession, folder: Path) -> list[Table]:
    about: Any = {"version": "lsn", "deleted": "op = 'd'", "format": "json", "timestamp": "lsn"}
    kinds = {"orders": f"{ORDER}, lsn bigint, op string", **SIDES}
    return [Table.from_files(spark, folder / name, key=KEYS[name], schema=kind, **about) for name, kind in kinds.items()]


def sold(orders: Table, customers: Table, products: Table, shops: Table) -> Table:
    with_customer = fk_join(orders, customers, "customer_id", joiner=["left.amount", "left.product", "left.shop", "right.name"])
    columns = ["left.amount", "left.name", "left.shop", "right.title", "right.price"]
    with_product = fk_join(with_customer, products, "product.id", joiner=columns)
    columns = ["left.amount", "left.name", "left.title", "left.price", "right.town"]
    return fk_join(with_product, shops, "shop", "left", columns, name="sold", validate=True)


def sold_through_frames(orders: Table, *sides: Table) -> Table:
    """The rows pass through Spark, whose expressions make a foreign key and leave rows out."""
    customers, products, shops = sides
    some = orders.filter("order_id is not null")
    with_customer = fk_join(some, customers, lambda key, row: row["customer_id"], name="first")
    with_product = fk_join(with_customer, products, "left.product.id", name="second")
    columns: list[str | Column] = [
        "left.left.left.amount as amount",
        "left.left.right.name",
        "left.right.title",
        "left.right.price",
    ]
    columns.append(F.col("right.town").alias("town"))
    return fk_join(with_product, shops.filter("true"), "left.left.shop", "left", columns, name="sold")


def feed(driver: Driver, lines: dict[str, list[dict[str, Any]]]) -> dict[Any, dict[str, Any]]:
    """Run the changes as a batch; the table after it."""
    for name in driver.inputs:
        feed_lines(driver, name, lines[name], 1)
    driver.run()
    return driver.table


def test_joins_of_one_left_table_are_one_and_come_out_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """With the rule and without it, and where Spark makes rows in between: rows, versions and counters."""
    shop, drivers = Shop(tmp_path), []
    for build, excluded in ((sold, ""), (sold, JOINS_SHARE_STAGES), (sold_through_frames, "")):
        spark.conf.set(EXCLUDED, excluded)
        table = build(*tables(spark, tmp_path)).materialize("sold")
        text = table.describe()
        assert text.count("joins-share-stages fired") == (0 if excluded else 2)
        assert ("  scatter " in text, "  rekey " in text) == (not excluded, bool(excluded)), text
        drivers.append(Driver(table))
    spark.conf.set(EXCLUDED, "")
    for _ in range(2):
        lines = shop.change(90)
        versions = []
        for driver in drivers:
            rows = feed(driver, lines)
            assert values(rows, SOLD) == shop.sold()
            assert driver.count["out"] == len(driver.results)
            in_state = {row["order_id"]: row for row in driver.store("sold").all()}
            assert values(in_state, SOLD) == values(rows, SOLD)
            versions.append({key: row["_left_version"][0] for key, row in in_state.items()})
        assert all(version == versions[0] for version in versions)
    assert shop.sold()


def test_on_spark_a_multi_way_join_and_its_state_have_their_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Shop(tmp_path)
    rows: dict[str, dict[str, Any]] = {
        "orders": {"order_id": "o1", "customer_id": "c1", "product": {"id": "p1", "n": 7}, "shop": "s1", "amount": 2.5},
        "customers": {"customer_id": "c1", "name": "Ann", "tier": "gold"},
        "products": {"id": "p1", "title": "pen", "price": 1.0},
    }
    for name, row in rows.items():
        write_lines(tmp_path / name, "0", [{**row, "lsn": 1, "op": "u"}])
    table = sold(*tables(spark, tmp_path))
    (row,) = run(table.changes, tmp_path / "ck").rows
    made = {"amount": 2.5, "name": "Ann", "title": "pen", "price": 1.0, "town": None}
    assert {name: row[name] for name in SOLD} == made
    state = saved_stores(spark, tmp_path / "ck")
    left, *others, result = look_up(state, "sold", "o1")
    assert left["foreign_key"] == {"customers": "c1", "products": "p1", "shops": "s1"}
    assert [one["row"] for one in others if one["kind"] == "right"] == [{"name": "Ann"}, {"title": "pen", "price": 1.0}]
    assert [one["foreign_key"] for one in others if one["kind"] == "subscription"] == [
        {"customers": "c1"},
        {"products": "p1"},
        {"shops": "s1"},
    ]
    assert result["row"] == made
    assert result["version"] == [[1], [1], [1], []]
    assert {store.name for store in state} == {"sold-scatter", "sold-subscription", "sold-gather"}
    everything = [json.loads(row.row) for store in state for row in entries(spark, store).collect() if row.row]
    assert {"name": "Ann"} in everything, "of a customer nothing is kept that no joiner reads"
    with pytest.raises(Exception, match="keeps only hashes|no table is materialized"):
        read_state(spark, str(tmp_path / "ck"), "sold")
    assert verify(spark, tmp_path / "ck") == []
    examined = upkeep._examined

    def without_subscriptions(spark: SparkSession, store: SavedStore) -> DataFrame:
        return examined(spark, store).where(f"combined is null or '{store.stage}' != 'subscription'")

    monkeypatch.setattr(upkeep, "_examined", without_subscriptions)
    (problem,) = verify(spark, tmp_path / "ck")
    assert problem.startswith(
        "store sold-subscription lacks the subscriptions of 3 left rows, first b'\\x00o1' under b'\\x00c1'"
    )


def test_the_same_right_table_twice_and_who_reads_a_multi_way_join(spark: SparkSession, tmp_path: Path) -> None:
    """An order's customer, and another one that its shop is named after; summed up."""
    shop = Shop(tmp_path)
    lines = shop.change(150)
    orders, customers, _, _ = tables(spark, tmp_path)
    named = orders.map_values(["customer_id", "replace(shop, 's', 'c') as other", "amount"], name="named")
    first = fk_join(named, customers, "customer_id", joiner=["left.amount", "left.other", "right.name"], name="first")
    both = fk_join(first, customers, F.col("other"), name="both")
    assert "joins-share-stages fired" in both.describe()
    assert "of customers, customers" in both.describe()
    sums = both.group_by("left.name", name="sums").agg(rows=agg.count(), sum=agg.sum("left.amount"))
    assert "aggregate-reads-answers did not fire: both is one with the join before it" in sums.describe()
    assert "answers-keep-what-is-read fired" in sums.describe()
    some = both.filter("right.name is not null").group_by("left.name", name="some").agg(rows=agg.count())
    driver = Driver(sums)
    counts = [{key: row["rows"] for key, row in feed(each, lines).items()} for each in (driver, Driver(some))]
    wanted: dict[str, int] = {}
    people = shop.now["customers"]
    for order in shop.now["orders"].values():
        names = people.get(order["customer_id"]), people.get(order["shop"].replace("s", "c"))
        if names[0] is not None and names[1] is not None:
            wanted[names[0]["name"]] = wanted.get(names[0]["name"], 0) + 1
    assert counts == [wanted, wanted]
    assert wanted
    (stage,) = [stage for stage in driver._queries.stages if stage.name == "both-subscription"]
    entries = repr([contents(store) for store in stage.stores.values()])
    assert "Ann" in entries
    assert "gold" not in entries, "what the aggregate does not read is not kept"


def test_a_multi_way_join_over_a_join_and_with_a_join_on_its_right(spark: SparkSession, tmp_path: Path) -> None:
    """Versions of several parts on both sides; what comes out is what comes out without the rule."""
    lines = Shop(tmp_path).change(120)
    lines["named"] = lines["customers"]
    people: Any = {"key": "name", "version": "lsn", "deleted": "op = 'd'", "format": "json", "timestamp": "lsn"}
    states = []
    for excluded in ("", JOINS_SHARE_STAGES):
        spark.conf.set(EXCLUDED, excluded)
        orders, customers, products, shops = tables(spark, tmp_path)
        named = Table.from_files(spark, tmp_path / "customers", name="named", schema=SIDES["customers"], **people)
        base = fk_join(orders, customers, "customer_id", name="base")
        third = fk_join(shops, products, F.lit("p1"), "left", name="third")
        first = fk_join(base, named, "right.name", "left", name="first")
        table = fk_join(first, third, "left.left.shop", "left", name="table", validate=True).materialize("kept")
        assert table.describe().count("joins-share-stages fired") == (0 if excluded else 1)
        assert ("store base-resolve\n" in table.describe()) == (not excluded), "a multi-way join reads its left table as it is"
        driver = Driver(table)
        rows = feed(driver, lines)
        states.append({row["order_id"]: row for row in driver.store("kept").all()})
        assert values(states[-1], ["left", "right"]) == values(rows, ["left", "right"])
    spark.conf.set(EXCLUDED, "")
    assert states[0] == states[1]
    assert states[0]


def test_no_row_stays_no_row_for_who_reads_a_multi_way_join(spark: SparkSession, tmp_path: Path) -> None:
    """A right row that is not there is null, not a struct of nulls, in whatever is made of some columns of the joins."""
    shop = Shop(tmp_path)
    orders, customers, products, shops = tables(spark, tmp_path)
    first = fk_join(orders, customers, "customer_id", "left", name="first")
    both = fk_join(first, shops, "left.shop", "left", name="both")
    last = fk_join(both, products, "right.town", "left", ["left.left.right as customer", "left.right.town"], "last")
    assert last.describe().count("answers-keep-what-is-read fired") == 1
    rows = feed(Driver(last), shop.change(60))
    nobody: dict[str, Any] = {}
    assert {key: (row["customer"] and row["customer"]["name"], row["town"]) for key, row in rows.items()} == {
        key: (
            shop.now["customers"].get(order["customer_id"], nobody).get("name"),
            shop.now["shops"].get(order["shop"], nobody).get("town"),
        )
        for key, order in shop.now["orders"].items()
    }
    known = {key for key, order in shop.now["orders"].items() if order["customer_id"] in shop.now["customers"]}
    assert {key for key, row in rows.items() if row["customer"] is not None} == known
    assert 0 < len(known) < len(rows)


def test_why_joins_are_not_one_is_said(spark: SparkSession, tmp_path: Path) -> None:
    Shop(tmp_path)
    orders, customers, products, shops = tables(spark, tmp_path)

    def why(table: Table) -> str:
        (line,) = [line for line in table.describe().splitlines() if "joins-share-stages did not fire" in line]
        return line.split(": ", 1)[1]

    def first(name: str, **more: Any) -> Table:
        return fk_join(orders, customers, "customer_id", name=name, **more)

    joined = first("joined")
    assert why(fk_join(joined, products, "right.tier")) == "the foreign key reads a right table's columns"
    assert why(fk_join(joined, products, "upper(left.shop)")) == "the foreign key is more than fields"
    assert why(fk_join(joined, products, lambda key, row: None)).startswith("the extractor is a function")
    some = joined.filter("left.amount > 1", name="some")
    for left, more, said in (
        (joined, {"emit": "on-update"}, "it is on-update"),
        (joined, {"joiner": ["left.left.amount * 2 as twice"]}, "the joiner makes more of the rows than fields of them"),
        (some, {}, "some stands between the joins"),
        (joined.materialize("kept"), {}, "joined keeps its rows, as kept"),
        (first("updates", emit="on-update"), {}, "updates is on-update"),
        (first("slow", emit="periodic"), {}, "slow is held back"),
    ):
        assert why(fk_join(left, shops, "left.shop", **more)) == said
    made = first("made", joiner=["upper(right.name) as name", "left.shop"])
    assert why(fk_join(made, shops, "shop")) == "made makes more of the rows than fields of them"
    assert "share" not in fk_join(orders, shops, "shop").describe()
