"""The jobs of ``tests/golden/checkpoints/operators-1.tar.xz``: queries with every kind of operator; logs in three parts.

``python -m tests.support.golden_operators NAME QUERY…`` writes ``tests/golden/checkpoints/NAME.tar.xz``: what the release at
hand makes of the first part and then of the second, with some of the queries, by default all.  Make one before a change of what
operators are, or of a format in the state (segments, records, rows, versions), and never touch those that are there.
"""

from __future__ import annotations

import random
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, cogroup, fk_join, session, window
from fkjoin import aggregates as agg
from fkjoin.events import Enriched
from tests.support.archives import extract
from tests.support.golden import CHECKPOINTS, move
from tests.support.queries import run, write_lines

SETTINGS = {"sql_shuffle_partitions": 1, "fkjoin_buckets": 2}
PARTS = 3

KINDS = {
    "orders": ("id", "id int, customer string, product string, amount double"),
    "customers": ("customer", "customer string, name string, region string"),
    "products": ("product", "product string, price double"),
    "regions": ("region", "region string, boss string"),
}

Rows = dict[Any, dict[str, Any]]


def log() -> list[tuple[str, dict[str, Any]]]:
    """All changes, each with the name of its table: updates, moves, nulls and deletes."""
    rng = random.Random(39)
    found = []
    for seq in range(360):
        name = rng.choice(("orders", "orders", "orders", *KINDS))
        row: dict[str, Any] = {
            "orders": {"id": rng.randrange(40), "customer": rng.choice(("c0", "c1", "c2", "c3", "c4", None))},
            "customers": {"customer": f"c{rng.randrange(6)}", "name": f"n{rng.randrange(4)}"},
            "products": {"product": f"p{rng.randrange(4)}", "price": rng.randrange(9) / 2},
            "regions": {"region": f"r{rng.randrange(3)}", "boss": f"b{rng.randrange(5)}"},
        }[name]
        if name == "orders":
            row |= {"product": f"p{rng.randrange(5)}", "amount": rng.randrange(9) / 4}
        if name == "customers":
            row |= {"region": rng.choice(("r0", "r1", "r2", None))}
        found.append((name, {**row, "op": "d" if rng.random() < 0.15 else "u", "seq": seq}))
    return found


def write_part(folder: Path, part: int) -> None:
    """The logs' part 1, 2 or 3, where the tables look."""
    changes = log()
    size = len(changes) // PARTS
    for name in KINDS:
        write_lines(folder / name, str(part), [row for of, row in changes[(part - 1) * size : part * size] if of == name])


def final(parts: int) -> dict[str, Rows]:
    """The tables after so many parts, by their keys."""
    found: dict[str, Rows] = {name: {} for name in KINDS}
    changes = log()
    for name, row in changes[: parts * len(changes) // PARTS]:
        found[name].pop(row[KINDS[name][0]], None)
        if row["op"] != "d":
            found[name][row[KINDS[name][0]]] = row
    return found


class Tables:
    """The tables of the logs under a folder, and what the queries make of them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        about: dict[str, Any] = {"version": "seq", "deleted": "op = 'd'", "format": "json"}
        self.orders, self.customers, self.products, self.regions = (
            Table.from_files(spark, folder / name, key=key, schema=f"{kind}, op string, seq bigint", **about)
            for name, (key, kind) in KINDS.items()
        )
        self.joined = fk_join(self.orders, self.customers, "customer", "left", name="joined")


def plus(key: Any, value: int, total: int) -> int:
    return total + value


def minus(key: Any, value: int, total: int) -> int:
    return total - value


def groups(of: Tables, emit: str) -> Table:
    """Aggregates of a source and of a join's answers, one by functions, in a cogroup; a view that is kept, in a map; merged."""
    counts = of.orders.group_by("customer", name="counts").agg(n=agg.count(), most=agg.max("amount"))
    sums = of.joined.group_by("left.customer", name="sums").agg(total=agg.sum("left.amount"))
    quarters = of.orders.group_by("customer", "cast(amount * 4 as bigint)", name="quarters")
    both = cogroup(counts, sums, quarters.aggregate(0, plus, minus, column="quarters"), name="both").materialize("both")
    large = of.orders.filter("amount > 1", name="large").materialize("large")
    book = of.customers.with_children(large, "customer", column="orders", name="book")
    sizes = book.map_values(["cast(cardinality(orders) as bigint) as n", "0L as quarters"], name="sizes")
    return both.map_values(["n", "quarters"], name="counted").merge(sizes, name="all")


def groups_of(tables: dict[str, Rows]) -> Rows:
    """A customer with orders has their number and sum; another one the number of large ones, which is none."""
    orders = list(tables["orders"].values())
    found: Rows = {key: {"n": 0, "quarters": 0} for key in tables["customers"]}
    for customer in {order["customer"] for order in orders} - {None}:
        own = [order for order in orders if order["customer"] == customer]
        found[customer] = {"n": len(own), "quarters": sum(int(4 * order["amount"]) for order in own)}
    return found


def chain(of: Tables, emit: str) -> Table:
    """A view that reads the answers of a join that reads the answers of a join."""
    columns = ["left.left.amount", "left.right.name", "right.boss"]
    both = fk_join(of.joined, of.regions, "right.region", "left", columns, "chain")
    return both.filter("amount > 0.5 and name is not null", name="seen")


def chain_of(tables: dict[str, Rows]) -> Rows:
    found: Rows = {}
    for key, order in tables["orders"].items():
        customer = tables["customers"].get(order["customer"])
        if customer is not None and order["amount"] > 0.5:
            boss = tables["regions"].get(customer["region"], {}).get("boss")
            found[key] = {"amount": order["amount"], "name": customer["name"], "boss": boss}
    return found


def star(of: Tables, emit: str) -> Table:
    """Joins that are one, held back, and kept."""
    columns = ["left.left.amount", "left.right.name", "right.price"]
    return fk_join(of.joined, of.products, "left.product", "left", columns, "star", emit=emit).materialize("star")


def star_of(tables: dict[str, Rows]) -> Rows:
    return {
        key: {
            "amount": order["amount"],
            "name": tables["customers"].get(order["customer"], {}).get("name"),
            "price": tables["products"].get(order["product"], {}).get("price"),
        }
        for key, order in tables["orders"].items()
    }


def tags(of: Tables, emit: str) -> Table:
    """A flat map; several orders make each of its keys."""
    rows = "array(struct(customer as tag, amount), struct(product as tag, amount))"
    return of.orders.flat_map(rows, key="tag", name="tags")


def tags_of(tables: dict[str, Rows]) -> Rows:
    """The amount of each tag's first order."""
    orders = sorted(tables["orders"].items(), reverse=True)
    tagged = ((tag, order) for _, order in orders for tag in (order["customer"], order["product"]) if tag is not None)
    return {tag: {"amount": order["amount"]} for tag, order in tagged}


def pairs(of: Tables, emit: str) -> Table:
    """An outer join by primary key, of two views, and kept."""
    low, high = of.orders.filter("amount < 1.5", name="low"), of.orders.filter("amount > 0.5", name="high")
    columns = ["left.customer as low", "right.customer as high", "right.amount - left.amount as rest"]
    return low.join(high, how="outer", joiner=columns, name="pairs").materialize("pairs")


def pairs_of(tables: dict[str, Rows]) -> Rows:
    found: Rows = {}
    for key, order in tables["orders"].items():
        low, high = order["amount"] < 1.5, order["amount"] > 0.5
        customers = (order["customer"] if there else None for there in (low, high))
        found[key] = {**dict(zip(("low", "high"), customers, strict=True)), "rest": 0.0 if low and high else None}
    return found


class Seen:
    """Events with a table's columns, as changes that insert rows."""

    key = ("seq",)

    def __init__(self, enriched: Enriched) -> None:
        self.changes = enriched.events.withColumn("_operation", F.lit("insert"))


def seen(of: Tables, emit: str) -> Seen:
    """Orders as they are written, each an event, with names as they were then."""
    lines = of.spark.readStream.schema("id int, customer string, seq bigint").json(str(of.folder / "orders"))
    names = of.customers.group_by("region", name="regions-of").agg(n=agg.count(), name=agg.min("name"))
    both = fk_join(of.customers, names, "region", "left", ["left.name", "right.n"], "named")
    return Seen(both.enrich(lines.select("seq", F.col("customer").alias("buyer")), on="buyer", how="left", name="seen"))


def seen_of(tables: dict[str, Rows]) -> Rows:
    """Orders of each part, with the names and numbers as they are after that part."""
    found: Rows = {}
    size = len(log()) // PARTS
    parts = next(parts for parts in range(1, PARTS + 1) if final(parts) == tables)
    for part in range(1, parts + 1):
        customers = final(part)["customers"]
        regions = Counter(row["region"] for row in customers.values())
        for name, row in log()[(part - 1) * size : part * size]:
            if name == "orders":
                by = customers.get(row["customer"])
                n = None if by is None or by["region"] is None else regions[by["region"]]
                found[row["seq"]] = {"buyer": row["customer"], "name": by and by["name"], "n": n}
    return found


def closed(of: Tables, emit: str) -> Table:
    """Orders by windows of a minute that close; their time is made of their key, and a change's timestamp of its number."""
    kind = f"{KINDS['orders'][1]}, op string, seq bigint"
    about: Any = {"key": "id", "version": "seq", "deleted": "op = 'd'", "format": "json", "timestamp": "timestamp_seconds(seq)"}
    orders = Table.from_files(of.spark, of.folder / "orders", schema=kind, name="timed", **about)
    grouped = orders.group_by(window("timestamp_seconds(id * 9)", "1 minute"), name="minutes", emit="on-close")
    counted = grouped.agg(n=agg.count(), products=agg.count_distinct("product"))
    return counted.rekey("unix_timestamp(window_end) as end", name="ends").map_values(["n", "products"], name="minutes-closed")


def closed_of(tables: dict[str, Rows]) -> Rows:
    """Orders of each minute, as they are after the part whose last change has reached the minute's end."""
    found: Rows = {}
    parts = next(parts for parts in range(1, PARTS + 1) if final(parts) == tables)
    for part in range(1, parts + 1):
        time = max(row["seq"] for name, row in log()[: part * len(log()) // PARTS] if name == "orders")
        for end in range(60, time + 1, 60):
            own = [order for key, order in final(part)["orders"].items() if end - 60 <= key * 9 < end]
            if own:
                found.setdefault(end, {"n": len(own), "products": len({order["product"] for order in own})})
    return found


QUERIES: dict[str, tuple[Callable[[Tables, str], Any], Callable[[dict[str, Rows]], Rows]]] = {
    build.__name__: (build, globals()[f"{build.__name__}_of"]) for build in (groups, chain, star, tags, pairs, seen, closed)
}
"""The builder of each query, and a function that recomputes its rows."""

LONG, SHORT = "periodic 20000 days", "periodic 100 ms"
"""With ``LONG`` an interval ends in the first batch, and the next one in 2079: changes of the second batch wait."""


def applied(rows: list[Row], key: str, table: Rows) -> Rows:
    """The table after changes, each of which says whether the row was there."""
    found = dict(table)
    for row in rows:
        assert (row[key] in found) == (row["_operation"] != "insert"), row
        found.pop(row[key], None)
        if row["_operation"] != "delete":
            found[row[key]] = {name: row[name] for name in row.asDict() if name != key and not name.startswith("_")}
    return found


def main(name: str, *queries: str) -> None:
    spark = session("fkjoin golden checkpoint", master="local[2]", ui_enabled="false", **SETTINGS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for part in (1, 2):
            write_part(folder, part)
            for query, (build, _) in QUERIES.items():
                if queries and query not in queries:
                    continue
                run(build(Tables(spark, folder), LONG).changes, folder / "checkpoint" / query)
        with tarfile.open(CHECKPOINTS / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(folder / "checkpoint", "checkpoint")


def unpacked(path: Path, place: Path) -> Path:
    """The folder of the queries' checkpoints, as if they had been made in ``place``."""
    extract(path, place)
    for checkpoint in (place / "checkpoint").iterdir():
        move(checkpoint, place)
    return place / "checkpoint"


if __name__ == "__main__":
    main(*sys.argv[1:])
