"""Operators that no other benchmark compares: each on Spark alone, or beside Flink SQL's same query in turn.

    python -m benchmarks.operators [--peers FOLDER] [--only NAME] [--rounds 3] [--right 10000 --left 100000 --updates 100000]
    python -m benchmarks.operators WORKLOAD.jsonl --only NAME [--batch 500000]

NAME is one of ``QUERIES``.  Each query has a workload of its own, of the changes that ``benchmarks.workload`` makes.  What is
timed is that of ``benchmarks.fk_join``: phases 2 and 3.  Every result of fkjoin is checked against a plain recomputation.

Flink (of the environment variable FLINK_PYTHON, or FOLDER/venv-flink) runs FOLDER/flink_peer.py with other tables and another
query.  With --check, Flink's result is checked, too: its sink prints, and nothing is timed.  Where Flink differs:

- ``enrich`` joins an event with the row of the event's time.  fkjoin joins it with the row of its micro-batch.
- ``largest`` has a row for each of the three places.  fkjoin has a list for each group.
- ``flat-map`` needs ON CONFLICT, since Flink does not know that its key is one.  So the sink keeps all rows once more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import workload as workloads
from benchmarks.compare import flink_command, in_turn, summary_lines
from benchmarks.fk_join import last_rows, measure_table
from benchmarks.queries import QUERIES, Rows, dated

_SINK = '    t.execute_sql(f"CREATE TABLE S ({OUTCOLS}{pk})'
"""The beginning of the line of FOLDER/flink_peer.py that makes the sink."""


def landed(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The micro-batches that fkjoin has read."""
    for left in sorted((folder / "left").glob("*.json")):
        lines = [line for path in (left, folder / "right" / left.name) for line in path.read_text().splitlines()]
        yield sorted(map(json.loads, lines), key=itemgetter("seq"))


def require_same(name: str, found: Rows, wanted: Rows) -> None:
    if wrong := [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]:
        some = "; ".join(f"{key}: {found.get(key)}, not {wanted.get(key)}" for key in sorted(wrong)[:3])
        raise SystemExit(f"{name}: {len(wrong)} of {len(wanted)} rows differ from a recomputation: {some}")


def run(name: str, workload: Path, batch: int) -> dict[str, Any]:
    """Measure a query on Spark, and check its result."""
    query, folder = QUERIES[name], Path(tempfile.mkdtemp(prefix="fkjoin-bench-"))
    try:
        result = measure_table(workload, folder, batch, lambda spark: query.build(spark, folder))
        rows = SparkSession.active().read.parquet(str(folder / "out"))
        if query.versions:
            rows = last_rows(rows, query.key, *query.versions)
        found = rows.selectExpr(*query.key, *query.columns).collect()
        width = len(query.key)
        by_key = {tuple(row[:width]): tuple(row[width:]) for row in found}
        if len(by_key) != len(found):
            raise SystemExit(f"{name}: {len(found) - len(by_key)} rows came twice")
        require_same(name, by_key, query.wanted(landed(folder)))
        return result
    finally:
        if (spark := SparkSession.getActiveSession()) is not None:
            spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def check_flink(name: str, workload: Path, command: list[str], work: Path) -> None:
    """Run Flink with a sink that prints, and check its result."""
    query = QUERIES[name]
    found: Rows = {}
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=work).stdout
    with workload.open() as lines:
        wanted = (query.flink.wanted or query.wanted)([list(map(json.loads, lines))])
    width = len(next(iter(wanted)))
    for change in re.finditer(r"^(?:\d+> )?(\+I|\+U|-D)\[(.*)\]$", output, re.MULTILINE):
        fields = change[2].replace("[", "").replace("]", "").split(", ")
        key, row = tuple(fields[:width]), tuple(fields[width:])
        if change[1] == "-D":
            found.pop(key, None)
        else:
            found[key] = row
    printed: Rows = {tuple(map(str, key)): tuple(_texts(row)) for key, row in wanted.items()}
    require_same(f"{name}, Flink", found, printed)
    print(json.dumps({"operator": name, "engine": "flink-sql", "checked": len(found)}), flush=True)


def _texts(row: Iterable[Any]) -> Iterator[str]:
    for value in row:
        yield from map(str, value) if isinstance(value, list) else [str(value)]


def compare(name: str, given: argparse.Namespace) -> list[str]:
    """Run fkjoin and Flink in turn; a line for each."""
    query = QUERIES[name]
    with tempfile.TemporaryDirectory(prefix="fkjoin-compare-") as folder:
        work = Path(folder)
        workload = work / "workload.jsonl"
        phases = dated(query.phases(given.right, given.left, given.updates))
        workloads.write_phases(workload, phases)
        options = ["--sink", "blackhole-nopk", "--set", "table.local-time-zone=UTC"]
        lines = query.flink.lines()
        if given.check:
            lines[_SINK] = f"{_SINK} WITH ('connector'='print')\")"
        flink = flink_command(given.peers, workload, work, lines, options)
        if given.check:
            if not flink:
                raise SystemExit("--check: there is no Flink; give --peers, and FLINK_PYTHON or FOLDER/venv-flink")
            check_flink(name, workload, flink["flink"], work)
            return []
        ours = [sys.executable, "-m", "benchmarks.operators", str(workload), "--only", name, "--batch", str(given.batch)]
        runs = in_turn({"fkjoin": ours, **flink}, work, given.rounds, operator=name)
    return [f"{name:15} {line}" for line in summary_lines(runs, sum(map(len, phases)) / 1e6)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path, nargs="?")
    parser.add_argument("--peers", type=Path, help="folder with the harnesses of other engines")
    parser.add_argument("--only", choices=QUERIES, help="one query (default: all)")
    parser.add_argument("--check", action="store_true", help="check Flink's results, and measure nothing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=500_000, help="lines in a micro-batch (default 500000)")
    for size, default in (("right", 10_000), ("left", 100_000), ("updates", 100_000)):
        parser.add_argument(f"--{size}", type=int, default=default)
    given = parser.parse_args()
    if given.workload is not None:
        if given.only is None:
            parser.error("a workload is one query's: name it with --only")
        print(json.dumps(run(given.only, given.workload, given.batch)), flush=True)
        return
    lines = [compare(name, given) for name in ([given.only] if given.only else QUERIES)]
    for line in itertools.chain.from_iterable(lines):
        print(line)


if __name__ == "__main__":
    main()
