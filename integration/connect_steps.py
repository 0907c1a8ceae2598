"""Steps of a client of a Spark Connect server: functions with arguments and a result that are JSON."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import fkjoin
from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.checkpoint.upkeep import rebuild, rescale, verify
from fkjoin.jobs.job_sections import JobSection, SparkSection
from fkjoin.jobs.runner import job_session
from fkjoin.kafka import Json
from fkjoin.metrics import Metrics, watch
from fkjoin.sessions.settings import TIME_ZONE
from fkjoin.sinks import Delta, Iceberg, Kafka, Parquet, Postgres, Sink
from fkjoin.storage import worker_files
from fkjoin.testing import Driver
from tests.support.orders import tables
from tests.support.sinks import lake


def _joined(spark: SparkSession, folder: str) -> Table:
    joiner = ["left.items", "right.region"]
    return fk_join(*tables(spark, Path(folder)), extractor="customer_id", joiner=joiner, name="joined")


def _by_region(spark: SparkSession, folder: str) -> Table:
    orders, customers = tables(spark, Path(folder))
    joined = fk_join(orders, customers, extractor="customer_id", joiner=["left.amount", "left.items", "right.region"])
    placed = joined.filter("region is not null").materialize("placed")
    return placed.group_by("region").agg(orders=agg.count(), revenue=agg.sum("amount"), largest=agg.max("items"))


_TABLES = {"joined": _joined, "by_region": _by_region}


def write(spark: SparkSession, table: str, folder: str, checkpoint: str, **places: str) -> str:
    """Write what there is of the table to some places: ``parquet``, ``delta``, a folder with a catalog for ``iceberg``.

    What the query then shows is returned.
    """
    iceberg = functools.partial(Iceberg, f"shop.{table}")
    sinks: dict[str, Any] = {
        "parquet": Parquet,
        "delta": Delta,
        "iceberg": lambda where: iceberg(options=lake(Path(where))),
    }
    made: list[Sink] = [sinks[name](where) for name, where in places.items()]
    query = _TABLES[table](spark, folder).to(*made, checkpoint=checkpoint, trigger="available-now")
    query.awaitTermination()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        query.show()
    return shown.getvalue()


def another_job(spark: SparkSession, table: str, folder: str, checkpoint: str, delta: str, zone: str = "UTC") -> str:
    """Start a query on a checkpoint that another table or time zone has begun; return what the error says."""
    before = str(spark.conf.get(TIME_ZONE))
    spark.conf.set(TIME_ZONE, zone)
    try:
        _TABLES[table](spark, folder).to(Delta(delta), checkpoint=checkpoint)
    except fkjoin.FkJoinError as error:
        return str(error)
    finally:
        spark.conf.set(TIME_ZONE, before)
    return "started"


def topics(spark: SparkSession, brokers: str, checkpoint: str, dsn: str) -> None:
    """Join two topics into a third one, and a PostgreSQL table."""
    orders = Table.from_kafka(spark, "it-orders", brokers, key="string", value=Json("customer string, items int"))
    customers = Table.from_kafka(spark, "it-customers", brokers, key="string", value=Json("name string"), name="customers")
    joined = fk_join(orders, customers, F.col("customer"), joiner=["left.items", F.upper("right.name").alias("name")])
    query = joined.to(Kafka("it-joined", brokers), Postgres("shop.it", dsn), checkpoint=checkpoint, trigger="available-now")
    query.awaitTermination()


def follow(spark: SparkSession, folder: str, checkpoint: str, path: str) -> None:
    """Keep a Delta table up to date until the client ends; return when all that was there is read."""
    query = _joined(spark, folder).to_delta(path, checkpoint=checkpoint)
    query.processAllAvailable()


def delta(spark: SparkSession, path: str, key: str) -> dict[str, Any]:
    """The rows of a Delta table, by their key."""
    from deltalake import DeltaTable

    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return {row.pop(key): row for row in rows}


def state(spark: SparkSession, checkpoint: str, name: str, key: str) -> dict[str, Any]:
    """The rows of a table that was materialized, by their key."""
    rows = (row.asDict() for row in fkjoin.read_state(spark, checkpoint, name).collect())
    return {row.pop(key): {name: value for name, value in row.items() if name[0] != "_"} for row in rows}


def throwing(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Keep rows of folders, and leave out those on which expressions throw; both are returned."""
    about: dict[str, Any] = {"key": "id", "version": "lsn", "deleted": "op = 'd'"}
    table = Table.from_files(spark, f"{folder}/in", name="rows", **about)
    seen = table.filter("100 div n >= 10").map_values(["id", "100 div n as share", "length"]).materialize("seen")
    seen.to_parquet(f"{folder}/out", checkpoint=f"{folder}/ck", trigger="available-now").awaitTermination()
    dead = seen.dead_letters
    assert dead is not None
    query = dead.writeStream.format("json").option("checkpointLocation", f"{folder}/ck-dead").start(f"{folder}/dead")
    query.processAllAvailable()
    query.stop()
    rows = spark.read.parquet(f"{folder}/out").collect()
    letters = spark.read.schema("reason string").json(f"{folder}/dead").collect()
    return {
        "rows": {row.id: [row.share, row.length] for row in rows},
        "letters": sorted(row.reason for row in letters),
        "described": seen.describe(),
    }


def refused(spark: SparkSession, folder: str, address: str) -> dict[str, str]:
    """Collect what calls say that a Spark Connect session cannot do."""
    orders, customers = tables(spark, Path(folder))
    groups = orders.group_by("customer_id", value="amount")
    of_topics: Any = {"key": "string", "value": "string"}
    remote = JobSection.model_construct(name="job", spark=SparkSection.model_validate({"spark.remote": address}))
    calls: dict[str, Any] = {
        "adder": lambda: groups.aggregate(0.0, "aggregate + amount", "aggregate - amount"),
        "preview": orders.preview,
        "window": lambda: orders.group_by([fkjoin.window("timestamp_seconds(items)", "1 hour")], emit="on-close").count(),
        "driver": lambda: Driver(orders),
        "start-over": lambda: Table.from_kafka(spark, "t", "b:1", on_new_topic="start-over", **of_topics),
        "staged": lambda: fk_join(orders, customers, "customer_id", deployment="staged"),
        "staged aggregate": lambda: orders.group_by("customer_id", deployment="staged").count(),
        "verify": lambda: verify(spark, f"{folder}/ck"),
        "rebuild": lambda: rebuild(spark, f"{folder}/ck", folder),
        "rescale": lambda: rescale(spark, f"{folder}/ck", 1),
        "relative": lambda: orders.to_parquet("out", checkpoint="ck"),
        "master": lambda: fkjoin.session(remote=address, master="local[2]"),
        "setting": lambda: fkjoin.session(remote=address, driver_memory="1g"),
        "job": lambda: job_session(remote),
        "job here": lambda: job_session(JobSection.model_construct(name="job", spark=SparkSection())),
        "address": lambda: fkjoin.session(remote="spark:15002"),
        "two": lambda: fkjoin.session(remote="sc://127.0.0.1:1"),
        "kafka": lambda: fkjoin.session(remote=address, kafka=True),
        "kafka here": lambda: fkjoin.session(kafka=True),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except fkjoin.FkJoinError as error:
            found[name] = str(error)
    return found


def not_refused(spark: SparkSession, folder: str) -> None:
    """Go the ways out that those errors name, where they are calls that a query need not run for."""
    orders, customers = tables(spark, Path(folder))
    groups = orders.group_by("customer_id", value="amount")
    groups.aggregate(0.0, lambda _, amount, total: total + amount, lambda _, amount, total: total - amount)
    Table.from_kafka(spark, "t", "b:1", key="string", value="string")
    fk_join(orders, customers, "customer_id")
    orders.group_by("customer_id").count()
    orders.group_by("timestamp_seconds(items - items % 3600)").count()


def session_here(spark: SparkSession, address: str) -> list[bool]:
    """Make sessions without an address, as in a notebook of a service; tell whether each is this one, with new settings."""
    before, found = spark.conf.get("spark.fkjoin.buckets"), []
    for number, environment in enumerate([{}, {"SPARK_REMOTE": address}, {"SPARK_REMOTE": "unix:///run/service.sock"}]):
        os.environ.update(environment)
        made = fkjoin.session(fkjoin_buckets=number + 3)
        found.append(made is spark and spark.conf.get("spark.fkjoin.buckets") == str(number + 3))
    del os.environ["SPARK_REMOTE"]
    spark.conf.set("spark.fkjoin.buckets", str(before))
    return found


def elsewhere(spark: SparkSession) -> None:
    """Have this client see none of the server's files, as if it were on another machine."""
    worker_files._shares_a_machine = lambda _: False


_watched: list[Metrics] = []


def watched(spark: SparkSession) -> dict[str, Any]:
    """Return what the queries of this session say, from the first call on."""
    if not _watched:
        _watched.append(watch(spark))
    return _watched[0].snapshot()


def main(address: str, folder: str) -> None:
    """Do each line of the input, one after the other; what else is printed goes to the log."""
    out, sys.stdout = sys.stdout, sys.stderr

    @functools.cache
    def session() -> SparkSession:
        return fkjoin.session(remote=address, fkjoin_buckets=2, fkjoin_index_dir=f"{folder}/index")

    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said = {"returned": globals()[asked["step"]](session(), **asked["given"])}
        except Exception as error:
            said = {"error": f"{traceback.format_exc(limit=-5)[:3000]} ... {str(error)[:3000]}"}
        out.write(json.dumps(said) + "\n")
        out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
