"""The worth of each rule of the optimizer: one topology with it and without it, in turn.

    python -m benchmarks.optimizer [--rule RULE] [--rounds 3] [--right 100000 --left 500000 --updates 200000]

The workload and what is timed are those of ``benchmarks.fk_join``.  Prints a JSON line per run and, per rule, minimum, median
and maximum of inputs a second with and without it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import workload as workloads
from benchmarks.aggregate import totals
from benchmarks.fk_join import joined, measure_table, table, to_parquet
from fkjoin import Table, fk_join
from fkjoin.plan.rules import (
    AGGREGATE_READS_ANSWERS,
    ANSWERS_KEEP_WHAT_IS_READ,
    FILTER_GOES_BELOW_JOIN,
    JOIN_KEEPS_WHAT_IT_NEEDS,
    JOIN_READS_ANSWERS,
    JOINS_SHARE_STAGES,
    RESOLVE_MAKES_ROWS,
    RULES,
    SINKS_SHARE_A_QUERY,
    STAGES_SHARE_AN_OPERATOR,
    VIEW_READS_ANSWERS,
    WORKERS_EVALUATE_STEPS,
)
from fkjoin.sessions.settings import BUCKETS, EXCLUDED
from fkjoin.sinks import Parquet


def view(spark: SparkSession, folder: Path) -> Table:
    """Large orders, with the customer's name."""
    large = joined(spark, folder).filter("left.value.amount >= 50")
    return large.map_values(["left.value.amount as amount", "right.value.name as name"], name="large")


def tenth(spark: SparkSession, folder: Path) -> Table:
    """The tenth of the orders that are the largest, with the customer's name."""
    return joined(spark, folder).filter("left.value.amount >= 9000", name="largest")


def twice(spark: SparkSession, folder: Path) -> Table:
    """Orders with their customers, and those with their customers once more, as if these paid."""
    customers = table(spark, folder, "right")
    first = fk_join(table(spark, folder, "left"), customers, "value.fk", name="bench")
    columns = ["left.left.value.amount", "left.right.value.name", "right.value.tier"]
    return fk_join(first, customers, "left.value.fk", joiner=columns, name="second")


def thrice(spark: SparkSession, folder: Path) -> Table:
    """Three joins: of orders with customers, with those again, and once more."""
    columns = ["left.amount", "left.name", "left.tier", "right.value.v"]
    customers = table(spark, folder, "right")
    of_two = ["left.left.value.amount", "left.left.value.fk", "left.right.value.name", "right.value.tier"]
    first = fk_join(table(spark, folder, "left"), customers, "value.fk", name="bench")
    second = fk_join(first, customers, "left.value.fk", joiner=of_two, name="second")
    return fk_join(second, customers, "fk", joiner=columns, name="third")


def picked(spark: SparkSession, folder: Path) -> Table:
    """Two columns of the joined rows."""
    columns = ["left.value.amount", "right.value.name"]
    sides = table(spark, folder, "left"), table(spark, folder, "right")
    return fk_join(*sides, "value.fk", joiner=columns, name="bench")


def stepped(spark: SparkSession, folder: Path) -> Table:
    """The join of orders that are filtered and have columns of their own."""
    orders = table(spark, folder, "left").filter("value.amount >= 0")
    chosen = orders.map_values(["value.fk as fk", "value.amount * 2 as amount", "value.v as v", "value.pad as pad"])
    return fk_join(chosen, table(spark, folder, "right"), "fk", name="bench")


TOPOLOGIES: dict[str, Callable[[SparkSession, Path], Table]] = {
    AGGREGATE_READS_ANSWERS: lambda spark, folder: totals(spark, folder, "name"),
    ANSWERS_KEEP_WHAT_IS_READ: lambda spark, folder: totals(spark, folder, "name"),
    FILTER_GOES_BELOW_JOIN: tenth,
    JOIN_KEEPS_WHAT_IT_NEEDS: picked,
    JOIN_READS_ANSWERS: twice,
    JOINS_SHARE_STAGES: thrice,
    RESOLVE_MAKES_ROWS: picked,
    SINKS_SHARE_A_QUERY: joined,
    STAGES_SHARE_AN_OPERATOR: joined,
    VIEW_READS_ANSWERS: view,
    WORKERS_EVALUATE_STEPS: stepped,
}
ELSE = {JOIN_READS_ANSWERS: (JOINS_SHARE_STAGES,), VIEW_READS_ANSWERS: (FILTER_GOES_BELOW_JOIN,)}
"""Rules that would stand in the way of others, and are off while those are measured."""


def together(made: Table, folder: Path) -> list[StreamingQuery]:
    """Two sinks, as a job with the rule starts them."""
    return [made.to(Parquet(str(folder / "out")), Parquet(str(folder / "copy")), checkpoint=folder / "checkpoint")]


def apart(made: Table, folder: Path) -> list[StreamingQuery]:
    """The topology without the rule."""
    return [
        made.to_parquet(folder / name, checkpoint=folder / f"checkpoint-{name}", query_name=name) for name in ("out", "copy")
    ]


def one(rule: str, workload: Path, batch: int, *, excluded: bool) -> None:
    """One run; prints its measurements."""
    folder = Path(tempfile.mkdtemp(prefix="fkjoin-bench-"))

    def build(spark: SparkSession) -> Table:
        off = [*[rule] * excluded, *ELSE.get(rule, ())]
        spark.conf.set(EXCLUDED, ",".join(off))
        if rule == STAGES_SHARE_AN_OPERATOR:
            spark.conf.set(BUCKETS, "1")
        return TOPOLOGIES[rule](spark, folder)

    try:
        start: Callable[[Table, Path], list[StreamingQuery]] = to_parquet
        if rule == SINKS_SHARE_A_QUERY:
            start = apart if excluded else together
        print(json.dumps(measure_table(workload, folder, batch, build, start)), flush=True)
    finally:
        if (spark := SparkSession.getActiveSession()) is not None:
            spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=500_000, help="lines in a micro-batch (default 500000)")
    for size, default in (("right", 100_000), ("left", 500_000), ("updates", 200_000)):
        parser.add_argument(f"--{size}", type=int, default=default)
    parser.add_argument("--rule", choices=RULES, action="append", help="only this one; may be given again")
    parser.add_argument("--one", metavar="RULE", help=argparse.SUPPRESS)
    parser.add_argument("--workload", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--excluded", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given.one, given.workload, given.batch, excluded=given.excluded)
        return
    with tempfile.TemporaryDirectory(prefix="fkjoin-compare-") as folder:
        workload = Path(folder) / "workload.jsonl"
        workloads.write(workload, given.right, given.left, given.updates)
        common = [sys.executable, "-m", "benchmarks.optimizer", "--workload", str(workload), "--batch", str(given.batch)]
        for rule in given.rule or RULES:
            rates: dict[str, list[int]] = {"with": [], "without": []}
            for _ in range(given.rounds):
                for how, rated in rates.items():
                    command = [*common, "--one", rule, *["--excluded"] * (how == "without")]
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]
                    found = json.loads(done)
                    rated.append(found["inputs_per_s_2_3"])
                    print(json.dumps({"rule": rule, "how": how, **found}), flush=True)
            for how, rated in rates.items():
                print(f"{rule} {how:8} {min(rated):,} {round(statistics.median(rated)):,} {max(rated):,}")
            ratio = statistics.median(rates["with"]) / statistics.median(rates["without"])
            print(f"{rule} {ratio:.2f} x")


if __name__ == "__main__":
    main()
