"""The job behind ``tests/golden/checkpoints``: two logs in two halves; a golden checkpoint is what a release made of the first.

``python -m tests.support.golden NAME`` writes ``tests/golden/checkpoints/NAME.tar.gz`` with the release at hand.  Make one when
a format in the state changes (segments, records, rows, versions), before the change, and never touch those that are there.
"""

from __future__ import annotations

import random
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import Table, fk_join, session
from tests.support.archives import extract
from tests.support.places import ROOT
from tests.support.queries import run, write_lines

CHECKPOINTS = ROOT / "tests" / "golden" / "checkpoints"
SETTINGS = {"sql_shuffle_partitions": 2, "fkjoin_buckets": 2}

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


def main(name: str) -> None:
    spark = session("fkjoin golden checkpoint", master="local[2]", ui_enabled="false", **SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        write_half(Path(folder), 1)
        checkpoint = Path(folder) / "checkpoint"
        run(joined(spark, Path(folder)).changes, checkpoint)
        with tarfile.open(CHECKPOINTS / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(checkpoint, "checkpoint")


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


if __name__ == "__main__":
    main(sys.argv[1])
