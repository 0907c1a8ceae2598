"""Spark Connect: a server in a process of its own, and clients that know nothing of its JVM."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import multiprocessing
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable
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
from fkjoin.sessions.local import STARTER
from fkjoin.sessions.settings import SHORT_LIVED
from fkjoin.sinks import Delta, Iceberg, Kafka, Parquet, Postgres, Sink
from fkjoin.storage import worker_files
from fkjoin.testing import Driver
from integration.broker import Broker, Record
from integration.jobs import document
from integration.machine import Process, free_port
from integration.postgres import kept_rows
from tests.support.orders import History, batch_join, tables
from tests.support.places import ROOT
from tests.support.sessions import SPARK_4_0, STAGE_PARTS
from tests.support.sinks import delta, finished, iceberg, lake

Client = Callable[..., Any]
"""Does a step with these arguments after the session, and returns its result."""

_connect: Callable[[], SparkSession]


def _begin(address: str, folder: Path) -> None:
    global _connect
    settings: dict[str, Any] = {"fkjoin_buckets": STAGE_PARTS, "fkjoin_index_dir": f"{folder}/index"}
    settings["sql_shuffle_partitions"] = STAGE_PARTS
    _connect = functools.cache(functools.partial(fkjoin.session, remote=address, **settings))


def _do(step: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    try:
        return step(_connect(), *arguments, **more)
    except Exception:  # of a class that may not be sent
        raise AssertionError(traceback.format_exc()) from None


@contextlib.contextmanager
def client(address: str, folder: Path) -> Iterator[Client]:
    """A process with a session at a server, killed in the end."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _begin, (address, folder)) as pool:
        process = pool.submit(os.getpid).result()
        try:
            yield lambda *arguments, **more: pool.submit(_do, *arguments, **more).result()
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
    written = _TABLES[table](spark, folder)
    query = finished(written.to(*sinks, checkpoint=folder / "ck", trigger="available-now"))
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        query.show()
    return shown.getvalue()


def another_job(spark: SparkSession, table: str, folder: Path) -> str:
    """Start a query on a checkpoint that another table has begun; return what the error says."""
    try:
        _TABLES[table](spark, folder).to(Delta(folder / "delta"), checkpoint=folder / "ck")
    except fkjoin.FkJoinError as error:
        return str(error)
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
    # Ways out that no other step goes.
    groups.aggregate(0.0, lambda _, amount, total: total + amount, lambda _, amount, total: total - amount)
    orders.group_by("timestamp_seconds(items - items % 3600)").count()


def session_here(spark: SparkSession, address: str) -> None:
    """Make sessions without an address, as in a notebook of a service: each is this one, set anew."""
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


_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_COMMAND = re.compile(r"^    (spark-submit (?:.*\\\n)*.*)$", re.MULTILINE)
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_STARTED = "Spark Connect server started"


class Server:
    """A server on a port of this machine, started as ``docs/versions.md`` says; killed, it can be started again there."""

    def __init__(self, folder: Path, jars: str) -> None:
        self._folder, self._port, self._jars = folder, free_port(), jars
        self.address = f"sc://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        (text,) = _COMMAND.findall((ROOT / "docs" / "versions.md").read_text())
        _, *command, last = shlex.split(text.replace("\\\n", "").replace("local[*]", "local[2]"))
        settings = {
            "spark.connect.grpc.binding.port": self._port,
            "spark.jars": self._jars,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
            "spark.sql.warehouse.dir": self._folder / "warehouse",
        }
        command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(STARTER), "FKJOIN_PYTHON": sys.executable}
        before = len(self._log())
        self._process = Process(self._folder, [_SUBMIT, *command, last], self._folder, environment)
        self._process.wait_for("the server", lambda: _STARTED in self._log()[before:], pause_s=0.1)

    def _log(self) -> str:
        log = self._folder / "out.txt"
        return log.read_text() if log.exists() else ""

    def kill(self) -> None:
        self._process.kill()


pytest.importorskip("grpc")
if SPARK_4_0:
    pytest.skip("Spark Connect needs Spark 4.1 or newer", allow_module_level=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, connector: str) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"), connector)
    yield made
    made.kill()


@pytest.fixture(scope="module")
def shop(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client that most tests share."""
    with client(server.address, tmp_path_factory.mktemp("client")) as do:
        yield do


def history(folder: Path) -> History:
    made = History(folder)
    made.write(60)
    return made


@pytest.mark.nightly
def test_tables_and_files_are_the_batch_join_also_after_a_restart(shop: Client, tmp_path: Path) -> None:
    log = history(tmp_path)
    shop(watched)
    for changes in (60, 0):
        files = Parquet(tmp_path / "parquet"), Delta(tmp_path / "delta")
        shown = shop(write, "joined", tmp_path, *files, Iceberg("shop.it", options=lake(tmp_path)))
        assert " has ended; batch " in shown
        assert "\noperator  left-in " in shown
        assert delta(tmp_path / "delta") == batch_join(log)
        assert {row.pop("order_id"): row for row in iceberg(tmp_path, "shop.it")} == batch_join(log)
        log.write(changes)
    assert len(list((tmp_path / "parquet").glob("batch=*"))) == 2
    figures = shop(watched)["joined"]
    assert (figures["batches"], figures["all_inputs"]) == (2, 120)
    assert "joined" in figures["state"]


def test_aggregates_and_saved_state(shop: Client, tmp_path: Path) -> None:
    log = history(tmp_path)
    shop(write, "by_region", tmp_path, Delta(tmp_path / "delta"))
    rows = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert {(row.pop("region"),): tuple(row.values()) for row in rows} == log.by_region()
    placed = {row["order_id"]: row["region"] for row in shop(state, tmp_path / "ck", "placed")}
    regions = {key: row["region"] for key, row in batch_join(log).items()}
    assert placed == {key: region for key, region in regions.items() if region is not None}
    error = shop(another_job, "joined", tmp_path)
    assert "/ck was made by another job: its operators were " in error
    assert " and are now joined-rekey, joined-subscription, joined-resolve, " in error


def test_what_cannot_be_had_is_refused_by_name(shop: Client, server: Server, tmp_path: Path) -> None:
    shop(refused, tmp_path, server.address)


def test_the_session_that_is_there_is_completed(shop: Client, server: Server) -> None:
    """A notebook or a task of a managed service has a session, whose address may be of another kind."""
    shop(session_here, server.address)


@pytest.mark.nightly
def test_topics_and_postgres(shop: Client, tmp_path: Path, broker: Broker, dsn: str) -> None:
    broker.create("it-orders", "it-customers", "it-joined", partitions=2)
    broker.send("it-customers", [Record(b"c%d" % n, document(name=f"n{n}")) for n in range(2)])
    orders = [Record(f"o{n}".encode(), document(customer=f"c{n % 3}", items=n)) for n in range(6)]
    broker.send("it-orders", [*orders, Record(b"o0", None)])
    shop(topics, broker.bootstrap, tmp_path / "ck", dsn)
    wanted = {f"o{n}": {"items": n, "name": f"N{n % 3}"} for n in (1, 3, 4)}
    assert {key.decode(): json.loads(value) for key, value in broker.table("it-joined").items()} == wanted
    assert kept_rows(dsn) == {key: tuple(row.values()) for key, row in wanted.items()}


@pytest.mark.nightly
def test_a_client_and_then_the_server_are_killed_and_nothing_is_lost(server: Server, tmp_path: Path) -> None:
    """The first client is on another machine, and workers handle its files."""
    log = history(tmp_path)
    for end in ("client", "server", "none"):
        with client(server.address, tmp_path) as do:
            if end == "client":
                do(elsewhere)
            do(follow, tmp_path)
            assert delta(tmp_path / "delta") == batch_join(log)
        if end == "server":  # else its query goes on, until the checkpoint's next one starts
            server.kill()
            server.start()
        log.write(40)
