"""Spark Connect: a server in a process of its own, and clients that know nothing of its JVM."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from fkjoin.sessions.local import STARTER
from fkjoin.sessions.settings import SHORT_LIVED
from integration.broker import Broker, Record
from integration.postgres import select
from tests.support.orders import History, batch_join
from tests.support.places import ROOT
from tests.support.sessions import SPARK_4_0
from tests.support.sinks import iceberg

_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_COMMAND = re.compile(r"^    (spark-submit (?:.*\\\n)*.*)$", re.MULTILINE)
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_STARTED = "Spark Connect server started"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """A server on a port of this machine, started as ``docs/versions.md`` says; killed, it can be started again there."""

    def __init__(self, folder: Path, jars: str) -> None:
        self._folder, self._port, self._jars = folder, _free_port(), jars
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

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
        self._process = subprocess.Popen(
            [_SUBMIT, *command, last],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        log = (self._folder / "server.log").open("ab")
        for line in self._process.stderr:
            log.write(line)
            log.flush()
            if _STARTED.encode() in line:
                break
        else:
            raise AssertionError(f"the server did not start: {(self._folder / 'server.log').read_text()[-3000:]}")
        subprocess.Popen(["cat"], stdin=self._process.stderr, stdout=log)  # it ends with the server
        log.close()

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Client:
    """A process with a session at a server."""

    def __init__(self, address: str, folder: Path) -> None:
        self._log = folder / "client.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "integration.connect_steps", address, str(folder)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __call__(self, step: str, **given: Any) -> Any:
        """Return the step's result; an error of the step fails the test."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"step": step, "given": given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the client has ended: {self._log.read_text()[-3000:]}"
        said = json.loads(line)
        assert "error" not in said, said["error"]
        return said["returned"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def client(address: str, folder: Path) -> Iterator[Client]:
    made = Client(address, folder)
    try:
        yield made
    finally:
        made.kill()


pytest.importorskip("grpc")
if SPARK_4_0:
    pytest.skip("Spark Connect needs Spark 4.1 or newer", allow_module_level=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, connector: str) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"), connector)
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def shop(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client that most tests share."""
    with client(server.address, tmp_path_factory.mktemp("client")) as made:
        yield made


def history(folder: Path) -> History:
    for name in ("orders", "customers"):
        (folder / name).mkdir()
    made = History(folder)
    made.write(60)
    return made


@pytest.mark.nightly
def test_tables_and_files_are_the_batch_join_also_after_a_restart(shop: Client, tmp_path: Path) -> None:
    log = history(tmp_path)
    given = {"table": "joined", "folder": str(tmp_path), "checkpoint": f"{tmp_path}/ck"}
    shop("watched")
    for changes in (60, 0):
        places = {"parquet": f"{tmp_path}/parquet", "delta": f"{tmp_path}/delta", "iceberg": str(tmp_path)}
        shown = shop("write", **given, **places)
        assert " has ended; batch " in shown
        assert "\noperator  left-in " in shown
        assert shop("delta", path=f"{tmp_path}/delta", key="order_id") == batch_join(log)
        assert {row.pop("order_id"): row for row in iceberg(tmp_path, "shop.joined")} == batch_join(log)
        log.write(changes)
    assert len(list((tmp_path / "parquet").glob("batch=*"))) == 2
    watched = shop("watched")["joined"]
    assert watched["batches"] == 2
    assert watched["all_inputs"] == 120
    assert set(watched["state"]) >= {"joined"}


def test_aggregates_and_saved_state(shop: Client, tmp_path: Path) -> None:
    log = history(tmp_path)
    shop("write", table="by_region", folder=str(tmp_path), checkpoint=f"{tmp_path}/ck", delta=f"{tmp_path}/delta")
    found = shop("delta", path=f"{tmp_path}/delta", key="region")
    assert {(key,): tuple(row.values()) for key, row in found.items()} == log.by_region()
    placed = shop("state", checkpoint=f"{tmp_path}/ck", name="placed", key="order_id")
    assert {key: row["region"] for key, row in placed.items()} == {
        key: row["region"] for key, row in batch_join(log).items() if row["region"] is not None
    }
    job = {"folder": str(tmp_path), "checkpoint": f"{tmp_path}/ck", "delta": f"{tmp_path}/delta"}
    said = shop("another_job", table="joined", **job)
    assert "/ck was made by another job: its operators were " in said
    assert " and are now joined-rekey, joined-subscription, joined-resolve, " in said, said
    assert "and this session has Asia/Tokyo, " in shop("another_job", table="by_region", zone="Asia/Tokyo", **job)


@pytest.mark.nightly
def test_rows_on_which_expressions_throw_are_left_out(shop: Client, tmp_path: Path) -> None:
    for length, rows in {"x": [("a", 5), ("b", 0)], "y": [("c", 50)]}.items():
        folder = tmp_path / "in" / f"length={length}"
        folder.mkdir(parents=True)
        lines = (json.dumps({"id": key, "n": n, "lsn": 1, "op": "u"}) for key, n in rows)
        (folder / "1.jsonl").write_text("".join(f"{line}\n" for line in lines))
    found = shop("throwing", folder=str(tmp_path))
    assert found["rows"] == {"a": [20, "x"]}
    assert found["described"].endswith("Spark evaluates all expressions that are more than a name, workers evaluate none")
    assert found["letters"] == ["filter: 100 div n >= 10: it throws"]


def test_what_cannot_be_had_is_refused_by_name(shop: Client, server: Server, tmp_path: Path) -> None:
    said = shop("refused", folder=str(tmp_path), address=server.address)
    for name, text in {
        "relative": "path: ck",
        "master": "remote: sc://",
        "setting": "spark.driver.memory cannot be set in a session at",
        "job": "spark: spark.remote: jobs need a classic session",
        "kafka": "kafka: sc://",
        "job here": "spark: this process has Spark Connect, and jobs need a classic session",
        "kafka here": "kafka: the server has its own jars",
        "address": "remote: 'spark:15002' is not a server's address; write sc://HOST:PORT",
        "two": "remote: this process has a session at 127.0.0.1:",
    }.items():
        assert said.pop(name).startswith(text)
    assert {name: text.split(" needs a classic Spark session, ")[0] for name, text in said.items()} == {
        "adder": "adder as an expression",
        "preview": "preview",
        "window": 'emit="on-close"',
        "driver": "fkjoin.testing.Driver",
        "start-over": 'on_new_topic="start-over"',
        "staged": 'deployment="staged"',
        "staged aggregate": 'deployment="staged"',
        "verify": "verify",
        "rebuild": "rebuild",
        "rescale": "rescale",
    }
    shop("not_refused", folder=str(tmp_path))


def test_the_session_that_is_there_is_completed(shop: Client, server: Server) -> None:
    """A notebook or a task of a managed service has a session, whose address may be of another kind."""
    assert shop("session_here", address=server.address) == [True, True, True]


@pytest.mark.nightly
def test_topics_and_postgres(shop: Client, tmp_path: Path, broker: Broker, dsn: str) -> None:
    broker.create("it-orders", "it-customers", "it-joined", partitions=2)
    broker.send("it-customers", [Record(f"c{n}".encode(), json.dumps({"name": f"n{n}"}).encode()) for n in range(2)])
    orders = [Record(f"o{n}".encode(), json.dumps({"customer": f"c{n % 3}", "items": n}).encode()) for n in range(6)]
    broker.send("it-orders", [*orders, Record(b"o0", None)])
    shop("topics", brokers=broker.bootstrap, checkpoint=f"{tmp_path}/ck", dsn=dsn)
    wanted = {f"o{n}": {"items": n, "name": f"N{n % 3}"} for n in (1, 3, 4)}
    assert {key.decode(): json.loads(value) for key, value in broker.table("it-joined").items()} == wanted
    rows = select(dsn, "select key, items, name from shop.it")
    assert {key: {"items": items, "name": name} for key, items, name in rows} == wanted


@pytest.mark.nightly
def test_a_client_and_then_the_server_are_killed_and_nothing_is_lost(server: Server, tmp_path: Path) -> None:
    """The first client is on another machine, and workers handle its files."""
    log = history(tmp_path)
    given = {"folder": str(tmp_path), "checkpoint": f"{tmp_path}/ck", "path": f"{tmp_path}/delta"}
    for end in ("client", "server", "none"):
        with client(server.address, tmp_path) as one:
            if end == "client":
                one("elsewhere")
            one("follow", **given)
            assert one("delta", path=given["path"], key="order_id") == batch_join(log)
            one.kill()  # its query goes on at the server, until another one of the checkpoint takes its place
        if end == "server":
            server.kill()
            server.start()
        log.write(40)
