"""Change events as Debezium writes them, here from files (``fkjoin.kafka.Debezium`` is for topics) → the joined table."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import fkjoin
from fkjoin import Table, fk_join

HERE = Path(__file__).parent
OUT = Path("build/examples/debezium")


def table(spark: SparkSession, name: str, row: str) -> Table:
    """The table whose events are in the folder ``name``; the log's position is the version."""
    event = f"op string, before struct<{row}>, after struct<{row}>, source struct<lsn: bigint>, ts_ms bigint"
    events = spark.readStream.schema(event).json(str(HERE / name))
    rows = events.selectExpr("coalesce(after, before) as row", "op", "source.lsn as lsn", "timestamp_millis(ts_ms) as at")
    return Table.from_stream(
        rows.select("row.*", "op", "lsn", "at"), key="id", version="lsn", deleted="op = 'd'", timestamp="at", name=name
    )


def main() -> None:
    spark = fkjoin.session("debezium", master="local[2]", sql_shuffle_partitions=2, ui_enabled="false")
    spark.sparkContext.setLogLevel("ERROR")
    orders = table(spark, "orders", "id: bigint, customer_id: bigint, amount: double")
    customers = table(spark, "customers", "id: bigint, name: string")
    joined = fk_join(orders, customers, extractor="customer_id", joiner=["left.amount", "right.name"], name="joined")
    checkpoint = OUT / "checkpoint"
    query = joined.materialize("joined").to_parquet(OUT / "changes", checkpoint=checkpoint, trigger="available-now")
    query.awaitTermination()
    fkjoin.read_state(spark, checkpoint, "joined").select("id", "amount", "name", "_timestamp").orderBy("id").show(
        truncate=False
    )
    spark.stop()


if __name__ == "__main__":
    main()
