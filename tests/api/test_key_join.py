"""``left.join(right)``: by primary key; with ``on``, it is ``fk_join``.

Its rows after random changes: tests/api/test_operators.py and tests/stages/test_pair.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.testing import CRASH, Driver
from tests.support.driven import Change, feed

pytestmark = pytest.mark.usefixtures("small_tables")

Sides = tuple[Table, Table]


@pytest.fixture
def sides(spark: SparkSession, tmp_path: Path) -> Sides:
    """Orders and payments."""
    about: Any = {"version": "lsn", "format": "json"}
    schemas = {
        "orders": "id string, amount int, buyer string, lsn bigint",
        "payments": "order_id string, paid int, lsn bigint",
    }
    tables = []
    for name, schema in schemas.items():
        (tmp_path / name).mkdir()
        tables.append(Table.from_files(spark, tmp_path / name, key=schema.split()[0], schema=schema, **about))
    return tables[0], tables[1]


def order(key: str, amount: int) -> Change:
    return "orders", key, {"amount": amount, "buyer": "b"}


def payment(key: str, paid: int) -> Change:
    return "payments", key, {"paid": paid}


CHANGES = [order("x", 0), order("y", 1), order("z", 2), payment("x", 5), payment("w", 6)]


def after(table: Table) -> dict[Any, Any]:
    driver = Driver(table)
    feed(driver, CHANGES)
    driver.run(CRASH)
    return driver.table


@pytest.mark.parametrize(("how", "keys"), [("inner", "x"), ("left", "xyz"), ("outer", "wxyz")])
def test_it_has_the_keys_of_its_kind(sides: Sides, how: Any, keys: str) -> None:
    orders, payments = sides
    assert orders.join(payments, how=how).columns == ["id", "left", "right"]
    table = after(orders.join(payments, how=how, joiner=["left.amount", "right.paid"], validate=True))
    assert sorted(table) == list(keys)
    assert table["x"] == {"amount": 0, "paid": 5}


def test_views_aggregates_and_joins_read_a_join(sides: Sides) -> None:
    orders, payments = sides
    both = orders.join(payments, how="outer", name="both", validate=True)
    unpaid = both.filter("right is null", name="unpaid").map_values("left.amount", name="amounts")
    sums = both.group_by("left.buyer", name="sums").agg(paid=agg.sum("right.paid"), n=agg.count())
    again = sums.join(sums.map_values("n as m", name="numbers"), joiner=["left.*", "right.m"])
    assert after(unpaid) == {"y": {"amount": 1}, "z": {"amount": 2}}
    assert after(again) == {"b": {"paid": 5, "n": 3, "m": 3}}


def dear(left: Any, right: Any) -> str | None:
    """A joiner that is Spark's: null, which is no result, and an exception."""
    if left is not None and left.amount == 7:
        raise ValueError("no")
    return None if left is None or left.amount == 0 else f"{left.amount}/{right and right.paid}"


DEAR = [{"x": "1/None", "y": "2/None"}, {"x": "1/None", "y": "4/None"}, {"x": "5/None", "y": "4/3"}]
SHARES = [{"x": 100, "y": 50}, {"x": 100, "y": 25}, {"x": 20, "y": 25}]


@pytest.mark.parametrize(
    ("joiner", "bad", "shown", "reason", "stages"),
    [
        pytest.param(dear, 7, DEAR, "ValueError: no", ["pair", "resolve"], id="function"),
        pytest.param("100 / left.amount as value", 0, SHARES, "zero", ["pair"], id="column"),
    ],
)
def test_a_joiner_that_throws_makes_dead_letters_and_the_last_result_stays(
    sides: Sides, joiner: Any, bad: int, shown: list[Any], reason: str, stages: list[str]
) -> None:
    """A function, behind which a second stage stands, and an expression of the workers."""
    joined = sides[0].join(sides[1], how="left", joiner=joiner, name="joined", validate=True)
    driver, tables = Driver(joined), []
    for batch in (
        [order("x", 1), order("y", 2)],
        [order("x", bad), order("y", 4)],
        [payment("y", 3), order("x", 5)],
    ):
        feed(driver, batch)
        driver.run()
        tables.append({key: row["value"] for key, row in driver.table.items()})
    assert tables == shown
    (letter,) = driver.dead_letters
    assert (letter["table"], json.loads(bytes(letter["key"]))) == ("joined", {"id": "x"})
    assert driver.count["dead-letters"] == 1
    assert reason.lower() in letter["reason"].lower()
    assert re.findall(r"Sub-topology: \d +(\w+) .*store", joined.describe()) == stages


def test_with_a_foreign_key_it_is_fk_join(sides: Sides) -> None:
    orders, payments = sides
    more: Any = {"joiner": "right.paid", "name": "joined", "emit": "on-update"}
    by_method = orders.join(payments, on="buyer", how="left", **more)
    by_function = fk_join(orders, payments, "buyer", "left", **more)
    assert by_method._planned.node == by_function._planned.node
    assert by_method.describe() == by_function.describe()


def test_stars_are_the_columns_of_both_sides(sides: Sides) -> None:
    assert sides[0].join(sides[1], joiner=["left.*", "right.*"]).columns == ["id", "amount", "buyer", "paid"]
