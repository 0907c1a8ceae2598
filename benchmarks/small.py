"""The time of small batches: 1,000 changes (800 left, 200 right) beside 100,000 rows, and the same plan with nothing to do.

    python -m benchmarks.small [--batches 60] [--warm 300] [--rounds 3]

In turn, a join, and a query of the same sources, shuffles and stateful operators that only hand rows on: what that takes is
Spark's own.  Rounds that begin before ``--warm`` batches of each do not count: for some minutes the JVM compiles tens of
thousands of methods, beside the batches.  Prints a JSON line per round, and one for all: medians in seconds, of batches after
a query's first; ``first_s`` is the very first batch of the session, ``new_join_s`` the join's first round.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.endurance import Run
from benchmarks.fk_join import VALUES
from fkjoin.spark.buckets import ENVELOPE

LEFT, RIGHT = 100_000, 20_000


class Idle(StatefulProcessor):
    """Has the states of a stage, and hands rows on."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._meta = handle.getValueState("meta", "data binary")
        self._segments = handle.getMapState("log", "number bigint", "data binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        self._meta.exists()
        yield from rows

    def close(self) -> None:
        pass


class Bare(Run):
    """The plan of the join without the join."""

    def changes(self) -> DataFrame:
        def packed(side: str) -> DataFrame:
            schema = f"key string, value {VALUES[side]}, seq bigint"
            rows = self.spark.readStream.schema(schema).json(str(self.folder / side))
            return rows.select("key").mapInArrow(_wake, ENVELOPE)

        rekeyed = passing(packed("left"))
        return passing(passing(rekeyed.unionByName(packed("right")))).mapInArrow(_same, ENVELOPE)


def passing(rows: DataFrame) -> DataFrame:
    """A stateful operator that hands its rows on."""
    return rows.groupBy("bucket").transformWithStateInPandas(Idle(), ENVELOPE, "append", "None")


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _wake(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.record_batch(
            [pa.array([0, 1], pa.int32()), pa.array([b"", b""]), pa.nulls(2, pa.string()), pa.array([0, 0], pa.int64())],
            ["bucket", "payload", "counter", "count"],
        )


def measure(run: Run, batches: int, rng: random.Random) -> list[float]:
    """Seconds of so many batches, after one that is not counted."""
    seconds = []
    for _ in range(batches + 1):
        left = [(f"o{rng.randrange(LEFT)}", f"c{rng.randrange(RIGHT)}") for _ in range(800)]
        seconds.append(run.batch(left=left, right=[f"c{rng.randrange(RIGHT)}" for _ in range(200)])[1])
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="in each round (default 60)")
    parser.add_argument("--warm", type=int, default=300, help="batches of each before the rounds that count (default 300)")
    parser.add_argument("--rounds", type=int, default=3, help="that count (default 3)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fkjoin-bench-"))
    rng = random.Random(3)
    runs: dict[str, Run] = {"join": Run(folder / "join", "1g")}
    try:
        _, first = runs["join"].batch(right=(f"c{number}" for number in range(RIGHT)))
        runs["join"].batch(left=((f"o{number}", f"c{rng.randrange(RIGHT)}") for number in range(LEFT)))
        runs["join"].pause()
        runs["bare"] = Bare(folder / "bare", "1g")
        runs["bare"].pause()
        medians: dict[str, list[float]] = {name: [] for name in runs}
        warm = -(-given.warm // given.batches)
        for number in range(warm + given.rounds):
            for name, run in runs.items():
                run.resume()
                medians[name].append(round(statistics.median(measure(run, given.batches, rng)), 3))
                run.pause()
            print(json.dumps({"counts": number >= warm} | {name: values[-1] for name, values in medians.items()}), flush=True)
        found: dict[str, Any] = {"first_s": round(first, 1), "new_join_s": medians["join"][0]}
        for name, values in medians.items():
            counted = values[warm:]
            found[f"{name}_s"] = [min(counted), round(statistics.median(counted), 3), max(counted)]
        print(json.dumps(found))
    finally:
        runs["join"].close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
