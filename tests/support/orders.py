"""Orders and customers in files: random changes, the tables that they lead to, and their batch join."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import Table
from tests.support.driven import Change
from tests.support.queries import write_lines

ORDER = "order_id string, customer_id string, amount double, items bigint, lsn bigint, op string"
CUSTOMER = "customer_id string, region string, lsn bigint, op string"


def tables(spark: SparkSession, folder: Path, **more: Any) -> tuple[Table, Table]:
    """Orders and customers as a ``History`` writes them into ``folder``."""
    for name in ("orders", "customers"):
        (folder / name).mkdir(exist_ok=True)
    about: Any = {"version": "lsn", "deleted": "op = 'd'", "format": "json", **more}
    orders = Table.from_files(spark, folder / "orders", key="order_id", schema=ORDER, **about)
    return orders, Table.from_files(spark, folder / "customers", key="customer_id", schema=CUSTOMER, **about)


class History:
    """Random changes of orders and customers, as files, and the tables that they lead to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rng, self.lsn, self.files = folder, random.Random(11), 0, 0
        self.orders: dict[str, dict[str, Any]] = {}
        self.customers: dict[str, dict[str, Any]] = {}

    def write(self, changes: int) -> list[Change]:
        """Draw changes, and write them into files; they can be fed to a driver, too."""
        drawn: list[Change] = []
        lines: dict[str, list[dict[str, Any]]] = {"orders": [], "customers": []}
        rng = self.rng
        for _ in range(changes):
            self.lsn += 1
            kind = rng.choice(("orders", "orders", "customers"))
            key = f"{kind[0]}{rng.randrange(20 if kind == 'orders' else 6)}"
            if kind == "orders":
                customer, amount = f"c{rng.randrange(7)}", rng.choice((0.1, 0.2, 0.3, None))
                row = {"order_id": key, "customer_id": customer, "amount": amount, "items": rng.randrange(5)}
            else:
                row = {"customer_id": key, "region": rng.choice(("north", "south", None))}
            gone = rng.random() < 0.2
            lines[kind].append({**row, "lsn": self.lsn, "op": "d" if gone else "u"})
            drawn.append((kind, key, None if gone else row))
            table = self.orders if kind == "orders" else self.customers
            table.pop(key, None)
            if not gone:
                table[key] = row
        for kind, rows in lines.items():
            write_lines(self.folder / kind, str(self.files), rows)
        self.files += 1
        return drawn

    def by_region(self) -> dict[Any, tuple[Any, ...]]:
        """Orders, revenue and the largest order by region."""
        groups = defaultdict(list)
        for order in self.orders.values():
            customer = self.customers.get(order["customer_id"])
            if customer is not None and customer["region"] is not None:
                groups[(customer["region"],)].append(order)
        return {
            region: (
                len(rows),
                sum(round(10 * amount) for amount in amounts) / 10 if (amounts := known(rows, "amount")) else None,
                max(row["items"] for row in rows),
            )
            for region, rows in groups.items()
        }


def known(rows: list[dict[str, Any]], name: str) -> list[Any]:
    """The column's values that are not null."""
    return [row[name] for row in rows if row[name] is not None]


def batch_join(history: History) -> dict[str, Any]:
    """Each order's items and region, by order, where its customer is there."""
    return {
        key: {"items": order["items"], "region": history.customers[order["customer_id"]]["region"]}
        for key, order in history.orders.items()
        if order["customer_id"] in history.customers
    }
