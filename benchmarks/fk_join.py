"""The foreign-key join on Spark, of a workload file (JSON lines in, Parquet out) or of topics (Kafka in, Kafka out).

    python -m benchmarks.fk_join WORKLOAD.jsonl [--out RESULT.jsonl] [--batch 500000]
    python -m benchmarks.fk_join --kafka BOOTSTRAP [--prime] [--folder DIR] [--jars JARS]

WORKLOAD.jsonl has lines {"side", "key", "value", "seq"} in three phases, WORKLOAD.jsonl.meta.json says where they end
("phase_end").  The lines are first cut into files of ``--batch`` lines a side and phase, which is not timed.  Phase 1 (right
rows) is read and joined; then the time is taken from the moment phase 2 is there until phases 2 and 3 are written out.
Prints one JSON line.  --out writes the final joined table.

With --kafka everything that is in the topics customers and orders is joined into the topic joined.  --prime does so once for
phase 1, prints a line, waits for one on standard input while phases 2 and 3 are produced, and times them in the same session;
without it the session is a new one, and DIR keeps the checkpoint between two runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import fkjoin
from benchmarks.memory import Footprint
from benchmarks.topics import measure_topics
from fkjoin import Table, fk_join
from fkjoin.events import Enriched
from fkjoin.sessions.settings import SHORT_LIVED
from fkjoin.stages.counters import metrics_name

VALUES = {
    "left": "struct<fk:string,amount:double,v:bigint,pad:string>",
    "right": "struct<name:string,tier:string,v:bigint,pad:string>",
}
COLUMNS = (
    "key",
    *(f"left.value.{name}" for name in ("fk", "amount", "v", "pad")),
    *("right.value.name", "right.value.tier", "right.value.v as rv", "right.value.pad as rpad"),
    *("_operation", "_left_version", "_right_version"),
)
"""The columns that are compared: those that the peers write, and those that say which change of a key is its last."""


def stage(workload: Path, folder: Path, batch: int) -> list[int]:
    """Cut the workload into files per side and micro-batch under ``folder/staged``; where each phase's files end."""
    ends = json.loads(Path(f"{workload}.meta.json").read_text())["phase_end"]
    bounds, number, phase_files = iter(ends), 0, []
    end, lines = next(bounds), {side: list[str]() for side in VALUES}
    for side in VALUES:
        (folder / "staged" / side).mkdir(parents=True)
        (folder / side).mkdir()

    def flush() -> None:
        nonlocal number
        for side, part in lines.items():
            (folder / "staged" / side / f"{number:05}.json").write_text("".join(part))
            part.clear()
        number += 1

    with workload.open() as source:
        for place, line in enumerate(source, 1):
            lines["left" if line.startswith('{"side":"left"') else "right"].append(line)
            if place == end or sum(map(len, lines.values())) >= batch:
                flush()
            if place == end:
                phase_files.append(number)
                end = next(bounds, -1)
    return phase_files


def land(folder: Path, first: int, last: int) -> None:
    """Put staged files where the sources look, in order of time."""
    for number in range(first, last):
        for side in VALUES:
            staged = folder / "staged" / side / f"{number:05}.json"
            os.utime(staged, (number, number))
            staged.replace(folder / side / staged.name)


def table(spark: SparkSession, folder: Path, side: str, value: str | None = None, timestamp: str | None = None) -> Table:
    """A side's table; ``value``: the type of its values, if it is not that of ``VALUES``."""
    return Table.from_files(
        spark,
        folder / side,
        key="key",
        version="seq",
        deleted="value is null",
        timestamp=timestamp,
        schema=f"key string, value {value or VALUES[side]}, seq bigint",
        format="json",
        options={"maxFilesPerTrigger": 1},
    )


def joined(spark: SparkSession, folder: Path) -> Table:
    return fk_join(table(spark, folder, "left"), table(spark, folder, "right"), "value.fk", name="bench")


Made = TypeVar("Made", bound=Table | Enriched)
"""A table, or events with rows of a table, that a query makes."""


def to_parquet(made: Table | Enriched, folder: Path) -> list[StreamingQuery]:
    """The changes as files under ``folder/out``."""
    return [made.to_parquet(folder / "out", checkpoint=folder / "checkpoint")]


def measure_table(
    workload: Path,
    folder: Path,
    batch: int,
    build: Callable[[SparkSession], Made],
    start: Callable[[Made, Path], list[StreamingQuery]] = to_parquet,
) -> dict[str, Any]:
    """Run the three phases through the queries that ``start`` starts; the measurements, those of batches of the first query."""
    ends = stage(workload, folder, batch)
    memory = Footprint()
    memory.start()
    spark = fkjoin.session(
        "benchmark",
        master="local[2]",
        ui_enabled="false",
        driver_memory="512m",
        fkjoin_buckets=8,
        driver_extraJavaOptions=f"{SHORT_LIVED} -Xms192m -Xmn80m",
        local_dir=folder / "tmp",
        fkjoin_index_dir=folder / "index",
    )
    spark.sparkContext.setLogLevel("ERROR")
    made = build(spark)
    queries = start(made, folder)
    times, first = [time.perf_counter()], 0
    for last in ends:
        land(folder, first, last)
        for query in queries:
            query.processAllAvailable()
        times.append(time.perf_counter())
        first = last
    batches = [progress for progress in queries[0].recentProgress if progress.numInputRows]
    for query in queries:
        query.stop()
    phases = [round(after - before, 2) for before, after in itertools.pairwise(times)]
    primed, *_, inputs = json.loads(Path(f"{workload}.meta.json").read_text())["phase_end"]
    metrics = [progress.observedMetrics[metrics_name(made.name)].asDict() for progress in batches]
    return {
        "engine": "fkjoin",
        "version": fkjoin.__version__,
        "inputs": inputs,
        "phase_s": phases,
        "inputs_per_s_2_3": round((inputs - primed) / (times[-1] - times[1])),
        **memory.stop().named(),
        "batches": len(batches),
        "batch_s": [round(progress.durationMs["triggerExecution"] / 1000, 2) for progress in batches],
        "results": sum(one["out"] or 0 for one in metrics),
    }


def last_rows(changes: DataFrame, key: Sequence[str], *versions: str) -> DataFrame:
    """The rows that changes lead to: of each key the one with the greatest versions, unless it is a delete."""
    newest = Window.partitionBy(*key).orderBy(*map(F.desc, versions))
    return changes.withColumn("place", F.row_number().over(newest)).where("place = 1 and _operation <> 'delete'")


def write_result(spark: SparkSession, folder: Path, out: Path) -> None:
    """The final joined table, one JSON line a row."""
    changes = spark.read.parquet(str(folder / "out")).selectExpr(*COLUMNS)
    rows = last_rows(changes, ["key"], "_left_version", "_right_version")
    with out.open("w") as sink:
        chosen = rows.select("key", "fk", "amount", "v", "name", "tier", "rv")
        sink.writelines(json.dumps(row.asDict()) + "\n" for row in chosen.toLocalIterator())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path, nargs="?")
    parser.add_argument("--kafka", metavar="BOOTSTRAP", help="join topics instead of a file")
    parser.add_argument("--prime", action="store_true", help="with --kafka: see above")
    parser.add_argument("--folder", type=Path, help="with --kafka: where checkpoint and index lie; kept")
    parser.add_argument("--jars", default="", help="with --kafka: the connector's jars, as for spark.jars")
    parser.add_argument("--out", type=Path, help="write the final joined table here")
    parser.add_argument("--batch", type=int, help="lines in a micro-batch (default 500000; records of topics: all there are)")
    given = parser.parse_args()
    if (given.workload is None) == (given.kafka is None):
        parser.error("give either a workload file or --kafka")
    folder = Path(tempfile.mkdtemp(prefix="fkjoin-bench-"))
    try:
        if given.kafka is not None:
            result = measure_topics(given.kafka, given.folder or folder, given.batch, given.jars, prime=given.prime)
        else:
            result = measure_table(given.workload, folder, given.batch or 500_000, lambda spark: joined(spark, folder))
        if given.workload is not None and given.out is not None:
            write_result(SparkSession.active(), folder, given.out)
        print(json.dumps(result), flush=True)
    finally:
        if (spark := SparkSession.getActiveSession()) is not None:
            spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
