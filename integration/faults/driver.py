"""A job that may crash anywhere: ``python -m integration.faults.driver CONFIG.json``.

CONFIG has ``master``, ``folder``, ``conf`` and ``job``.  The driver reads the growing logs under FOLDER, and
writes each batch's results to FOLDER/out/BATCH.jsonl, whole or not at all.  ``job`` is one of these:

- ``joined``: orders with their customers, in one query with windows of the orders;
- ``summed``: the orders of each customer that is there, counted and summed up;
- ``star``: orders with the customers that two foreign keys name;
- ``enriched``: each line of the log of orders with the number of rows that its customer has, one or none.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fkjoin import Table, fk_join, session, window
from fkjoin.aggregates import count
from fkjoin.aggregates import max as largest
from fkjoin.aggregates import sum as sum_of
from fkjoin.plan.physical import InWorkers, below
from integration.faults.victims import DRIVER_FILE, Packing, crash_if_told, take_the_place_of_the_engines

ORDERS = "o string, c string, payer string, amount bigint, op string, seq bigint"
CUSTOMERS = "c string, name string, op string, seq bigint"


OF_WINDOWS = ["_operation", "concat(unix_seconds(window_start), ' ', c)", "total", "string(n)"]
"""Windows' rows under the columns of the join: their begin and customer, sum, and count."""


def windows(spark: SparkSession, folder: Path, about: dict[str, Any]) -> Table:
    """Windows of twenty lines' numbers, as seconds, by customer."""
    schema, timestamp = f"{ORDERS}, at bigint", "timestamp_seconds(seq)"
    orders = Table.from_files(spark, folder, key="o", schema=schema, timestamp=timestamp, name="timed", **about)
    key = [window("timestamp_seconds(at)", "20 seconds"), "c"]
    grouped = orders.group_by(key, name="windows", emit="on-close", idle="1 minute")
    return grouped.agg(n=count(), total=sum_of("amount"))


def packing(function: Any) -> Any:
    """Return what packs the rows that a function of workers reads."""
    return packing(function.pack) if hasattr(function, "pack") else function


def main(config: dict[str, Any]) -> None:
    folder = Path(config["folder"])
    Path(os.environ["FKJOIN_FAULT"]).with_name(DRIVER_FILE).write_text(str(os.getpgid(0)))
    take_the_place_of_the_engines()
    spark = session("faults", master=config["master"], settings=config["conf"])
    spark.sparkContext.setLogLevel("ERROR")
    about: dict[str, Any] = {"version": "seq", "deleted": "op = 'd'", "format": "json"}
    orders = Table.from_files(spark, folder / "orders", key="o", schema=ORDERS, **about)
    customers = Table.from_files(spark, folder / "customers", key="c", schema=CUSTOMERS, **about)
    joined = fk_join(orders, customers, "c", how="left", name="faults")
    columns = ["_operation as op", "o", "left.amount", "right.name"]
    if config["job"] == "star":
        joined = fk_join(joined, customers, "left.payer", how="left", name="star")
        columns = ["_operation as op", "o", "left.left.amount", "left.right.name", "right.name as payer"]
    if config["job"] == "summed":
        inner = fk_join(orders, customers, "c", name="faults")
        grouped = inner.group_by("left.c", name="sums")
        joined = grouped.agg(orders=count(), amount=sum_of("left.amount"), largest=largest("left.amount"))
        columns = ["_operation as op", "c", "orders", "amount", "largest"]
    functions = [packing(node.function) for node in below(joined._plan.top) if isinstance(node, InWorkers)]
    assert any(isinstance(function, Packing) for function in functions), "no fault happens at the points of the reading side"
    changes = joined.changes
    if config["job"] == "joined":
        of_windows = windows(spark, folder / "orders", about).changes.selectExpr(*OF_WINDOWS)
        changes, columns = changes.selectExpr(*columns).unionAll(of_windows), ["*"]
    if config["job"] == "enriched":
        counted = customers.group_by("c", name="counted").agg(n=count())
        lines = spark.readStream.schema(ORDERS).json(str(folder / "orders"))
        changes = counted.enrich(lines.withColumnRenamed("c", "buyer"), "buyer", "left", "enriched").events
        columns = ["seq", "n"]
    out = folder / "out"
    out.mkdir(exist_ok=True)

    def write(frame: DataFrame, batch: int) -> None:
        lines = frame.selectExpr(*columns).toJSON().collect()
        crash_if_told("sink write", "before")
        draft = folder / "out.draft"
        draft.write_text("\n".join(lines))
        draft.rename(out / f"{batch:06d}.jsonl")
        crash_if_told("sink write", "after")

    query = changes.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(processingTime="100 milliseconds").start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
