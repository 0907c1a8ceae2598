"""Joins in a row by foreign keys of one left table are one: its state, and why some joins are not.

Rows: tests/api/test_operators.py; with the rule and without it: tests/plan/test_optimizer.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from fkjoin import Table, cogroup, fk_join
from fkjoin import aggregates as agg
from fkjoin.checkpoint import upkeep
from fkjoin.checkpoint.entries import look_up
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.stores import SavedStore
from fkjoin.checkpoint.upkeep import verify
from tests.support.plans.topologies import Sources
from tests.support.queries import run, write_lines

pytestmark = pytest.mark.usefixtures("small_tables")


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
