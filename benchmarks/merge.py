"""A joined Delta table kept up to date by MERGE in ``foreachBatch``, and by fkjoin, in turn, and compared with a batch join.

After ``make environments``, since PySpark 4.3 lacks Delta's connector:
    PYTHONPATH=. .venv-4.0/bin/python -m benchmarks.merge [--rounds 3] [--left 100000] [--batch 20000]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import fkjoin
from benchmarks.compare import RATE, Runs, summary_lines
from benchmarks.memory import Footprint
from benchmarks.workload import write_batches
from fkjoin import Table
from fkjoin.analysis.delta_feed import SETTINGS

ORDERS = "order_id string, customer_id string, amount double, lsn bigint, gone boolean"
CUSTOMERS = "customer_id string, name string, tier string, lsn bigint, gone boolean"


def upsert(changes: DataFrame, table: str, key: str) -> None:
    newest = Window.partitionBy(key).orderBy(F.desc("lsn"))
    rows = changes.withColumn("n", F.row_number().over(newest)).where("n = 1")
    rows.createOrReplaceTempView(f"new_{table}")
    changes.sparkSession.sql(f"""
        MERGE INTO {table} t USING new_{table} s ON t.{key} = s.{key}
        WHEN MATCHED AND s.lsn > t.lsn THEN UPDATE SET *
        WHEN NOT MATCHED THEN INSERT *""")


def merge_batch(batch: DataFrame, batch_id: int) -> None:
    batch.persist()
    upsert(batch.where("order_id IS NOT NULL"), "orders", "order_id")
    upsert(batch.where("order_id IS NULL"), "customers", "customer_id")
    batch.sparkSession.sql("""
        MERGE INTO joined t USING (
          SELECT o.*, c.name, c.tier, o.gone OR c.gone IS NOT FALSE AS no_row
          FROM orders o LEFT JOIN customers c ON o.customer_id = c.customer_id
          WHERE o.order_id IN (SELECT order_id FROM new_orders)
             OR o.customer_id IN (SELECT customer_id FROM new_customers)
        ) s ON t.order_id = s.order_id
        WHEN MATCHED AND s.no_row THEN DELETE
        WHEN MATCHED THEN UPDATE SET *
        WHEN NOT MATCHED AND NOT s.no_row THEN INSERT *""")
    batch.unpersist()


def merge_job(spark: SparkSession, lake: str) -> StreamingQuery:
    files = spark.readStream.option("maxFilesPerTrigger", 1)
    orders = files.schema(ORDERS).json(f"{lake}/orders")
    customers = files.schema(CUSTOMERS).json(f"{lake}/customers")
    both = orders.unionByName(customers, allowMissingColumns=True)
    query = both.writeStream.foreachBatch(merge_batch)
    return query.option("checkpointLocation", f"{lake}/ck").start()


def fkjoin_job(spark: SparkSession, lake: str) -> StreamingQuery:
    files = partial(Table.from_files, spark, version="lsn", deleted="gone")
    files = partial(files, options={"maxFilesPerTrigger": 1})
    orders = files(f"{lake}/orders", key="order_id", schema=ORDERS)
    customers = files(f"{lake}/customers", key="customer_id", schema=CUSTOMERS)
    columns = ["left.customer_id", "left.amount", "right.name", "right.tier"]
    joined = orders.join(customers, on="customer_id", joiner=columns)
    return joined.to_delta(f"{lake}/delta/joined", checkpoint=f"{lake}/ck")


def measure(job: str, lake: Path, left: int, batch: int) -> dict[str, Any]:
    rows, memory = write_batches(lake, left, batch), Footprint()
    memory.start()
    conf: Any = {"jars_packages": f"io.delta:delta-spark_{pyspark.__version__[:3]}_2.13:4.4.0", "driver_memory": "1g"}
    conf |= {"sql_warehouse_dir": lake / "warehouse", "fkjoin_index_dir": lake / "index"}
    spark = fkjoin.session("merge", "local[2]", SETTINGS | {"spark.databricks.delta.snapshotPartitions": "2"}, **conf)
    joined = "order_id string, customer_id string, amount double, name string, tier string"
    for name, columns in (("orders", ORDERS), ("customers", CUSTOMERS), ("joined", joined)) if job == "merge" else ():
        spark.sql(f"CREATE TABLE {name} ({columns}) USING delta LOCATION '{lake}/delta/{name}'")
    query = (fkjoin_job if job == "fkjoin" else merge_job)(spark, str(lake))
    query.processAllAvailable()
    begun = time.perf_counter()
    for path in sorted(lake.glob("later/*/*"), key=lambda path: path.name):
        path.replace(lake / path.parent.name / path.name)
    query.processAllAvailable()
    rate, peak = round((left + left * 2 // 5) / (time.perf_counter() - begun)), memory.stop()
    if sorted(map(tuple, spark.read.format("delta").load(f"{lake}/delta/joined").collect())) != sorted(rows):
        raise SystemExit(f"{job}: the table is not the batch join")
    spark.stop()
    return {"engine": job, RATE: rate, **peak.named()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for size, default in (("rounds", 3), ("left", 100_000), ("batch", 20_000)):
        parser.add_argument(f"--{size}", type=int, default=default)
    parser.add_argument("--only", choices=["fkjoin", "merge"], help="one run, in this process")
    given = parser.parse_args()
    if given.only:
        with tempfile.TemporaryDirectory(prefix="fkjoin-merge-") as folder:
            print(json.dumps(measure(given.only, Path(folder), given.left, given.batch)))
        return
    runs: Runs = {"fkjoin": [], "merge": []}
    command = [sys.executable, "-m", "benchmarks.merge", "--left", str(given.left), "--batch", str(given.batch), "--only"]
    for job in [*runs] * given.rounds:
        runs[job].append(json.loads(subprocess.check_output([*command, job], text=True).splitlines()[-1]))
        print(json.dumps(runs[job][-1]), flush=True)
    print("\n".join(summary_lines(runs, given.left * 1.6 / 1e6)))


if __name__ == "__main__":
    main()
