"""Tables of every kind of node, small, and changes that drive them: what ``test_driver`` runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import Table, cogroup, fk_join
from fkjoin import aggregates as agg
from fkjoin.events import Enriched
from fkjoin.plan.nodes import Aggregate, Children, Cogroup, Enrich, Events, FlatMap, Join, KeyJoin, Merge, Source, View
from tests.support.queries import write_lines

SCHEMAS = {
    "orders": "order_id string, customer_id string, amount int, items array<string>",
    "customers": "customer_id string, name string",
    "returns": "order_id string, customer_id string, amount int, items array<string>",
}
KEYS = {"orders": "order_id", "customers": "customer_id", "returns": "order_id"}

Change = tuple[str, str, dict[str, Any] | None]
"""A table's name, the key, and the row without it; None deletes it."""


def order(customer: str | None, amount: int, *items: str) -> dict[str, Any]:
    return {"customer_id": customer, "amount": amount, "items": list(items)}


BATCHES: list[list[Change]] = [
    [
        ("orders", "o1", order("c1", 5, "a", "b")),
        ("orders", "o2", order("c2", 7, "b")),
        ("orders", "o3", order(None, 1)),
        ("customers", "c1", {"name": "Ada"}),
        ("returns", "o1", order("c1", 2, "a")),
    ],
    [
        ("customers", "c2", {"name": "Bo"}),
        ("orders", "o1", order("c2", 6, "b", "c")),
        ("orders", "o4", order("c1", 40, "d")),
        ("returns", "o2", order("c2", 3)),
        ("returns", "o9", order("c1", 9, "z")),
    ],
    [
        ("orders", "o2", None),
        ("customers", "c2", {"name": "Bea"}),
        ("returns", "o9", None),
        ("orders", "o3", order("c1", 1, "e")),
        ("customers", "c1", None),
    ],
]


class Shop:
    """The tables that are read: of JSON lines in folders, which need not have any."""

    def __init__(self, spark: SparkSession, folder: Path, **more: Any) -> None:
        for name, schema in SCHEMAS.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            about: dict[str, Any] = {"version": "lsn", "deleted": "gone", "format": "json", "name": name} | more
            columns = f"{schema}, lsn bigint, gone boolean"
            setattr(self, name, Table.from_files(spark, folder / name, key=KEYS[name], schema=columns, **about))

    orders: Table
    customers: Table
    returns: Table


def write(folder: Path, batches: list[list[Change]]) -> None:
    """Write the changes as the lines of the tables' files."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for number, (name, key, row) in enumerate(change for batch in batches for change in batch):
        lines.setdefault(name, []).append({KEYS[name]: key, **(row or {}), "lsn": number, "gone": row is None})
    for name, rows in lines.items():
        write_lines(folder / name, "1", rows)


def feed(driver: Any, batch: list[Change]) -> None:
    for name, key, row in batch:
        if row is None:
            driver.input(name).delete(key)
        else:
            driver.input(name).change(key, row)


def feed_lines(driver: Any, name: str, lines: Iterable[dict[str, Any]], times: int | None = None) -> None:
    """Feed lines as a table's file has them, with ``lsn`` and ``op``; timestamps are so many times the ``lsn``."""
    source = driver.input(name)
    key = source._input.planned.key_type.names
    for line in lines:
        row = {column: value for column, value in line.items() if column not in ("lsn", "op")}
        named = row[key[0]] if len(key) == 1 else tuple(row[column] for column in key)
        about = {"version": line["lsn"], "timestamp": times and times * line["lsn"]}
        if line.get("op") == "d":
            source.delete(named, **about)
        else:
            source.change(named, row, **about)


def _aggregate(of: Shop) -> Table:
    joined = fk_join(of.orders, of.customers, "customer_id", joiner=["right.name", "left.amount"], name="named")
    return joined.group_by("name", name="by_name").agg(amount=agg.sum("amount"), n=agg.count())


def _cogroup(of: Shop) -> Table:
    bought = of.orders.group_by("customer_id", name="bought").agg(bought=agg.sum("amount"))
    returned = of.returns.group_by("customer_id", name="returned").agg(returned=agg.count())
    return cogroup(bought, returned, name="both")


def _merge(of: Shop) -> Table:
    return Table.merge(of.returns.filter("amount > 2", name="large"), of.orders, name="merged")


def _view(of: Shop) -> Table:
    return of.orders.filter("amount > 1").map_values(["amount * 2 as twice", "repeat(customer_id, 2) as who"], name="shown")


def _join(of: Shop) -> Table:
    joiner = ["left.amount", "initcap(right.name) as name"]
    return fk_join(of.orders, of.customers, "upper(customer_id)", "left", joiner, name="joined")


def _key_join(of: Shop) -> Table:
    joiner = ["left.amount as had", "right.amount as back"]
    return of.orders.join(of.returns, how="outer", name="paired", joiner=joiner)


def _flat_map(of: Shop) -> Table:
    return of.orders.flat_map("transform(items, item -> struct(item))", key=["order_id", "item"], name="lines")


KINDS: dict[type, Callable[[Shop], Table]] = {
    Source: lambda of: of.orders,
    Join: _join,
    KeyJoin: _key_join,
    Aggregate: _aggregate,
    Cogroup: _cogroup,
    Merge: _merge,
    View: _view,
    Children: lambda of: of.customers.with_children(of.orders, "customer_id", column="orders", name="parents"),
    FlatMap: _flat_map,
}
"""A table of each kind of node."""

OF_EVENTS: set[type] = {Events, Enrich}
"""Kinds of nodes that no table has; ``visited`` has them."""

VISITS = [{"visitor": visitor, "page": page} for visitor in ("c1", "c2", None) for page in ("a", "b")]


def visited(of: Shop, folder: Path) -> Enriched:
    """Visits, each with what its visitor has ordered; of columns of the stream's own."""
    (folder / "visits").mkdir(exist_ok=True)
    visits = of.orders._planned.spark.readStream.schema("visitor string, page string").json(str(folder / "visits"))
    spent = of.orders.group_by("customer_id", name="spent").agg(spent=agg.sum("amount"), n=agg.count())
    shown = visits.where("page is not null")
    return spent.enrich(shown, on=shown["visitor"], how="left", name="visited", events_name="visits")
