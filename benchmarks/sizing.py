"""The needs of a foreign-key join of two topics: a prediction, and its check against three measured sizes.

    python -m benchmarks.sizing predict --left 1000000000 --right 10000000 --rate 20000 --executors 50 --cores 4
    python -m benchmarks.sizing measure [--left 500000 1000000 2000000]     exits with 1 if a figure differs by more than 25 %

``predict`` starts no Spark, and prints tables of Markdown.  Its constants are those of docs/measurements.md.  ``measure`` runs
the join of files on two cores, last with rows of 450 bytes, and holds bytes, files and memory to the constants.  The first
size's seconds give the machine's speed: those of the others are held to that.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.endurance import RIGHT, STEP, Run
from benchmarks.memory import Footprint

PAGE = Path(__file__).parents[1] / "docs" / "measurements.md"
OPERATORS, PART_BYTES, UPDATES = 3, 64 << 20, 100_000
FIGURES = "index_bytes", "log_bytes", "batch_files", "peak_mib", "rebuild_s", "updates_per_s"


def constants() -> dict[str, float]:
    """The figures of the page's table of constants, by name."""
    table = PAGE.read_text().split("## Constants", 1)[1].split("\n## ", 1)[0]
    return {name: float(figure.replace(",", "")) for name, figure in re.findall(r"^\| `(\w+)` \| ([\d,.]+) \|", table, re.M)}


@dataclass(frozen=True)
class Size:
    """A join, and what it may use: each executor has so many cores, and a partition for each of them.

    ``rate``: changes a second, of which ``right_share`` are right rows'.  ``hottest``: the part of all left rows that one
    right row has, 0 for the average.  ``buckets``: 0 for four in a partition.  ``batch_rows``: the most rows of a batch, as
    when a backlog is read.
    """

    left: int
    right: int
    rate: float
    row_bytes: int = 150
    buckets: int = 0
    executors: int = 1
    cores: int = 2
    batch_s: float = 1.0
    batch_rows: int = 500_000
    hottest: float = 0.0
    right_share: float = 0.1
    memory_gib: float = 8.0
    disk_gb: float = 100.0

    @property
    def partitions(self) -> int:
        return self.executors * self.cores


@dataclass(frozen=True)
class Prediction:
    """The needs of a size; memory and disk are those of an executor."""

    index_bytes: float
    log_bytes: float
    checkpoint_bytes: float
    batch_files: int
    hour_files: float
    memory_mib: float
    disk_bytes: float
    busy_cores: float
    batch_s: float
    rebuild_s: float
    subscribers: float
    hottest_s: float
    largest_store_bytes: float
    loads: dict[str, tuple[float, str]]
    """Parts of limits that are used, and what happens beyond them."""


def predict(size: Size) -> Prediction:
    """Predict the needs of a size; rows of less than 150 bytes count as such."""
    k = constants()
    more, cores, buckets = max(0, size.row_bytes - 150), size.partitions, size.buckets or 4 * size.partitions
    left_log, entries = k["left_log"] + more * k["more_log"], OPERATORS * size.left + size.right
    index = size.left * (k["left_index"] + more * k["more_index"]) + size.right * k["right_index"]
    log = size.left * left_log + size.right * k["right_log"]

    answers = size.rate * max(0, size.right_share * size.left / size.right - k["workload_answers"])
    at_once = min(cores, buckets)
    busy = size.rate / k["rate"] + answers / 1e6 * (k["fan_out_s"] + k["answer_s"])
    fixed = k["fixed_s"] + k["bucket_s"] * (buckets / at_once - 1)
    batch = fixed + busy / at_once * size.batch_s
    if batch > size.batch_s:  # each batch has what came during the one before
        batch = fixed / (1 - busy / at_once) if busy < at_once else math.inf
    every_s = max(size.batch_s, batch)
    files = 2 * OPERATORS * cores + 2
    hour = 3600 / every_s * (files + 3 * OPERATORS * cores / max(10, 60 / every_s)) + 2 * 360

    subscribers = size.left * max(size.hottest, 1 / size.right)
    packed = subscribers * k["answer"]
    unpacked = size.cores * min(10 * packed / cores, 10 * PART_BYTES)
    processes = k["heap_mib"] + k["jvm_mib"] + k["workers_mib"] + k["task_mib"] * size.cores
    stores = k["store_mib"] * max(0, OPERATORS * size.cores - 6)
    largest_batch = min(size.batch_rows, size.left) * (150 + more) / size.executors * k["batch_bytes"]
    memory = processes + stores + (entries / size.executors * k["filters"] + largest_batch + packed + unpacked) / 2**20
    disk = 2 * (index + log) / size.executors
    hottest = subscribers / 1e6 * (k["fan_out_s"] + k["answer_s"] / cores)
    in_largest = size.left * (k["largest"] + more * k["more_index"]) + size.right * k["right_index"]
    return Prediction(
        index_bytes=index,
        log_bytes=log,
        checkpoint_bytes=2 * log + (k["kept"] * 2 * size.rate * every_s * left_log if busy < at_once else 0),
        batch_files=files,
        hour_files=hour,
        memory_mib=memory,
        disk_bytes=disk,
        busy_cores=busy,
        batch_s=batch,
        rebuild_s=(entries / k["rebuilt"] + log / k["read_mb"] / 1e6) / cores,
        subscribers=subscribers,
        hottest_s=hottest,
        largest_store_bytes=in_largest / buckets,
        loads={
            "disk": (disk / size.disk_gb / 1e9, "Tasks fail on a full disk: add executors or disk space"),
            "memory": (memory / size.memory_gib / 1024, "Executors are killed: give them more memory or fewer cores"),
            "cores": (busy / at_once, "Changes wait ever longer: add cores"),
            "requests": (hour / 3600 / k["requests"], "The object store slows batches down: set a longer trigger"),
            "hottest row": (hottest / k["patience_s"], "One task holds up all other changes: set `spread`"),
            "largest store": (in_largest / buckets / k["merge_mb"] / 1e6, "Merges outlast batches: add buckets"),
        },
    )


def tables(size: Size) -> str:
    """The prediction as two tables: needs, and limits, of which the first is the one that growth meets first."""
    found = predict(size)
    rows = {
        "indexes on local disks": _bytes(found.index_bytes),
        "change logs": _bytes(found.log_bytes),
        "the checkpoint, at most": _bytes(found.checkpoint_bytes),
        "files of a batch; of an hour": f"{found.batch_files:,}; {float(f'{found.hour_files:.2g}'):,.0f}",
        "memory of an executor, at most": f"{found.memory_mib / 1024:.1f} GiB",
        "disk of an executor, at most": _bytes(found.disk_bytes),
        "busy cores": f"{found.busy_cores:.1f} of {size.partitions}",
        "a batch": "ever longer" if math.isinf(found.batch_s) else f"{found.batch_s:.2f} s",
        "indexes of a lost executor, rebuilt": f"{found.rebuild_s:.1f} s",
        f"a change of a right row with {found.subscribers:,.0f} left rows": f"{found.hottest_s:.1f} s",
        "the largest store of a bucket": _bytes(found.largest_store_bytes),
    }
    loads = sorted(found.loads.items(), key=lambda load: -load[1][0])
    needs = "".join(f"\n| {what} | {figure} |" for what, figure in rows.items())
    limits = "".join(f"\n| {name} | {part:.1%} | {beyond} |" for name, (part, beyond) in loads)
    return f"| what | predicted |\n|---|---|{needs}\n\n| limit | used | above 100 % |\n|---|---|---|{limits}"


def _bytes(value: float) -> str:
    return f"{value / 1e9:,.1f} GB" if value >= 1e9 else f"{value / 1e6:,.0f} MB"


def expected(size: Size) -> dict[str, float]:
    """The predictions of what is measured: two tables of files, not topics, have a file more each in a batch."""
    found, rate = predict(size), constants()["rate"] * size.partitions
    state = found.index_bytes, found.log_bytes, found.batch_files + 2
    return dict(zip(FIGURES, (*state, found.memory_mib, found.rebuild_s, rate), strict=True))


def measured(size: Size, folder: Path) -> dict[str, float]:
    """Load a size on two cores, lose its indexes three times, and update its rows."""
    rng, memory = random.Random(7), Footprint()
    memory.start()
    with closing(Run(folder, "512m", more_bytes=size.row_bytes - 150)) as run:

        def left(numbers: Iterable[int]) -> float:
            return run.batch(left=((f"o{number}", f"c{rng.randrange(size.right)}") for number in numbers))[1]

        def some(count: int) -> float:
            return left(rng.randrange(size.left) for _ in range(count))

        def without_indexes() -> float:
            shutil.rmtree(folder / "index")
            return some(200)

        run.batch(right=(f"c{number}" for number in range(size.right)))
        for first in range(0, size.left, STEP):
            left(range(first, min(size.left, first + STEP)))
        index, log = run.state_bytes()
        before = _files(folder / "checkpoint")
        some(200)
        files = len(_files(folder / "checkpoint") - before)
        rebuild = statistics.median(without_indexes() - some(200) for _ in range(3))
        updates = UPDATES / statistics.median(some(UPDATES) for _ in range(3))
        return dict(zip(FIGURES, (index, log, files, memory.stop().pss_mib, rebuild, updates), strict=True))


def _files(folder: Path) -> set[Path]:
    """Its files, without hidden ones, and without snapshots, which a thread of Spark writes now and then."""
    return {file for file in folder.rglob("*") if file.is_file() and not re.search(r"^\.|\.(zip|sst)", file.name)}


def compared(found: Sequence[tuple[Size, dict[str, float]]]) -> list[tuple[str, float]]:
    """A line for each figure of each size, and by which part of the prediction it differs; longer rows have no seconds."""
    speed = {name: found[0][1][name] / expected(found[0][0])[name] for name in ("rebuild_s", "updates_per_s")}
    lines = []
    for size, figures in found:
        for name, value in expected(size).items():
            if name in speed and size.row_bytes != found[0][0].row_bytes:
                continue
            by = figures[name] / (predicted := value * speed.get(name, 1)) - 1
            line = f"| {size.left:,} | {size.row_bytes} | {name} | {predicted:,.4g} | {figures[name]:,.4g} | {by:+.0%} |"
            lines.append((line, by))
    return lines


def measure(lefts: Sequence[int]) -> int:
    """Measure these sizes, and the first one with longer rows; return the exit code."""
    sizes, found = [Size(left, RIGHT, 0, buckets=2) for left in lefts], list[tuple[Size, dict[str, float]]]()
    for size in (*sizes, replace(sizes[0], row_bytes=450)):
        with tempfile.TemporaryDirectory(prefix="fkjoin-bench-", ignore_cleanup_errors=True) as folder:
            found.append((size, measured(size, Path(folder))))
        print(json.dumps({"left": size.left, "row_bytes": size.row_bytes, **found[-1][1]}), flush=True)
    print("| left rows | row | what | predicted | measured | differs |\n|---|---|---|---|---|---|")
    lines = compared(found)
    print("\n".join(line for line, _ in lines))
    return int(any(abs(differs) > 0.25 for _, differs in lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("measure").add_argument("--left", type=int, nargs="+", default=[500_000, 1_000_000, 2_000_000])
    to_predict = commands.add_parser("predict", description=Size.__doc__)
    for one in fields(Size):
        kind, default = int if one.type == "int" else float, getattr(Size, one.name, None)
        about = "required" if default is None else f"default {default}"
        option = f"--{one.name.replace('_', '-')}"
        to_predict.add_argument(option, type=kind, default=default, required=default is None, help=about)
    given = vars(parser.parse_args())
    if given.pop("what") == "measure":
        return measure(given["left"])
    print(tables(Size(**given)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
