"""The join on Spark's standalone cluster, whose workers have one core each, and the processor time of a query that waits.

    python -m benchmarks.scale workers [--left 500000] [--rounds 3]     updates/s of one worker and of two
    python -m benchmarks.scale hot [--left 1000000] [--rounds 3]        one right row with so many subscribers, two workers
    python -m benchmarks.scale idle [--seconds 60]                      processor time of a local query without new rows

``workers`` and ``hot`` take their two cases in turn: one worker and two; ``spread=1`` and ``spread=8``.  Master, driver and
workers share the machine, so the driver takes its part of the same cores.  Each prints a JSON line per run, and one with the
ratio of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.endurance import RIGHT, Run
from benchmarks.memory import processor_s
from integration.faults.cluster import SPARK_HOME, Standalone

_UPDATES = 200_000


@contextmanager
def cluster(home: Path, workers: int) -> Iterator[str]:
    """The address of a standalone cluster in a folder of its own."""
    environment = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    started = Standalone(home, os.environ | environment, workers)
    try:
        yield started.master
    finally:
        started.stop()


def rate(folder: Path, workers: int, left: int, seed: int) -> float:
    """Updates a second."""
    rng = random.Random(seed)
    with cluster(folder, workers) as master:
        run = Run(folder / "run", "1g", master=master)
        try:
            run.batch(right=(f"c{number}" for number in range(RIGHT)))
            run.batch(left=((f"o{number}", f"c{rng.randrange(RIGHT)}") for number in range(left)))
            rates = []
            for _ in range(3):
                updates = [(f"o{rng.randrange(left)}", f"c{rng.randrange(RIGHT)}") for _ in range(_UPDATES)]
                inputs, seconds = run.batch(left=updates)
                rates.append(inputs / seconds)
        finally:
            run.close()
    return statistics.median(rates)


def answers(folder: Path, spread: int, left: int) -> float:
    """Answers a second to updates of a right row with all subscribers, two workers."""
    with cluster(folder, 2) as master:
        run = Run(folder / "run", "1g", spread, master=master)
        try:
            run.batch(right=["hot"])
            for known in range(0, left, 500_000):
                run.batch(left=((f"o{number}", "hot") for number in range(known, min(left, known + 500_000))))
            seconds = [run.batch(right=["hot"])[1] for _ in range(4)]
        finally:
            run.close()
    return left / statistics.median(seconds)


def idle(folder: Path, seconds: int) -> float:
    """Cores that a query takes, all its processes together, after its last row."""
    run = Run(folder / "run", "1g")
    try:
        run.batch(left=[("o1", "c1")], right=["c1"])
        time.sleep(10)  # what the batches left to do
        before, begun = processor_s(), time.monotonic()
        time.sleep(seconds)
        return (processor_s() - before) / (time.monotonic() - begun)
    finally:
        run.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("workers", "hot", "idle"))
    parser.add_argument("--left", type=int)
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--seconds", type=int, default=60, help="of idle (default 60)")
    given = parser.parse_args()
    found: dict[int, list[float]] = {}
    for number in range(given.rounds):
        for case in {"workers": (1, 2), "hot": (1, 8), "idle": (1,)}[given.what]:
            folder = Path(tempfile.mkdtemp(prefix="fkjoin-bench-"))
            try:
                if given.what == "workers":
                    line = {"workers": case, "updates_per_s": rate(folder, case, given.left or 500_000, number)}
                elif given.what == "hot":
                    line = {"spread": case, "answers_per_s": answers(folder, case, given.left or 1_000_000)}
                else:
                    line = {"waits": case, "cores": idle(folder, given.seconds)}
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            figure = list(line.values())[1]
            found.setdefault(case, []).append(figure)
            print(json.dumps({name: round(value, 3) for name, value in line.items()}), flush=True)
    medians = [statistics.median(values) for values in found.values()]
    print(json.dumps({"medians": [round(median, 3) for median in medians], "ratio": round(medians[-1] / medians[0], 2)}))


if __name__ == "__main__":
    main()
