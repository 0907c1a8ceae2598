"""A server of Spark Connect in a process of its own, and clients of it, which are processes, too.

A process cannot have both a classic session and one of Spark Connect, so tests tell a client which of the functions of
``connect_steps`` to call.
"""

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

from fkjoin.sessions.local import STARTER
from fkjoin.sessions.settings import SHORT_LIVED
from tests.support.places import ROOT

_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_COMMAND = re.compile(r"^    (spark-submit (?:.*\\\n)*.*)$", re.MULTILINE)
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_STARTED = "Spark Connect server started"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """A server on a port of this machine, started as ``docs/connect.md`` says; killed, it can be started again there."""

    def __init__(self, folder: Path, jars: str) -> None:
        self._folder, self._port, self._jars = folder, _free_port(), jars
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    def start(self) -> None:
        (text,) = _COMMAND.findall((ROOT / "docs" / "connect.md").read_text())
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
                [sys.executable, "-m", "tests.support.connect_steps", address, str(folder)],
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
