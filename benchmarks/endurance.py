"""A join that grows, one whose right row has all the subscribers, and one that runs for long.

    python -m benchmarks.endurance growth [--left 5000000]      inputs/s and state as the left table grows; bytes of a row
    python -m benchmarks.endurance hot [--left 1000000]         one right row with so many subscribers, updated repeatedly
    python -m benchmarks.endurance soak [--batches 2000]        many small batches: are descriptors, memory, threads, disk flat?

``hot --spread 8`` spreads the subscribers over so many buckets.  Each prints a JSON line per step, and one with a comparison:
the last step's inputs or answers a second, of the first one's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import fkjoin
from benchmarks.fk_join import table
from benchmarks.memory import Footprint, processes
from fkjoin import fk_join
from fkjoin.checkpoint.progress import progress_since
from fkjoin.sessions.settings import INDEX_DIR

STEP = 500_000
RIGHT = 100_000
_EXECUTORS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "1g",
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "2",
}


class Run:
    """A running query over growing logs in ``folder``; left rows have ``more_bytes`` of hexadecimal digits besides."""

    def __init__(self, folder: Path, heap: str, spread: int = 1, master: str = "local[2]", *, more_bytes: int = 0) -> None:
        self.folder, self.spread, self.seq, self.seen = folder, spread, 0, -1
        self.more_bytes, self.digits = more_bytes, random.Random(11)
        for side in ("left", "right"):
            (folder / side).mkdir(parents=True)
        spark = fkjoin.session(
            "endurance",
            master=master,
            settings=_EXECUTORS if master.startswith("spark:") else {},
            ui_enabled="false",
            driver_memory=heap,
            local_dir=folder / "tmp",
            fkjoin_buckets=max(2, spread),
            sql_streaming_minBatchesToRetain=2,
            sql_streaming_fileSource_log_cleanupDelay="10s",  # else ten minutes of Spark's lists of all files read
        )
        spark.sparkContext.setLogLevel("ERROR")
        self.spark = spark
        self.resume()

    def changes(self) -> DataFrame:
        """The changes that the query writes."""
        left, right = (table(self.spark, self.folder, side) for side in ("left", "right"))
        return fk_join(left, right, "value.fk", name="bench", spread=self.spread).changes

    def resume(self) -> None:
        """Start the query, or go on with it."""
        self.spark.conf.set(INDEX_DIR, str(self.folder / "index"))  # other runs may share the session
        writer = self.changes().writeStream.format("noop").option("checkpointLocation", str(self.folder / "checkpoint"))
        self.query = writer.start()

    def pause(self) -> None:
        """Stop the query until ``resume``."""
        self.query.stop()

    def batch(self, left: Iterable[tuple[str, str]] = (), right: Iterable[str] = ()) -> tuple[int, float]:
        """One micro-batch of left rows (key, foreign key) and right rows: how many inputs, and its seconds."""
        lines: dict[str, list[str]] = {"left": [], "right": []}
        for key, foreign_key in left:
            self.seq += 1
            pad = f"{self.seq * 7919:032x}{self.digits.randbytes(self.more_bytes // 2).hex()}"
            row = {"fk": foreign_key, "amount": self.seq % 1000 / 4, "v": self.seq, "pad": pad}
            lines["left"].append(json.dumps({"key": key, "value": row, "seq": self.seq}))
        for key in right:
            self.seq += 1
            row = {"name": f"customer-{self.seq:08}", "tier": "gold", "v": self.seq, "pad": f"{self.seq * 7919:032x}"}
            lines["right"].append(json.dumps({"key": key, "value": row, "seq": self.seq}))
        for side, content in lines.items():
            draft = self.folder / f"{side}.draft"
            draft.write_text("\n".join(content))
            draft.replace(self.folder / side / f"{self.seq:012}.json")
        self.query.processAllAvailable()
        done = progress_since(self.query, self.seen)
        self.seen = done[-1].batchId
        for side in lines:
            (self.folder / side / f"{self.seq:012}.json").unlink()
        seconds = sum(progress.durationMs["triggerExecution"] for progress in done if progress.numInputRows) / 1000
        return sum(map(len, lines.values())), seconds

    def disk_mib(self) -> dict[str, float]:
        """Sizes of the indexes, of the change logs in Spark's state, and of the rest of the checkpoint."""
        index, state = self.state_bytes()
        sizes = {"index_mib": index, "state_mib": state, "spark_logs_mib": _size(self.folder / "checkpoint") - state}
        return {name: round(size / 2**20, 1) for name, size in sizes.items()}

    def state_bytes(self) -> tuple[int, int]:
        """Bytes of the indexes, with what waits beside them, and of the change logs."""
        return _size(self.folder / "index"), _size(self.folder / "checkpoint" / "state")

    def close(self) -> None:
        self.query.stop()
        self.spark.stop()


def growth(run: Run, rows: int) -> None:
    rng = random.Random(7)
    run.batch(right=(f"c{number}" for number in range(RIGHT)))
    rates, right = [], run.state_bytes()
    per_row: dict[str, list[int]] = {"right": [round(size / RIGHT) for size in right]}
    for known in range(0, rows, STEP):
        inserts = ((f"o{number}", f"c{rng.randrange(RIGHT)}") for number in range(known, known + STEP))
        _, loading = run.batch(left=inserts)
        if not known:
            per_row["left"] = [round((size - before) / STEP) for size, before in zip(run.state_bytes(), right, strict=True)]
        updates = [(f"o{rng.randrange(known + STEP)}", f"c{rng.randrange(RIGHT)}") for _ in range(STEP * 2 // 5)]
        inputs, seconds = run.batch(left=updates)
        rates.append(inputs / seconds)
        step = {"left_rows": known + STEP, "insert_s": round(loading, 1), "update_s": round(seconds, 1)}
        print(json.dumps({**step, "updates_per_s": round(rates[-1]), **run.disk_mib()}), flush=True)
    print(json.dumps({"index_and_log_bytes_per_row": per_row, "last_of_first": round(rates[-1] / rates[0], 2)}))


def hot(run: Run, rows: int) -> None:
    run.batch(right=["hot"])
    rates = []
    for known in range(0, rows, STEP):
        run.batch(left=((f"o{number}", "hot") for number in range(known, min(rows, known + STEP))))
        rates.append(min(rows, known + STEP) / min(run.batch(right=["hot"])[1] for _ in range(2)))
    print(json.dumps({"last_of_first": round(rates[-1] / rates[0], 2)}), flush=True)
    for update in range(6):
        memory = Footprint()
        memory.start()
        _, seconds = run.batch(right=["hot"])
        step = {"update": update, "subscribers": rows, "seconds": round(seconds, 1), "answers_per_s": round(rows / seconds)}
        print(json.dumps({**step, **memory.stop().named(), **run.disk_mib()}), flush=True)


def soak(run: Run, batches: int) -> None:
    rng = random.Random(1)
    samples: list[dict[str, Any]] = []
    every = max(1, batches // 40)
    times = []
    for batch in range(batches):
        left = [(f"o{rng.randrange(20_000)}", f"c{rng.randrange(2_000)}") for _ in range(160)]
        times.append(run.batch(left=left, right=[f"c{rng.randrange(2_000)}" for _ in range(40)])[1])
        if batch % every == every - 1:
            about = processes()
            median = round(statistics.median(times[-every:]), 2)
            samples.append({"batch": batch + 1, "median_s": median, **about, **run.disk_mib()})
            print(json.dumps(samples[-1]), flush=True)
    quarter = len(samples) // 4
    for name in samples[0]:
        middle, end = (
            statistics.median(sample[name] for sample in part) for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        print(json.dumps({"what": name, "second_quarter": middle, "last_quarter": end}))


def _size(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(place) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("growth", "hot", "soak"))
    parser.add_argument("--left", type=int)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--spread", type=int, default=1, help="of the join (default 1)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fkjoin-bench-"))
    started = time.monotonic()
    run = Run(folder, "1g" if given.what == "soak" else "3g", given.spread)
    try:
        if given.what == "growth":
            growth(run, given.left or 5_000_000)
        elif given.what == "hot":
            hot(run, given.left or 1_000_000)
        else:
            soak(run, given.batches)
        print(json.dumps({"wall_s": round(time.monotonic() - started)}))
    finally:
        run.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
