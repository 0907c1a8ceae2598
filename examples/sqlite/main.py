"""Orders with their customers → a table in SQLite, by the sink in ``sqlite_sink.py``."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlite_sink import Sqlite

import fkjoin
from fkjoin import Table, fk_join

FILES = Path(__file__).parent.parent / "orders"
OUT = Path("build/examples/sqlite")


def main() -> None:
    spark = fkjoin.session("sqlite", master="local[2]", sql_shuffle_partitions=2, ui_enabled="false")
    spark.sparkContext.setLogLevel("ERROR")
    orders = Table.from_files(spark, FILES / "orders", key="order_id", version="lsn", deleted="op = 'd'")
    customers = Table.from_files(spark, FILES / "customers", key="customer_id", version="lsn", deleted="op = 'd'")
    joined = fk_join(orders, customers, "customer_id", how="left", joiner=["left.amount", "right.name"], name="joined")
    OUT.mkdir(parents=True, exist_ok=True)
    sink = Sqlite(OUT / "shop.db", "joined")
    joined.to_sink(sink, checkpoint=OUT / "checkpoint", trigger="available-now").awaitTermination()
    with closing(sqlite3.connect(OUT / "shop.db")) as db:
        print(*db.execute("select * from joined order by order_id"), sep="\n")
    spark.stop()


if __name__ == "__main__":
    main()
