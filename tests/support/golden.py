"""The job of ``tests/golden/checkpoints/join-1.tar.gz``: two logs in two halves, of which a release read the first.

Further checkpoints are made by ``golden_operators``, which has joins, too.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from tests.support.archives import extract
from tests.support.places import ROOT
from tests.support.queries import write_lines

CHECKPOINTS = ROOT / "tests" / "golden" / "checkpoints"

ORDERS = "id int, customer string, amount double, tags array<string>, op string, seq bigint"
CUSTOMERS = "customer string, name string, op string, seq bigint"

Rows = list[dict[str, Any]]


def logs() -> tuple[Rows, Rows]:
    """Orders and customers, with updates, moves, nulls and deletes."""
    rng = random.Random(213)
    orders: Rows = []
    customers: Rows = []
    for seq in range(400):
        op = "d" if rng.random() < 0.15 else "u"
        who = f"c{rng.randrange(12)}"
        if rng.random() < 0.3:
            customers.append({"customer": who, "name": f"n{rng.randrange(5)}", "op": op, "seq": seq})
            continue
        order = {"id": rng.randrange(60), "customer": rng.choice((who, who, None)), "amount": rng.randrange(9) / 4}
        orders.append({**order, "tags": [who] * rng.randrange(3), "op": op, "seq": seq})
    return orders, customers


def batch_join(half: int) -> dict[int, tuple[str | None, float, str | None]]:
    """The joined table after the first ``half`` halves: customer, amount and name by order."""
    final: list[dict[Any, dict[str, Any]]] = [{}, {}]
    for rows, table, key in zip(logs(), final, ("id", "customer"), strict=True):
        for row in rows[: half * len(rows) // 2]:
            table[row[key]] = row
    orders, customers = ({key: row for key, row in table.items() if row["op"] != "d"} for table in final)
    return {
        key: (row["customer"], row["amount"], customers.get(row["customer"], {}).get("name")) for key, row in orders.items()
    }


def write_half(folder: Path, half: int) -> None:
    """The logs' first or second half (1 or 2), where the tables look."""
    for rows, name in zip(logs(), ("orders", "customers"), strict=True):
        write_lines(folder / name, str(half), rows[(half - 1) * len(rows) // 2 : half * len(rows) // 2])


def table(spark: SparkSession, folder: Path, name: str) -> Table:
    """The table ``orders`` or ``customers``."""
    key, schema = ("id", ORDERS) if name == "orders" else ("customer", CUSTOMERS)
    place = folder / name
    return Table.from_files(spark, place, key=key, schema=schema, version="seq", deleted="op = 'd'", format="json")


def joined(spark: SparkSession, folder: Path, name: str = "golden") -> Table:
    """The join that the checkpoints belong to."""
    orders, customers = (table(spark, folder, side) for side in ("orders", "customers"))
    return fk_join(orders, customers, "customer", how="left", name=name)


def unpack(path: Path, place: Path) -> Path:
    """The checkpoint, as if it had been made in ``place``."""
    extract(path, place)
    write_half(place, 1)
    move(place / "checkpoint", place)
    return place / "checkpoint"


def move(checkpoint: Path, place: Path) -> None:
    """Have a checkpoint be as if it had been made in ``place``: Spark keeps absolute paths in it."""
    found = re.search(r"file:(/[^\"]*)/checkpoint/", (checkpoint / "state/0/_metadata/v2/0").read_text())
    assert found is not None
    for log in [*checkpoint.glob("sources/*/[0-9]*"), *checkpoint.glob("state/*/_metadata/v2/[0-9]*")]:
        log.write_text(log.read_text().replace(found[1], str(place)))
        log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
