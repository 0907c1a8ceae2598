"""A join, then count and sum by group: on Spark, or beside Flink SQL's same query in turn.

    python -m benchmarks.aggregate WORKLOAD.jsonl [--by tier|name] [--out RESULT.jsonl] [--batch 500000]
    python -m benchmarks.aggregate --peers FOLDER [--by tier|name] [--rounds 3] [--right 100000 --left 500000 --updates 200000]
    python -m benchmarks.aggregate --group 100000

The workload is that of ``benchmarks.fk_join``, and so is what is timed: phases 2 and 3.  ``--by tier`` has four groups,
``--by name`` as many as there are right rows.  Every result is checked against a plain recomputation.  Flink (of the
environment variable FLINK_PYTHON, or FOLDER/venv-flink) runs FOLDER/flink_peer.py with its query replaced by

    SELECT B.{by}, COUNT(*), SUM(A.amount) FROM A JOIN B ON A.fk = B.k GROUP BY B.{by}

``--group`` has one group of so many rows, without Spark: single changes of it, each a batch of its own on a bucket store.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks import restart
from benchmarks import workload as workloads
from benchmarks.compare import QUERY, SINK_COLUMNS, flink_command, in_turn, summary_lines
from benchmarks.fk_join import last_rows, measure_table, table
from fkjoin import Table, aggregates, fk_join
from fkjoin.codec import versions
from fkjoin.codec.messages import GROUPED
from fkjoin.codec.messages import table as table_of
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.bulk import bulk_column, collected_column, first_column
from fkjoin.folds.fold import Fold
from fkjoin.stages.aggregate import aggregate as aggregated
from fkjoin.stages.counters import Counters
from fkjoin.state import BYTES, BucketStore


def totals(spark: SparkSession, folder: Path, by: str) -> Table:
    """Orders and their amounts by a column of the right rows."""
    joined = fk_join(table(spark, folder, "left"), table(spark, folder, "right"), "value.fk", name="bench")
    return joined.group_by(f"right.value.{by}", name="totals").agg(
        orders=aggregates.count(), amount=aggregates.sum("left.value.amount")
    )


def recomputed(workload: Path, by: str) -> dict[str, tuple[int, float]]:
    """The aggregates of the final tables."""
    lefts, rights = workloads.tables(workload).values()
    groups: dict[str, list[float]] = defaultdict(list)
    for row in lefts.values():
        if row is not None and (right := rights.get(row["fk"])) is not None:
            groups[right[by]].append(row["amount"])
    return {group: (len(amounts), math.fsum(amounts)) for group, amounts in groups.items()}


def written(spark: SparkSession, folder: Path, by: str) -> dict[str, tuple[int, float]]:
    """The rows that the query's changes lead to."""
    rows = last_rows(spark.read.parquet(str(folder / "out")), [by], "_version")
    return {row[0]: (row[1], row[2]) for row in rows.select(by, "orders", "amount").collect()}


def compare(given: argparse.Namespace) -> None:
    """Run fkjoin and Flink in turn, and print what came out."""
    query = f"SELECT B.{given.by}, COUNT(*), SUM(A.amount) FROM A JOIN B ON A.fk = B.k GROUP BY B.{given.by}"
    lines = {
        SINK_COLUMNS: 'OUTCOLS = "`key` STRING, orders BIGINT, amount DOUBLE"',
        QUERY: f'Q = "INSERT INTO S {query}"',
    }
    with tempfile.TemporaryDirectory(prefix="fkjoin-compare-") as folder:
        work = Path(folder)
        workload = work / "workload.jsonl"
        workloads.write(workload, given.right, given.left, given.updates)
        ours = [sys.executable, "-m", "benchmarks.aggregate", str(workload), "--by", given.by, "--batch", str(given.batch)]
        flink = flink_command(given.peers, workload, work, lines, ["--conflict", "none"])
        runs = in_turn({"fkjoin": ours, **flink}, work, given.rounds)
    for line in summary_lines(runs, (given.right + given.left + given.updates) / 1e6):
        print(line)


def single_changes(rows: int, changes: int = 50) -> dict[str, dict[str, float]]:
    """Change one row of a large group at a time: milliseconds in the median, and the bytes that the log gets of a change."""
    value = pa.schema([("sku", pa.string()), ("amount", pa.int64()), ("key", pa.string())])
    alone: Any = {"descending": False, "delimiter": ""}
    columns = {
        "count_distinct": bulk_column("it", "count_distinct", 0, value, "sku"),
        "max_by": first_column("it", "max_by", 0, by=1, schema=value, text="amount", most=None),
        "max_by, 10": first_column("it", "max_by", 0, by=1, schema=value, text="amount", most=10),
        "collect_set": collected_column("it", "collect_set", 0, order=[], schema=value, text="sku", **alone),
        "collect_list": collected_column("it", "collect_list", 0, order=[2], schema=value, text="sku", **alone),
    }
    codec, found = RowCodec(value), {}

    def contributed(row: int, version: int) -> tuple[str, int, str]:
        return f"sku {(7 * row + version) % rows:08}", (row * 7919 + version) % rows, f"{row:08}"

    for name, one in columns.items():
        fold, log, times, sizes = Fold(value, (one,)), Log(), [], []
        with tempfile.TemporaryDirectory(prefix="fkjoin-bench-") as folder:
            for batch in range(changes + 1):
                some = range(rows) if batch == 0 else [(batch * 997) % rows]
                sides = []
                for at in (0, 1):
                    parts = zip(*(contributed(row, at) for row in some), strict=True)
                    sides.append(codec.encode([pa.array(part) for part in parts], len(some)))
                old, new = (pa.nulls(len(some), BYTES), sides[0]) if batch == 0 else (sides[0], sides[1])
                started, before = time.perf_counter(), log.size
                with BucketStore(log, Path(folder)) as store:
                    ts = np.full(len(some), batch)
                    key = pa.array([b"g"] * len(some), BYTES)
                    version = versions.encode(versions.identity("rows"), [np.full(len(some), batch)])
                    changed = table_of(GROUPED, key, pa.array([b""] * len(some), BYTES), version, old, new, ts)
                    aggregated(changed, store, Counters(), fold, source=versions.identity("group"), now_ms=0, retention_ms=1)
                    store.commit()
                if batch:
                    times.append(1000 * (time.perf_counter() - started))
                    sizes.append(log.size - before)
        found[name] = {"ms": round(statistics.median(times), 1), "bytes": statistics.median(sizes)}
    return found


class Log(restart.Log):
    """A change log in memory that counts its bytes."""

    size = 0

    def put_segment(self, number: int, data: bytes) -> None:
        self.size += len(data)
        super().put_segment(number, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path, nargs="?")
    parser.add_argument("--peers", type=Path, help="folder with the harnesses of other engines")
    parser.add_argument("--by", choices=("tier", "name"), default="name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=500_000, help="lines in a micro-batch (default 500000)")
    for size, default in (("right", 100_000), ("left", 500_000), ("updates", 200_000)):
        parser.add_argument(f"--{size}", type=int, default=default)
    parser.add_argument("--group", type=int, help="rows of one group that single changes are made to, without Spark")
    given = parser.parse_args()
    if given.group:
        print(json.dumps(single_changes(given.group)))
        return
    if given.workload is None:
        if given.peers is None:
            parser.error("give either a workload file or --peers")
        compare(given)
        return
    folder = Path(tempfile.mkdtemp(prefix="fkjoin-bench-"))
    try:
        result = measure_table(given.workload, folder, given.batch, lambda spark: totals(spark, folder, given.by))
        if (found := written(SparkSession.active(), folder, given.by)) != recomputed(given.workload, given.by):
            raise SystemExit(f"the result differs from a recomputation; it has {len(found)} groups")
        print(json.dumps(result), flush=True)
    finally:
        if (spark := SparkSession.getActiveSession()) is not None:
            spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
