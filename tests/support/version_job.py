"""A job that each version of Spark runs, as a program: ``python -m tests.support.version_job FOLDER``.

A child sums up the ``History`` in FOLDER, a file of each table in a batch, and is killed in the second batch, before that is
committed.  The program then repeats that batch, reads the state back, and prints as JSON what it found,
and how a change of its partitions was refused.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin import FkJoinError, fk_join, read_state, session
from fkjoin import aggregates as agg
from fkjoin.checkpoint.upkeep import rescale
from fkjoin.sessions.settings import SHORT_LIVED
from tests.support.orders import tables
from tests.support.sessions import small

CRASH = 1
"""The batch."""


def sum_up(spark: SparkSession, folder: Path, crash: bool = False) -> None:
    """Write each batch's results to ``out/BATCH.jsonl`` until all is read."""
    orders, customers = tables(spark, folder, options={"maxFilesPerTrigger": "1"})
    joined = fk_join(orders, customers, "customer_id", name="joined").materialize("joined")
    regions = joined.group_by("right.region", name="regions")
    table = regions.agg(orders=agg.count(), revenue=agg.sum("left.amount"), most=agg.max("left.items"))
    (folder / "out").mkdir(exist_ok=True)

    def write(frame: DataFrame, batch: int) -> None:
        lines = [line for (line,) in frame.select(F.to_json(F.struct("*"))).collect()]
        if crash and batch == CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "out" / f"{batch:03d}.jsonl").write_text("\n".join(lines))

    query = table.changes.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


def summed(folder: Path) -> dict[Any, tuple[Any, ...]]:
    """The table that the written results lead to."""
    found: dict[Any, tuple[Any, ...]] = {}
    for file in sorted((folder / "out").iterdir()):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if row["_operation"] == "delete":
                del found[(row["region"],)]
            else:
                revenue = row.get("revenue")
                found[(row["region"],)] = row["orders"], None if revenue is None else round(revenue, 9), row.get("most")
    return found


def read_back(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Each joined order's items and region, by order."""
    rows = read_state(spark, folder / "checkpoint", "joined").collect()
    return {row["order_id"]: {"items": row["left"]["items"], "region": row["right"]["region"]} for row in rows}


def begun(folder: Path) -> SparkSession:
    here: Any = {"ui_enabled": "false", "driver_host": "127.0.0.1", "driver_extraJavaOptions": SHORT_LIVED}
    spark = session("versions", "local[2]", **here)
    small(spark, folder, buckets=2, partitions=2, validate=True)
    return spark


def crash(folder: Path) -> None:
    sum_up(begun(folder), folder, crash=True)


def main(folder: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=crash, args=(folder,))  # it has its imports from here
    child.start()
    child.join()
    found = {"crashed": child.exitcode, "written": sorted(file.name for file in (folder / "out").iterdir())}
    spark = begun(folder)
    sum_up(spark, folder)
    found |= {"version": spark.version, "read": read_back(spark, folder)}
    try:
        rescale(spark, folder / "checkpoint", 2)
    except FkJoinError as error:
        found["rescaled"] = str(error)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
