"""``left.join(right)``: by primary key from files to sinks, and on after a restart; with ``on``, it is ``fk_join``."""

from __future__ import annotations

import json
import random
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
from tests.support.queries import run, table_of, write_lines
from tests.support.sampling import sampled
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


def log(size: int) -> Log:
    """Changes of both tables at random, those of a key in another order than their versions'."""
    rng = random.Random(42)
    found: Log = []
    for lsn in range(size):
        key, op = f"o{rng.randrange(9)}", "d" if rng.random() < 0.3 else "u"
        if rng.random() < 0.5:
            found.append(("orders", {"id": key, "amount": rng.randrange(3), "buyer": "b", "lsn": lsn, "op": op}))
        else:
            found.append(("payments", {"order_id": key, "paid": rng.randrange(3), "note": str(lsn), "lsn": lsn, "op": op}))
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


@pytest.mark.faults
def test_three_joins_go_on_through_restarts_each_with_one_stage(spark: SparkSession, tmp_path: Path) -> None:
    """Columns by workers; each batch by a new query on the same checkpoint."""
    small(spark, tmp_path, partitions=2)
    orders, payments = tables(spark, tmp_path)
    changes, rows = log(60), dict[str, list[Any]]()
    joins = {
        how: orders.join(payments, how=how, joiner=["left.amount", "right.paid"], name=how, validate=True)  # type: ignore[arg-type]
        for how in ("inner", "left", "outer")
    }
    for part in sampled(range(3), range(2)):
        for name in ("orders", "payments"):
            write_lines(tmp_path / name, str(part), [row for of, row in changes[20 * part : 20 * part + 20] if of == name])
        for how, joined in joins.items():
            found = run(joined.changes, tmp_path / how, metrics_name(how))
            rows[how] = [*rows.get(how, []), *found.rows]
            shown = {key: (row.amount, row.paid) for key, row in table_of(rows[how], "id").items()}
            assert shown == wanted(changes[: 20 * part + 20], how)
            assert found.count["left-in"] + found.count["right-in"] == 20
            assert found.count["out"] == len(found.rows)
    for row in rows["outer"]:
        numbers = [version[0] for version in (row["_left_version"], row["_right_version"]) if version is not None]
        assert row["_timestamp"] == 10 * max(numbers)
    assert verify(spark, tmp_path / "outer") == []
    assert joins["outer"].describe().split("\n")[16:] == [
        "join outer  (outer)",
        "  left         orders",
        "  right        payments",
        "  by key       id = payments(order_id)",
        "  joiner       left.amount, right.paid",
        "  rule         join-keeps-what-it-needs fired",
        "  Sub-topology: 2  pair          repartition by id; store outer-pair",
    ]


def test_both_rows_are_kept_read_and_gone_on_with(spark: SparkSession, tmp_path: Path) -> None:
    """Without a joiner; a view, an aggregate and another join read the join; its rows are in the state."""
    small(spark, tmp_path)
    orders, payments = tables(spark, tmp_path)
    both = orders.join(payments, how="outer", name="both", validate=True).materialize("both")
    assert both.columns == ["id", "left", "right"]
    unpaid = both.filter("right is null", name="unpaid").map_values("left.amount", name="amounts")
    sums = both.group_by("left.buyer", name="sums").agg(paid=agg.sum("right.paid"), n=agg.count())
    again = sums.join(sums.map_values("n as m", name="numbers"), name="again")
    write_lines(
        tmp_path / "orders", "0", [{"id": key, "amount": at, "buyer": "b", "lsn": 1, "op": "u"} for at, key in enumerate("xyz")]
    )
    paid = [{"order_id": "x", "paid": 5, "lsn": 3, "op": "u"}, {"order_id": "w", "paid": 6, "lsn": 1, "op": "u"}]
    write_lines(tmp_path / "payments", "0", paid)
    assert {key: row.amount for (key,), row in table_of(run(unpaid.changes, tmp_path / "unpaid").rows, "id").items()} == {
        "y": 1,
        "z": 2,
    }
    found = table_of(run(again.changes, tmp_path / "ck").rows, "buyer")
    assert {key: (row.left.paid, row.left.n, row.right.m) for (key,), row in found.items()} == {"b": (5, 3, 3)}
    kept = {row.id: row for row in read_state(spark, tmp_path / "ck", "both").collect()}
    assert {key: (row.left and row.left.amount, row.right and row.right.paid) for key, row in kept.items()} == {
        "w": (None, 6),
        "x": (0, 5),
        "y": (1, None),
        "z": (2, None),
    }
    assert (kept["x"]["_left_version"], kept["x"]["_right_version"], kept["x"]["_timestamp"]) == ([1], [3], 30)
    assert (kept["w"]["_left_version"], kept["w"]["_right_version"], kept["y"]["_right_version"]) == (None, [1], None)
    (entry,) = look_up(saved_stores(spark, tmp_path / "ck"), "both", "w")
    assert (entry["kind"], entry["row"]["left"], entry["row"]["right"]["paid"], entry["gone"]) == ("pair", None, 6, False)


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
    small(spark, tmp_path)
    orders, payments = tables(spark, tmp_path)
    bad = 7 if joiner is dear else 0
    joined = orders.join(payments, how="left", joiner=joiner, name="joined", validate=True)

    def order(key: str, amount: int, lsn: int) -> dict[str, Any]:
        return {"id": key, "amount": amount, "lsn": lsn, "op": "u"}

    rows = list[Any]()
    write_lines(tmp_path / "orders", "0", [order("x", 1, 1), order("y", 2, 1)])
    rows += run(joined.changes, tmp_path / "ck").rows
    write_lines(tmp_path / "orders", "1", [order("x", bad, 2), order("y", 4, 2)])
    found = run(joined.changes, tmp_path / "ck", metrics_name("joined"))
    rows += found.rows
    values = {key: row.value for (key,), row in table_of(rows, "id").items()}
    assert values == ({"x": "1/None", "y": "4/None"} if joiner is dear else {"x": 100, "y": 25})
    assert found.count["dead-letters"] == 1
    assert joined.dead_letters is not None
    (letter,) = run(joined.dead_letters, tmp_path / "dead").rows
    assert (letter.table, json.loads(bytes(letter.key))) == ("joined", {"id": "x"})
    assert ("ValueError: no" if joiner is dear else "zero") in letter.reason.lower() + letter.reason
    stages = [
        line.split()[2] for line in joined.describe().split("\n") if line.startswith("  Sub-topology") and "store" in line
    ]
    assert stages == (["pair", "resolve"] if joiner is dear else ["pair"])
    write_lines(tmp_path / "payments", "2", [{"order_id": "y", "paid": 3, "lsn": 1, "op": "u"}])
    write_lines(tmp_path / "orders", "2", [order("x", 5, 3)])
    rows += run(joined.changes, tmp_path / "ck").rows
    values = {key: row.value for (key,), row in table_of(rows, "id").items()}
    assert values == ({"x": "5/None", "y": "4/3"} if joiner is dear else {"x": 20, "y": 25})


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
