"""Upserts into an Iceberg table in a catalog in SQLite: fkjoin's copy on write, in turns with pyiceberg's own ``upsert``.

    python -m benchmarks.iceberg [--rows 100000] [--changes 1000 10000] [--rounds 3] [--without-upsert]

The table gets ``--rows`` rows in batches of 100,000, of keys that grow.  Then, for each number of changes, three kinds of
batches: of keys all over the table, of the newest tenth, and of new keys.  Prints a JSON line for each: rows a second of a
batch, by the clock and by the time of this process's processors, as medians of the rounds; pyiceberg's beside them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from fkjoin.sinks import BatchId, Iceberg

BATCH = 100_000


def rows_of(keys: list[int], seed: int) -> pa.Table:
    numbers = random.Random(seed)
    return pa.table(
        {
            "order_id": [f"o{key:09}" for key in keys],
            "amount": [numbers.random() for _ in keys],
            "name": [f"{numbers.getrandbits(64):016x}" for _ in keys],
            "items": pa.array([numbers.randrange(100) for _ in keys], pa.int64()),
        }
    )


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock and of the processors."""
    clock, processors = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - processors


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--changes", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-upsert", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), given.rows, given.changes, given.rounds, upserts=not given.without_upsert)


def measure(folder: Path, rows: int, changes: list[int], rounds: int, *, upserts: bool) -> None:
    options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
    catalog = load_catalog("default", **options)
    sinks = {name: Iceberg(f"bench.{name}", options=options) for name in ("fkjoin", "upsert")}
    number = 0
    for sink in sinks.values():
        sink.prepare(rows_of([0], 0).schema, ("order_id",))
        for number, first in enumerate(range(0, rows, BATCH)):
            some = rows_of(list(range(first, min(rows, first + BATCH))), first)
            sink.apply(BatchId("q", number, number + 1, number or None), some, some.select(["order_id"]).slice(0, 0))
    new, chosen = rows, random.Random(7)
    for count in changes:
        for kind in ("all over", "newest tenth", "new"):
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in sinks}
            for _ in range(rounds):
                number += 1
                if kind == "new":
                    keys, new = list(range(new, new + count)), new + count
                else:
                    keys = chosen.sample(range(0 if kind == "all over" else rows - rows // 10, rows), count)
                some = rows_of(keys, number)
                batch, none = BatchId("q", number, number + 1, number or None), some.select(["order_id"]).slice(0, 0)
                found["fkjoin"].append(timed(partial(sinks["fkjoin"].apply, batch, some, none)))
                if upserts:
                    found["upsert"].append(timed(partial(catalog.load_table("bench.upsert").upsert, some, ["order_id"])))
            line = {"rows": rows, "changes": count, "keys": kind}
            for name, times in found.items():
                if times:
                    clock, processors = (statistics.median(part) for part in zip(*times, strict=True))
                    line |= {name: round(count / clock), f"{name}_processors": round(count / processors)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
