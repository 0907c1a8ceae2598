"""``left.join(right)``: by primary key from files to sinks, and on after a restart; with ``on``, it is ``fk_join``."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.checkpoint.entries import look_up
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.stages.counters import metrics_name
from fkjoin.testing import CRASH, Driver
from tests.support.driven import feed_lines
from tests.support.queries import run, table_of, write_lines
from tests.support.sessions import small

ORDERS = "id string, amount int, buyer string, lsn bigint, op string"
PAYMENTS = "order_id string, paid int, note string, lsn bigint, op string"


def tables(spark: SparkSession, folder: Path, **more: Any) -> tuple[Table, Table]:
    found = []
    for name, key, schema in (("orders", "id", ORDERS), ("payments", "order_id", PAYMENTS)):
        (folder / name).mkdir(exist_ok=True)
        about: Any = {"version": "lsn", "deleted": "op = 'd'", "format": "json", "timestamp": "lsn * 10", **more}
        found.append(Table.from_files(spark, folder / name, key=key, schema=schema, **about))
    return found[0], found[1]


Log = list[tuple[str, dict[str, Any]]]


def order(key: str, amount: int, lsn: int, op: str = "u") -> tuple[str, dict[str, Any]]:
    return "orders", {"id": key, "amount": amount, "buyer": "b", "lsn": lsn, "op": op}


def payment(key: str, paid: int, lsn: int, op: str = "u") -> tuple[str, dict[str, Any]]:
    return "payments", {"order_id": key, "paid": paid, "note": str(lsn), "lsn": lsn, "op": op}


def feed(driver: Driver, changes: Log) -> None:
    for name, line in changes:
        feed_lines(driver, name, [line], 10)


def log(size: int) -> Log:
    """Changes of both tables at random, those of a key in another order than their versions'."""
    rng = random.Random(42)
    found: Log = []
    for lsn in range(size):
        key, op = f"o{rng.randrange(9)}", "d" if rng.random() < 0.3 else "u"
        made = rng.choice((order, payment))
        found.append(made(key, rng.randrange(3), lsn, op))
    for at in range(0, size, 10):
        found[at : at + 10] = rng.sample(found[at : at + 10], 10)
    return found


def newest(changes: Log) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of both tables by key."""
    rows: dict[str, dict[str, Any]] = {"orders": {}, "payments": {}}
    for name, row in sorted(changes, key=lambda change: change[1]["lsn"]):
        key = row["id"] if name == "orders" else row["order_id"]
        rows[name].pop(key, None)
        if row["op"] != "d":
            rows[name][key] = row
    return rows["orders"], rows["payments"]


def wanted(changes: Log, how: str) -> dict[tuple[str], tuple[Any, Any]]:
    orders, payments = newest(changes)
    keys = {"inner": orders.keys() & payments.keys(), "left": orders.keys(), "outer": orders.keys() | payments.keys()}[how]
    return {(key,): (orders.get(key, {}).get("amount"), payments.get(key, {}).get("paid")) for key in keys}


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_whatever_changes_the_join_is_that_of_both_tables(spark: SparkSession, tmp_path: Path, how: Any) -> None:
    """Changes of a key come in another order than their versions'; each batch is begun again after a crash."""
    orders, payments = tables(spark, tmp_path)
    driver = Driver(orders.join(payments, how=how, joiner=["left.amount", "right.paid"], name=how, validate=True))
    changes = log(60)
    for start in range(0, 60, 20):
        feed(driver, changes[start : start + 20])
        driver.run(CRASH)
        assert {(key,): tuple(row.values()) for key, row in driver.table.items()} == wanted(changes[: start + 20], how)


def test_a_join_goes_on_after_a_restart_and_its_rows_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    """On Spark, without a joiner."""
    small(spark, tmp_path, partitions=2)
    orders, payments = tables(spark, tmp_path)
    both = orders.join(payments, how="outer", name="both", validate=True).materialize("both")
    assert both.columns == ["id", "left", "right"]
    changes, rows = log(40), list[Any]()
    for part in range(2):
        for name in ("orders", "payments"):
            write_lines(tmp_path / name, str(part), [row for of, row in changes[20 * part : 20 * part + 20] if of == name])
        found = run(both.changes, tmp_path / "ck", metrics_name("both"))
        rows += found.rows
        assert found.count["left-in"] + found.count["right-in"] == 20
        assert found.count["out"] == len(found.rows)
    kept = read_state(spark, tmp_path / "ck", "both").collect()
    for found_rows in (table_of(rows, "id").values(), kept):
        shown = {(row.id,): (row.left and row.left.amount, row.right and row.right.paid) for row in found_rows}
        assert shown == wanted(changes, "outer")
    for row in kept:
        numbers = [version[0] for version in (row["_left_version"], row["_right_version"]) if version is not None]
        assert row["_timestamp"] == 10 * max(numbers)
    assert verify(spark, tmp_path / "ck") == []
    (entry,) = look_up(saved_stores(spark, tmp_path / "ck"), "both", kept[0].id)
    assert (entry["kind"], entry["gone"]) == ("pair", False)


def test_views_aggregates_and_joins_read_a_join(spark: SparkSession, tmp_path: Path) -> None:
    orders, payments = tables(spark, tmp_path)
    both = orders.join(payments, how="outer", name="both", validate=True)
    unpaid = both.filter("right is null", name="unpaid").map_values("left.amount", name="amounts")
    sums = both.group_by("left.buyer", name="sums").agg(paid=agg.sum("right.paid"), n=agg.count())
    again = sums.join(sums.map_values("n as m", name="numbers"), joiner=["left.*", "right.m"], name="again")
    changes = [order("x", 0, 1), order("y", 1, 1), order("z", 2, 1), payment("x", 5, 3), payment("w", 6, 1)]
    drivers = Driver(unpaid), Driver(again)
    for driver in drivers:
        feed(driver, changes)
        driver.run()
    assert drivers[0].table == {"y": {"amount": 1}, "z": {"amount": 2}}
    assert drivers[1].table == {"b": {"paid": 5, "n": 3, "m": 3}}


def dear(left: Any, right: Any) -> str | None:
    """A joiner that is Spark's: null, which is no result, and an exception."""
    if left is not None and left.amount == 7:
        raise ValueError("no")
    return None if left is None or left.amount == 0 else f"{left.amount}/{right and right.paid}"


@pytest.mark.parametrize("joiner", [dear, "100 / left.amount as value"], ids=["function", "column"])
def test_a_joiner_that_throws_makes_dead_letters_and_the_last_result_stays(
    spark: SparkSession, tmp_path: Path, joiner: Any
) -> None:
    """A function, behind which a second stage stands, and an expression of the workers."""
    orders, payments = tables(spark, tmp_path)
    joined = orders.join(payments, how="left", joiner=joiner, name="joined", validate=True)
    driver, shown = Driver(joined), []
    for batch in (
        [order("x", 1, 1), order("y", 2, 1)],
        [order("x", 7 if joiner is dear else 0, 2), order("y", 4, 2)],
        [payment("y", 3, 1), order("x", 5, 3)],
    ):
        feed(driver, batch)
        driver.run()
        shown.append({key: row["value"] for key, row in driver.table.items()})
    if joiner is dear:
        assert shown == [{"x": "1/None", "y": "2/None"}, {"x": "1/None", "y": "4/None"}, {"x": "5/None", "y": "4/3"}]
    else:
        assert shown == [{"x": 100, "y": 50}, {"x": 100, "y": 25}, {"x": 20, "y": 25}]
    (letter,) = driver.dead_letters
    assert (letter["table"], json.loads(bytes(letter["key"])), driver.count["dead-letters"]) == ("joined", {"id": "x"}, 1)
    assert ("ValueError: no" if joiner is dear else "zero") in letter["reason"].lower() + letter["reason"]
    stages = re.findall(r"Sub-topology: \d +(\w+) .*store", joined.describe())
    assert stages == (["pair", "resolve"] if joiner is dear else ["pair"])


def test_with_a_foreign_key_it_is_fk_join(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    orders, payments = tables(spark, tmp_path)
    one = orders.join(payments, on="buyer", how="left", joiner="right.paid", name="joined", emit="on-update")
    other = fk_join(orders, payments, "buyer", "left", "right.paid", "joined", emit="on-update")
    assert one._planned.node == other._planned.node
    assert one.describe() == other.describe()


def test_what_cannot_be_joined_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The messages that name a way out are tried in ``test_ways_out_while_building``."""
    small(spark, tmp_path)
    orders, payments = tables(spark, tmp_path)
    for wrong, says in (
        (lambda: orders.join(payments, how="banana"), 'how: \'banana\' is not one of "inner", "left", "outer"'),
        (lambda: orders.join(payments, on="buyer", how="banana"), 'how: \'banana\' is not one of "inner", "left"$'),
        (lambda: orders.join(payments, on="buyr"), "on: left table orders has no column 'buyr'"),
        (lambda: orders.join("payments"), "right: a Table is needed"),
        (lambda: orders.join(payments, joiner="left.amout"), "joiner: "),
        (lambda: orders.join(payments, name="orders"), "name: 'orders' already names an input"),
        (lambda: orders.join(payments, emit="never"), "emit: 'never' is not one of"),
    ):
        with pytest.raises(TopologyError, match=f"^{says}"):
            wrong()
    starred = orders.join(payments.map_values("paid", name="paid"), joiner=["left.*", "right.*"])
    assert starred.columns == ["id", "amount", "buyer", "op", "paid"]
