"""``fkjoin demo``: bundled change logs of orders and customers through the Spark engine, checked by a batch join."""

from __future__ import annotations

import gzip
import os
import time
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from fkjoin.checkpoint.progress import progress_since
from fkjoin.join import fk_join
from fkjoin.sessions.settings import INDEX_DIR, SHORT_LIVED, session
from fkjoin.stages import counters
from fkjoin.stages.counters import metrics_name
from fkjoin.table import Table

PARTS, FIRST_RUN = 8, 6
"""The logs are cut into parts, one a micro-batch; the first run reads the first six, later runs the rest."""

_SCHEMAS = {
    "orders": "order_id string, customer_id string, amount double, status string, op string, lsn bigint, at timestamp",
    "customers": "customer_id string, name string, tier string, op string, lsn bigint, at timestamp",
}
_KEYS = {"orders": "order_id", "customers": "customer_id"}
_NAME = "orders-with-customers"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run of the demo."""

    resumed: bool
    batches: int
    count: Counter[str]
    rows: int
    wrong: int


def run_demo(folder: Path, console: Console, spark: SparkSession | None = None) -> Outcome:
    """Run the demo in ``folder``; raises nothing when the result is wrong: ``Outcome.wrong`` counts the keys."""
    folder = folder.absolute()
    checkpoint, output = folder / "checkpoint", folder / "joined"
    resumed = (checkpoint / "commits").is_dir()
    landed = _land(folder)
    console.print(
        f"[bold]Goes on from the checkpoint[/] of an earlier run in {checkpoint}; {landed} new parts of the change logs."
        if resumed
        else f"Joins orders with customers in {folder}; {landed} parts of the change logs."
    )
    spark = spark or session("fkjoin demo", driver_extraJavaOptions=SHORT_LIVED)
    spark.conf.set(INDEX_DIR, str(folder / "index"))
    logs = {name: _log(spark, folder, name) for name in _KEYS}
    joined = fk_join(logs["orders"], logs["customers"], "customer_id", name=_NAME)
    console.print(joined.describe(), style="dim", markup=False, highlight=False)
    query = (
        joined.changes.writeStream.format("parquet")
        .option("path", str(output))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    batches, count = _follow(query, landed, console)
    found, wanted = _table(spark.read.parquet(str(output))), _batch_join(spark, folder)
    wrong = found.exceptAll(wanted).select("order_id").union(wanted.exceptAll(found).select("order_id")).distinct().count()
    rows = wanted.count()
    _report(
        console, found, count, rows=rows, wrong=wrong, output=output, checkpoint=checkpoint, finished=_parts(folder) == PARTS
    )
    return Outcome(resumed, batches, count, rows, wrong)


def _log(spark: SparkSession, folder: Path, name: str) -> Table:
    return Table.from_files(
        spark,
        folder / name,
        key=_KEYS[name],
        version="lsn",
        deleted="op = 'd'",
        timestamp="at",
        schema=_SCHEMAS[name],
        format="json",
        options={"maxFilesPerTrigger": 1},
    )


def _land(folder: Path) -> int:
    """Put the next parts of both logs where the sources look; how many."""
    done = _parts(folder)
    until = FIRST_RUN if done < FIRST_RUN else PARTS
    for name in _KEYS:
        lines = gzip.decompress(resources.files("fkjoin.data").joinpath(f"{name}.jsonl.gz").read_bytes()).splitlines(True)
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for part in range(done, until):
            cut = lines[part * len(lines) // PARTS : (part + 1) * len(lines) // PARTS]
            draft = folder / f".{name}-{part}"
            draft.write_bytes(b"".join(cut))
            os.utime(draft, (time.time() + part, time.time() + part))
            draft.replace(place / f"part-{part}.json")
    return until - done


def _parts(folder: Path) -> int:
    """The number of parts that are there; a part counts once both logs have it."""
    return min(len(list((folder / name).glob("part-*.json"))) for name in _KEYS)


def _follow(query: StreamingQuery, expected: int, console: Console) -> tuple[int, Counter[str]]:
    """Wait for the query with a progress bar; its batches and counters."""
    seen: dict[int, Counter[str]] = {}
    columns = (TextColumn("micro-batches"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("batches", total=expected)
        while query.isActive:
            query.awaitTermination(1)
            seen |= _metrics(query, max(seen, default=-1))
            progress.update(bar, completed=len(seen))
        seen |= _metrics(query, max(seen, default=-1))
        progress.update(bar, completed=len(seen))
    if (error := query.exception()) is not None:
        raise error
    return len(seen), sum(seen.values(), Counter[str]())


def _metrics(query: StreamingQuery, since: int) -> dict[int, Counter[str]]:
    """The counters of the batches after ``since``."""
    found: dict[int, Counter[str]] = {}
    for progress in progress_since(query, since):
        metrics = progress.observedMetrics.get(metrics_name(_NAME))
        if metrics is not None:
            found[progress.batchId] = Counter({name: value or 0 for name, value in metrics.asDict().items()})
    return found


def _table(changes: DataFrame) -> DataFrame:
    """The joined table that the changes lead to."""
    newest = Window.partitionBy("order_id").orderBy(F.desc("_left_version"), F.desc_nulls_last("_right_version"))
    last = changes.withColumn("place", F.row_number().over(newest)).where("place = 1 and _operation <> 'delete'")
    return last.select("order_id", "left.customer_id", "left.amount", "left.status", "right.name", "right.tier")


def _batch_join(spark: SparkSession, folder: Path) -> DataFrame:
    """Join the final tables by Spark SQL."""
    for name, key in _KEYS.items():
        spark.read.schema(_SCHEMAS[name]).json(str(folder / name)).createOrReplaceTempView(f"{name}_log")
        spark.sql(
            f"select * from (select *, row_number() over (partition by {key} order by lsn desc) as place "
            f"from {name}_log) where place = 1 and op <> 'd'"
        ).createOrReplaceTempView(name)
    return spark.sql("select order_id, customer_id, amount, status, name, tier from orders join customers using (customer_id)")


def _report(
    console: Console,
    found: DataFrame,
    count: Counter[str],
    *,
    rows: int,
    wrong: int,
    output: Path,
    checkpoint: Path,
    finished: bool,
) -> None:
    sample = found.orderBy("order_id").limit(8)
    grid = Grid(title="The joined table, its first rows")
    for column in sample.columns:
        grid.add_column(column)
    for row in sample.collect():
        grid.add_row(*(str(value) for value in row))
    console.print(grid)
    numbers = Grid(title="Counters of this run")
    numbers.add_column("counter")
    numbers.add_column("total", justify="right")
    for name in counters.ALL:
        numbers.add_row(name, f"{count[name]:,}")
    console.print(numbers)
    console.print(f"output      {output}  (Parquet, a change a row)", highlight=False, soft_wrap=True)
    console.print(f"checkpoint  {checkpoint}", highlight=False, soft_wrap=True)
    verdict = (
        f"[green]equal[/] to it: {rows:,} rows"
        if not wrong
        else f"[red]NOT equal[/] to it: {wrong:,} of {rows:,} keys are wrong"
    )
    console.print(f"A batch join by Spark SQL over the final tables: the streamed table is {verdict}.")
    hint = "All parts are read; delete the folder to begin again." if finished else "Run it again: it goes on from here."
    console.print(hint, style="dim")
