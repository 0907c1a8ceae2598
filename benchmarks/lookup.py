"""Rows of a materialized table looked up by their keys, beside no query: ``fkjoin.StateReader``.

    python -m benchmarks.lookup [--rows 100000] [--gets 20000]

A query makes the checkpoint: ``--rows`` left rows joined with a tenth as many right rows, and then a batch of 1,000 changes.
Prints a JSON line: seconds to open a reader, and to follow the second batch; microseconds of a ``get``, p50 and p99, of a
random key, and of a ``get_many`` of 100 keys; rows a second of a ``get_many`` of all keys; bytes of the copy on disk and
in memory, and what this process has grown by.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fkjoin

CHANGES = 1_000


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write a file of a change log."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))


def order(key: int, seq: int, rows: int) -> dict[str, Any]:
    return {"id": f"o{key}", "customer": f"c{key % (rows // 10)}", "amount": seq / 4, "text": "x" * 60, "seq": seq}


def run(spark: Any, folder: Path, checkpoint: Path) -> None:
    """Let the query read all that is there."""
    orders, customers = (
        fkjoin.Table.from_files(spark, folder / name, key=key, schema=schema, version="seq", format="json")
        for name, key, schema in (
            ("orders", "id", "id string, customer string, amount double, text string, seq bigint"),
            ("customers", "customer", "customer string, name string, seq bigint"),
        )
    )
    joined = fkjoin.fk_join(orders, customers, extractor="customer", name="joined").materialize("joined")
    writer = joined.changes.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def spread(times: list[float]) -> list[float]:
    """Microseconds: p50 and p99."""
    ordered = sorted(times)
    return [round(1e6 * ordered[int(len(ordered) * part)], 1) for part in (0.5, 0.99)]


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--gets", type=int, default=20_000)
    given = parser.parse_args()
    rows, rng = given.rows, random.Random(42)
    with tempfile.TemporaryDirectory(prefix="fkjoin-bench-") as place:
        folder, checkpoint = Path(place), Path(place) / "ck"
        spark = fkjoin.session("fkjoin lookup", ui_enabled="false")
        write(folder / "orders", "0", [order(key, 0, rows) for key in range(rows)])
        write(folder / "customers", "0", [{"customer": f"c{key}", "name": f"n{key}", "seq": 0} for key in range(rows // 10)])
        run(spark, folder, checkpoint)
        before = resident()
        start = time.perf_counter()
        with fkjoin.StateReader(checkpoint, "joined", max_age=None) as reader:
            opened = time.perf_counter() - start
            write(folder / "orders", "1", [order(rng.randrange(rows), 1, rows) for _ in range(CHANGES)])
            run(spark, folder, checkpoint)
            spark.stop()
            followed = timed(reader.refresh)
            keys = [f"o{rng.randrange(rows)}" for _ in range(given.gets)]
            one = [timed(lambda key=key: reader.get(key)) for key in keys]  # type: ignore[misc]
            some = [timed(lambda at=at: reader.get_many(keys[at : at + 100])) for at in range(0, len(keys), 100)]  # type: ignore[misc]
            everything = [f"o{key}" for key in range(rows)]
            found: list[Any] = []
            seconds = timed(lambda: found.extend(reader.get_many(everything)))
            if None in found or len(found) != rows:
                raise SystemExit("rows are missing")
            size = reader.cache_size
            figures = {
                "open_s": round(opened, 3),
                "follow_s": round(followed, 4),
                "get_us": spread(one),
                "get_100_us": spread(some),
                "rows_per_s": round(rows / seconds),
                "disk_bytes": size.disk_bytes,
                "memory_bytes": size.memory_bytes,
                "grown_bytes": resident() - before,
            }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
