"""Steps of a client of a Spark Connect server, which a process of its own does, one after the other."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import re
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
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
from fkjoin.sinks import Delta, Kafka, Postgres, Sink
from fkjoin.storage import worker_files
from fkjoin.testing import Driver
from tests.support.orders import tables
from tests.support.sinks import finished

Client = Callable[..., Any]
"""Does a step with these arguments after the session, and returns its result."""

_connect: Callable[[], SparkSession]


def _begin(address: str, folder: Path) -> None:
    global _connect
    settings: dict[str, Any] = {"fkjoin_buckets": 2, "fkjoin_index_dir": f"{folder}/index"}
    _connect = functools.cache(functools.partial(fkjoin.session, remote=address, **settings))


def _do(step: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    try:
        return step(_connect(), *arguments, **more)
    except Exception:  # of a class that may not be sent
        raise AssertionError(traceback.format_exc()) from None


@contextlib.contextmanager
def client(address: str, folder: Path) -> Iterator[Client]:
    """A process with a session at a server, killed in the end."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (address, folder)) as pool:
        process = pool.submit(os.getpid).result()
        try:
            yield lambda step, *arguments, **more: pool.submit(_do, step, *arguments, **more).result()
        finally:
            os.kill(process, signal.SIGKILL)


def _joined(spark: SparkSession, folder: Path) -> Table:
    joiner = ["left.items", "right.region"]
    return fk_join(*tables(spark, folder), extractor="customer_id", joiner=joiner, name="joined")


def _by_region(spark: SparkSession, folder: Path) -> Table:
    orders, customers = tables(spark, folder)
    joined = fk_join(orders, customers, extractor="customer_id", joiner=["left.amount", "left.items", "right.region"])
    placed = joined.filter("region is not null").materialize("placed")
    return placed.group_by("region").agg(orders=agg.count(), revenue=agg.sum("amount"), largest=agg.max("items"))


_TABLES = {"joined": _joined, "by_region": _by_region}


def write(spark: SparkSession, table: str, folder: Path, *sinks: Sink) -> str:
    """Write what there is of the table to some places, and return what the query then shows."""
    query = finished(_TABLES[table](spark, folder).to(*sinks, checkpoint=folder / "ck", trigger="available-now"))
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        query.show()
    return shown.getvalue()


def another_job(spark: SparkSession, table: str, folder: Path, zone: str = "UTC") -> str:
    """Start a query on a checkpoint that another table or time zone has begun; return what the error says."""
    before = str(spark.conf.get(TIME_ZONE))
    spark.conf.set(TIME_ZONE, zone)
    try:
        _TABLES[table](spark, folder).to(Delta(folder / "delta"), checkpoint=folder / "ck")
    except fkjoin.FkJoinError as error:
        return str(error)
    finally:
        spark.conf.set(TIME_ZONE, before)
    return "started"


def topics(spark: SparkSession, brokers: str, checkpoint: Path, dsn: str) -> None:
    """Join two topics into a third one, and a PostgreSQL table."""
    orders = Table.from_kafka(spark, "it-orders", brokers, key="string", value=Json("customer string, items int"))
    customers = Table.from_kafka(spark, "it-customers", brokers, key="string", value=Json("name string"), name="customers")
    joined = fk_join(orders, customers, F.col("customer"), joiner=["left.items", F.upper("right.name").alias("name")])
    sinks = Kafka("it-joined", brokers), Postgres("shop.it", dsn)
    finished(joined.to(*sinks, checkpoint=checkpoint, trigger="available-now"))


def follow(spark: SparkSession, folder: Path) -> None:
    """Keep a Delta table up to date until the client ends; return when all that was there is read."""
    _joined(spark, folder).to_delta(folder / "delta", checkpoint=folder / "ck").processAllAvailable()


def state(spark: SparkSession, checkpoint: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table that was materialized."""
    return [row.asDict() for row in fkjoin.read_state(spark, checkpoint, name).collect()]


def throwing(spark: SparkSession, folder: Path) -> tuple[str, list[str]]:
    """Keep rows of folders, and leave out those on which expressions throw; return the plan, and the reasons."""
    about: dict[str, Any] = {"key": "id", "version": "lsn", "deleted": "op = 'd'"}
    table = Table.from_files(spark, folder / "in", name="rows", **about)
    seen = table.filter("100 div n >= 10").map_values(["id", "100 div n as share", "length"]).materialize("seen")
    finished(seen.to_parquet(folder / "out", checkpoint=folder / "ck", trigger="available-now"))
    dead = seen.dead_letters
    assert dead is not None
    dead = dead.writeStream.format("json").option("checkpointLocation", f"{folder}/ck-dead").trigger(availableNow=True)
    dead.start(f"{folder}/dead").awaitTermination()
    letters = spark.read.schema("reason string").json(f"{folder}/dead").collect()
    return seen.describe(), [row.reason for row in letters]


def refused(spark: SparkSession, folder: Path, address: str) -> None:
    """Assert what calls say that a Spark Connect session cannot do."""
    orders, customers = tables(spark, folder)
    groups = orders.group_by("customer_id", value="amount")
    of_topics: Any = {"key": "string", "value": "string"}
    remote = JobSection.model_construct(name="job", spark=SparkSection.model_validate({"spark.remote": address}))
    here = JobSection.model_construct(name="job", spark=SparkSection())
    key = [fkjoin.window("timestamp_seconds(items)", "1 hour")]
    classic: list[tuple[str, Callable[[], Any]]] = [
        ("adder as an expression", lambda: groups.aggregate(0.0, "aggregate + amount", "aggregate - amount")),
        ("preview", orders.preview),
        ('emit="on-close"', lambda: orders.group_by(key, emit="on-close").count()),
        ("fkjoin.testing.Driver", lambda: Driver(orders)),
        ('on_new_topic="start-over"', lambda: Table.from_kafka(spark, "t", "b:1", on_new_topic="start-over", **of_topics)),
        ('deployment="staged"', lambda: fk_join(orders, customers, "customer_id", deployment="staged")),
        ('deployment="staged"', lambda: orders.group_by("customer_id", deployment="staged").count()),
        ("verify", lambda: verify(spark, f"{folder}/ck")),
        ("rebuild", lambda: rebuild(spark, f"{folder}/ck", str(folder))),
        ("rescale", lambda: rescale(spark, f"{folder}/ck", 1)),
    ]
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("path: ck", lambda: orders.to_parquet("out", checkpoint="ck")),
        ("remote: sc://", lambda: fkjoin.session(remote=address, master="local[2]")),
        ("spark.driver.memory cannot be set in a session at", lambda: fkjoin.session(remote=address, driver_memory="1g")),
        ("spark: spark.remote: jobs need a classic session", lambda: job_session(remote)),
        ("spark: this process has Spark Connect, and jobs need a classic session", lambda: job_session(here)),
        ("remote: 'spark:15002' is not a server's address; write sc://HOST:PORT", lambda: fkjoin.session(remote="spark:15002")),
        ("remote: this process has a session at 127.0.0.1:", lambda: fkjoin.session(remote="sc://127.0.0.1:1")),
        ("kafka: sc://", lambda: fkjoin.session(remote=address, kafka=True)),
        ("kafka: the server has its own jars", lambda: fkjoin.session(kafka=True)),
    ]
    calls += [(f"{feature} needs a classic Spark session, ", call) for feature, call in classic]
    for words, call in calls:
        with pytest.raises(fkjoin.FkJoinError, match=f"^{re.escape(words)}"):
            call()


def not_refused(spark: SparkSession, folder: Path) -> None:
    """Go the ways out that those errors name, where they are calls that a query need not run for."""
    orders, customers = tables(spark, folder)
    groups = orders.group_by("customer_id", value="amount")
    groups.aggregate(0.0, lambda _, amount, total: total + amount, lambda _, amount, total: total - amount)
    Table.from_kafka(spark, "t", "b:1", key="string", value="string")
    fk_join(orders, customers, "customer_id")
    orders.group_by("customer_id").count()
    orders.group_by("timestamp_seconds(items - items % 3600)").count()


def session_here(spark: SparkSession, address: str) -> None:
    """Make sessions without an address, as in a notebook of a service: each is this one, with new settings."""
    before = str(spark.conf.get("spark.fkjoin.buckets"))
    for number, environment in enumerate([{}, {"SPARK_REMOTE": address}, {"SPARK_REMOTE": "unix:///run/service.sock"}]):
        os.environ.update(environment)
        assert fkjoin.session(fkjoin_buckets=number + 3) is spark
        assert spark.conf.get("spark.fkjoin.buckets") == str(number + 3)
    del os.environ["SPARK_REMOTE"]
    spark.conf.set("spark.fkjoin.buckets", before)


def elsewhere(spark: SparkSession) -> None:
    """Have this client see none of the server's files, as if it were on another machine."""
    worker_files._shares_a_machine = lambda _: False


_watched: list[Metrics] = []


def watched(spark: SparkSession) -> dict[str, Any]:
    """Return what the queries of this session say, from the first call on."""
    if not _watched:
        _watched.append(watch(spark))
    return _watched[0].snapshot()
