"""A store of 500,000 rows opened again: with its index, and with the index lost, so that it is rebuilt from the change log.

    python -m benchmarks.restart [--rows 500000] [--rounds 3]

The state package alone, one bucket on one core, its log in memory: what comes to it from Spark is reading the log out of its
state.  Prints a JSON line with minimum, median and maximum: seconds to open the store and read a row, and rows a second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from fkjoin.state import BYTES, BucketStore

STEP = 100_000


class Log:
    """A change log in memory."""

    def __init__(self) -> None:
        self._meta: bytes | None = None
        self._segments: dict[int, bytes] = {}

    def meta(self) -> bytes | None:
        return self._meta

    def set_meta(self, meta: bytes) -> None:
        self._meta = meta

    def segment(self, number: int) -> bytes | None:
        return self._segments.get(number)

    def put_segment(self, number: int, data: bytes) -> None:
        self._segments[number] = data

    def remove_segment(self, number: int) -> None:
        del self._segments[number]


def filled(folder: Path, rows: int) -> Log:
    """The log of a store of so many rows of some 100 bytes; the store is closed, and its index up to date."""
    log, rng = Log(), np.random.default_rng(5)
    for first in range(0, rows, STEP):
        numbers = range(first, min(rows, first + STEP))
        keys = pa.array([b"o%d" % number for number in numbers], BYTES)
        values = pa.array([rng.bytes(90) for _ in numbers], BYTES)
        with BucketStore(log, folder) as store:
            store.write(keys, values)
            store.commit()
    with BucketStore(log, folder):
        pass
    return log


def opened(log: Log, folder: Path, *, rebuilt: bool) -> float:
    """Seconds until a row is read."""
    start = time.perf_counter()
    with BucketStore(log, folder) as store:
        found = store.get_many(pa.array([b"o1"], BYTES))
        seconds = time.perf_counter() - start
        if found.null_count or (store.rebuilt is not None) != rebuilt:
            raise SystemExit("the store is not as it should be")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fkjoin-bench-"))
    try:
        log = filled(folder, given.rows)
        reused, rebuilt = [], []
        for _ in range(given.rounds):
            reused.append(round(opened(log, folder, rebuilt=False), 4))
            shutil.rmtree(folder)
            rebuilt.append(round(given.rows / opened(log, folder, rebuilt=True)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {"reused_s": reused, "rebuilt_rows_per_s": rebuilt}
    print(json.dumps({name: [min(some), statistics.median(some), max(some)] for name, some in figures.items()}))


if __name__ == "__main__":
    main()
