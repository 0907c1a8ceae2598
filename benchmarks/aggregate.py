"""A join, then count and sum by group: on Spark, or beside Flink SQL's same query in turn.

    python -m benchmarks.aggregate WORKLOAD.jsonl [--by tier|name] [--out RESULT.jsonl] [--batch 500000]
    python -m benchmarks.aggregate --peers FOLDER [--by tier|name] [--rounds 3] [--right 100000 --left 500000 --updates 200000]

The workload is that of ``benchmarks.fk_join``, and so is what is timed: phases 2 and 3.  ``--by tier`` has four groups,
``--by name`` as many as there are right rows.  Every result is checked against a plain recomputation.  Flink (of the
environment variable FLINK_PYTHON, or FOLDER/venv-flink) runs FOLDER/flink_peer.py with its query replaced by

    SELECT B.{by}, COUNT(*), SUM(A.amount) FROM A JOIN B ON A.fk = B.k GROUP BY B.{by}
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import workload as workloads
from benchmarks.compare import Summary, commands, measure
from benchmarks.fk_join import measure_table, table
from fkjoin import Table, aggregates, fk_join

_OUTPUT = 'OUTCOLS = "'
_QUERY = 'Q = "INSERT INTO S '


def totals(spark: SparkSession, folder: Path, by: str) -> Table:
    """Orders and their amounts by a column of the right rows."""
    joined = fk_join(table(spark, folder, "left"), table(spark, folder, "right"), "value.fk", name="bench")
    return joined.group_by(f"right.value.{by}", name="totals").agg(
        orders=aggregates.count(), amount=aggregates.sum("left.value.amount")
    )


def recomputed(workload: Path, by: str) -> dict[str, tuple[int, float]]:
    """What the final tables come to."""
    tables: dict[str, dict[str, Any]] = {"left": {}, "right": {}}
    with workload.open() as lines:
        for change in map(json.loads, lines):
            tables[change["side"]][change["key"]] = change["value"]
    groups: dict[str, list[float]] = defaultdict(list)
    for row in tables["left"].values():
        if row is not None and (right := tables["right"].get(row["fk"])) is not None:
            groups[right[by]].append(row["amount"])
    return {group: (len(amounts), math.fsum(amounts)) for group, amounts in groups.items()}


def written(spark: SparkSession, folder: Path, by: str) -> dict[str, tuple[int, float]]:
    """What the query's changes lead to."""
    changes = spark.read.parquet(str(folder / "out"))
    newest = f"row_number() over (partition by {by} order by _version desc) as place"
    changes.selectExpr("*", newest).where("place = 1 and _operation <> 'delete'").createOrReplaceTempView("last")
    return {row[0]: (row[1], row[2]) for row in spark.sql(f"select {by}, orders, amount from last").collect()}


def flink_variant(peers: Path, by: str, work: Path) -> Path:
    """The peer's harness with the aggregate's query."""
    lines = (peers / "flink_peer.py").read_text().splitlines()
    query = f"SELECT B.{by}, COUNT(*), SUM(A.amount) FROM A JOIN B ON A.fk = B.k GROUP BY B.{by}"
    replaced = {
        _OUTPUT: 'OUTCOLS = "`key` STRING, orders BIGINT, amount DOUBLE"',
        _QUERY: f'Q = "INSERT INTO S {query}"',
    }
    for begin, line in replaced.items():
        (place,) = [number for number, old in enumerate(lines) if old.startswith(begin)]
        lines[place] = line
    variant = work / "flink_peer.py"
    variant.write_text("\n".join(lines))
    shutil.copy(peers / "rss.py", work / "rss.py")
    return variant


def compare(given: argparse.Namespace) -> None:
    """Run fkjoin and Flink in turn, and print what came out."""
    runs: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="fkjoin-compare-") as folder:
        work = Path(folder)
        workload = work / "workload.jsonl"
        workloads.write(workload, given.right, given.left, given.updates)
        flink_variant(given.peers, given.by, work)
        engines = commands(given.peers, workload, work / "result.jsonl", given.batch)
        ours = [
            engines["fkjoin"][0],
            "-m",
            "benchmarks.aggregate",
            str(workload),
            "--by",
            given.by,
            "--batch",
            str(given.batch),
        ]
        chosen = {"fkjoin": ours}
        if "flink" in engines:
            chosen["flink"] = [engines["flink"][0], str(work / "flink_peer.py"), *engines["flink"][2:], "--conflict", "none"]
        for number in range(given.rounds):
            for name, command in chosen.items():
                found = measure(name, command, work)
                runs.setdefault(name, []).append(found)
                print(json.dumps({"round": number + 1, **found}), flush=True)
    millions = (given.right + given.left + given.updates) / 1e6
    summary = [Summary.of(name, all_of, millions) for name, all_of in runs.items()]
    for row in summary:
        print(row.line(summary[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path, nargs="?")
    parser.add_argument("--peers", type=Path, help="folder with the harnesses of other engines")
    parser.add_argument("--by", choices=("tier", "name"), default="name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=500_000, help="lines in a micro-batch (default 500000)")
    for size, default in (("right", 100_000), ("left", 500_000), ("updates", 200_000)):
        parser.add_argument(f"--{size}", type=int, default=default)
    given = parser.parse_args()
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
