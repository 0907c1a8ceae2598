"""``fkjoin demo``: bundled logs of orders and customers on Spark, checked by a batch join."""

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
from rich.table import Column
from rich.table import Table as Grid

from fkjoin.checkpoint.progress import progress_since
from fkjoin.join import fk_join
from fkjoin.metrics import Metrics
from fkjoin.sessions.settings import INDEX_DIR, SHORT_LIVED, session
from fkjoin.stages import counters
from fkjoin.table import Table

PARTS, FIRST_RUN = 8, 6
"""The logs are cut into parts, one a micro-batch; the first run reads six, later runs the rest."""

_OF_CHANGES = "op string, lsn bigint, at timestamp"
_SCHEMAS = {
    "orders": f"order_id string, customer_id string, amount double, status string, {_OF_CHANGES}",
    "customers": f"customer_id string, name string, tier string, {_OF_CHANGES}",
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
    """Run the demo in ``folder``; a wrong result is counted in ``Outcome.wrong``, by key."""
    folder = folder.absolute()
    checkpoint, output = folder / "checkpoint", folder / "joined"
    resumed = (checkpoint / "commits").is_dir()
    landed = _land(folder)
    title = f"Joins orders with customers in {folder}; {landed}"
    if resumed:
        title = "[bold]Continues from the checkpoint[/] of an earlier run "
        title += f"in {checkpoint}; {landed} new"
    console.print(f"{title} parts of the change logs.")
    spark = spark or session("fkjoin demo", driver_extraJavaOptions=SHORT_LIVED)
    spark.conf.set(INDEX_DIR, str(folder / "index"))
    logs = {name: _log(spark, folder, name) for name in _KEYS}
    joined = fk_join(logs["orders"], logs["customers"], "customer_id", name=_NAME)
    console.print(joined.describe(), style="dim", markup=False, highlight=False)
    writer = joined.changes.writeStream.format("parquet").option("path", str(output))
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    batches, count = _follow(query, landed, console)
    streamed, wanted = _table(spark.read.parquet(str(output))), _batch_join(spark, folder)
    differing = [streamed.exceptAll(wanted), wanted.exceptAll(streamed)]
    keys = [frame.select("order_id") for frame in differing]
    wrong, rows = keys[0].union(keys[1]).distinct().count(), wanted.count()
    _show(console, streamed, count)
    console.print(
        f"output      {output}  (Parquet, one row for each change)", highlight=False, soft_wrap=True
    )
    console.print(f"checkpoint  {checkpoint}", highlight=False, soft_wrap=True)
    verdict = f"[green]equal[/] to it: {rows:,} rows"
    if wrong:
        verdict = f"[red]NOT equal[/] to it: {wrong:,} of {rows:,} keys are wrong"
    sentence = "A batch join by Spark SQL over the final tables: the streamed table is"
    console.print(f"{sentence} {verdict}.")
    hint = "Run the demo again: it continues from here."
    if _parts(folder) == PARTS:
        hint = "All parts were read; delete the folder to start over."
    console.print(hint, style="dim")
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
        packed = resources.files("fkjoin.data").joinpath(f"{name}.jsonl.gz").read_bytes()
        lines, target = gzip.decompress(packed).splitlines(True), folder / name
        target.mkdir(parents=True, exist_ok=True)
        for part in range(done, until):
            cut = lines[part * len(lines) // PARTS : (part + 1) * len(lines) // PARTS]
            draft = folder / f".{name}-{part}"
            draft.write_bytes(b"".join(cut))
            os.utime(draft, (time.time() + part, time.time() + part))
            draft.replace(target / f"part-{part}.json")
    return until - done


def _parts(folder: Path) -> int:
    """The number of parts that are there; a part counts once both logs have it."""
    return min(len(list((folder / name).glob("part-*.json"))) for name in _KEYS)


def _follow(query: StreamingQuery, expected: int, console: Console) -> tuple[int, Counter[str]]:
    """Wait for the query with a progress bar; its batches and counters."""
    metrics, ended = Metrics(), False
    report = metrics._query(query.id)
    columns = (TextColumn("micro-batches"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("batches", total=expected)
        while not ended:
            ended = bool(query.awaitTermination(1))  # which throws the error of a query that fails
            for batch in progress_since(query, report.batch.get("batch", -1)):
                metrics.take(batch)
            progress.update(bar, completed=report.batches)
    return report.batches, Counter(report.totals.get(_NAME, {}))


def _table(changes: DataFrame) -> DataFrame:
    """The joined table that the changes lead to."""
    newest_first = F.desc("_left_version"), F.desc_nulls_last("_right_version")
    rank = F.row_number().over(Window.partitionBy("order_id").orderBy(*newest_first))
    last = changes.withColumn("place", rank).where("place = 1 and _operation <> 'delete'")
    left = "left.customer_id", "left.amount", "left.status"
    return last.select("order_id", *left, "right.name", "right.tier")


def _batch_join(spark: SparkSession, folder: Path) -> DataFrame:
    """Join the final tables by Spark SQL."""
    for name, key in _KEYS.items():
        log = spark.read.schema(_SCHEMAS[name]).json(str(folder / name))
        log.createOrReplaceTempView(f"{name}_log")
        rank = f"row_number() over (partition by {key} order by lsn desc) as place"
        newest = f"select * from (select *, {rank} from {name}_log) where place = 1 and op <> 'd'"
        spark.sql(newest).createOrReplaceTempView(name)
    columns = "order_id, customer_id, amount, status, name, tier"
    return spark.sql(f"select {columns} from orders join customers using (customer_id)")


def _show(console: Console, joined: DataFrame, count: Counter[str]) -> None:
    sample = joined.orderBy("order_id").limit(8)
    grid = Grid(*sample.columns, title="The joined table, its first rows")
    for row in sample.collect():
        grid.add_row(*(str(value) for value in row))
    console.print(grid)
    total = Column("total", justify="right")
    numbers = Grid("counter", total, title="Counters of this run")
    for name in counters.ALL:
        numbers.add_row(name, f"{count[name]:,}")
    console.print(numbers)
