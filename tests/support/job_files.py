"""A job file that is right, and rows for its tables."""

from __future__ import annotations

from pathlib import Path

from fkjoin.checkpoint.begun import JobFacts
from fkjoin.jobs.job import Job
from tests.support.queries import write_lines

GOOD = """
name = "orders"
checkpoint = "{folder}/checkpoint"
trigger = "available-now"
log = "{folder}/job.log"
[spark]
"spark.master" = "local[2]"
"spark.ui.enabled" = false
"spark.sql.shuffle.partitions" = 1
"spark.fkjoin.index.dir" = "{folder}/index"
"spark.driver.extraJavaOptions" = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"
[tables.orders]
path = "{folder}/orders"
key = "id"
version = "lsn"
deleted = "op = 'd'"
[tables.customers]
path = "{folder}/customers"
key = "customer"
version = "lsn"
[joins.joined]
left = "orders"
right = "customers"
extractor = "customer"
joiner = ["left.amount", "right.name"]
[sinks.out]
table = "joined"
path = "{folder}/out"
[kafka]
bootstrap_servers = "localhost:1"
"""
PLAIN = GOOD.replace("deleted = \"op = 'd'\"\n", "")
"""For rows without a column ``op``, as ``write_rows`` writes them."""


def job(tmp_path: Path, text: str) -> Path:
    """Write a job file into the folder that it is about."""
    path = tmp_path / "job.toml"
    path.write_text(text.replace("{folder}", str(tmp_path)))
    return path


def write_rows(folder: Path) -> None:
    """Give each table of the job file a row: an order, and its customer."""
    write_lines(folder / "orders", "1", [{"id": "o1", "customer": "c1", "amount": 5, "lsn": 1}])
    write_lines(folder / "customers", "1", [{"customer": "c1", "name": "Ada", "lsn": 1}])


def run_queries(built: Job, *, at_once: bool = False) -> None:
    """Run a job's queries to their ends, with a document of the job as ``fkjoin run`` writes one."""
    built.begun.job = JobFacts([])
    built.begun.write(built._spark, built.spec.checkpoint)
    running = []
    for planned in built.queries():
        running.append(planned.start())
        if not at_once:
            running[-1].awaitTermination()
    for query in running:
        query.awaitTermination()
