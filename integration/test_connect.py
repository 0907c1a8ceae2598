"""Spark Connect: a server in a process of its own, and clients that know nothing of its JVM."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest
from deltalake import DeltaTable

from fkjoin.sessions.local import STARTER
from fkjoin.sessions.settings import SHORT_LIVED
from fkjoin.sinks import Delta, Iceberg, Parquet
from integration import connect_steps as steps
from integration.broker import Broker, Record
from integration.connect_steps import Client, client
from integration.jobs import document
from integration.machine import Process, free_port
from integration.postgres import kept_rows
from tests.support.orders import History, batch_join
from tests.support.places import ROOT
from tests.support.queries import write_lines
from tests.support.sessions import SPARK_4_0
from tests.support.sinks import delta, iceberg, lake

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
        self._process.wait_for("the server starts", lambda: _STARTED in self._log()[before:], pause_s=0.1)

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
    shop(steps.watched)
    for changes in (60, 0):
        sinks = Parquet(tmp_path / "parquet"), Delta(tmp_path / "delta"), Iceberg("shop.it", options=lake(tmp_path))
        shown = shop(steps.write, "joined", tmp_path, *sinks)
        assert " has ended; batch " in shown
        assert "\noperator  left-in " in shown
        assert delta(tmp_path / "delta") == batch_join(log)
        assert {row.pop("order_id"): row for row in iceberg(tmp_path, "shop.it")} == batch_join(log)
        log.write(changes)
    assert len(list((tmp_path / "parquet").glob("batch=*"))) == 2
    watched = shop(steps.watched)["joined"]
    assert watched["batches"] == 2
    assert watched["all_inputs"] == 120
    assert set(watched["state"]) >= {"joined"}


def test_aggregates_and_saved_state(shop: Client, tmp_path: Path) -> None:
    log = history(tmp_path)
    shop(steps.write, "by_region", tmp_path, Delta(tmp_path / "delta"))
    rows = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert {(row.pop("region"),): tuple(row.values()) for row in rows} == log.by_region()
    placed = {row["order_id"]: row["region"] for row in shop(steps.state, tmp_path / "ck", "placed")}
    regions = {key: row["region"] for key, row in batch_join(log).items()}
    assert placed == {key: region for key, region in regions.items() if region is not None}
    error = shop(steps.another_job, "joined", tmp_path)
    assert "/ck was made by another job: its operators were " in error
    assert " and are now joined-rekey, joined-subscription, joined-resolve, " in error
    assert "and this session has Asia/Tokyo, " in shop(steps.another_job, "by_region", tmp_path, zone="Asia/Tokyo")


@pytest.mark.nightly
def test_rows_on_which_expressions_throw_are_left_out(shop: Client, tmp_path: Path) -> None:
    for length, rows in {"x": [("a", 5), ("b", 0)], "y": [("c", 50)]}.items():
        lines = [{"id": key, "n": n, "lsn": 1, "op": "u"} for key, n in rows]
        write_lines(tmp_path / "in" / f"length={length}", "1", lines)
    described, letters = shop(steps.throwing, tmp_path)
    (row,) = pq.read_table(tmp_path / "out").to_pylist()
    assert (row["id"], row["share"], row["length"]) == ("a", 20, "x")
    assert described.endswith("Spark evaluates all expressions that are more than a name, workers evaluate none")
    assert letters == ["filter: 100 div n >= 10: it throws"]


def test_what_cannot_be_had_is_refused_by_name(shop: Client, server: Server, tmp_path: Path) -> None:
    shop(steps.refused, tmp_path, server.address)
    shop(steps.not_refused, tmp_path)


def test_the_session_that_is_there_is_completed(shop: Client, server: Server) -> None:
    """A notebook or a task of a managed service has a session, whose address may be of another kind."""
    shop(steps.session_here, server.address)


@pytest.mark.nightly
def test_topics_and_postgres(shop: Client, tmp_path: Path, broker: Broker, dsn: str) -> None:
    broker.create("it-orders", "it-customers", "it-joined", partitions=2)
    broker.send("it-customers", [Record(f"c{n}".encode(), document(name=f"n{n}")) for n in range(2)])
    orders = [Record(f"o{n}".encode(), document(customer=f"c{n % 3}", items=n)) for n in range(6)]
    broker.send("it-orders", [*orders, Record(b"o0", None)])
    shop(steps.topics, broker.bootstrap, tmp_path / "ck", dsn)
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
                do(steps.elsewhere)
            do(steps.follow, tmp_path)
            assert delta(tmp_path / "delta") == batch_join(log)
        if end == "server":  # else its query goes on, until another one of the checkpoint takes its place
            server.kill()
            server.start()
        log.write(40)
