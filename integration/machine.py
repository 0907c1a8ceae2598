"""Ports and processes of this machine, and waiting."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.places import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(goal: str, reached: Callable[[], Any], limit_s: float = 60, pause_s: float = 0.1) -> None:
    """Wait until something is reached; fail after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline, f"{goal}: not in {limit_s} s"
        time.sleep(pause_s)


class JsonAnswers:
    """The answers of a handler of requests, in JSON."""

    def body(self: Any) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self: Any, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextlib.contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of this machine at which the handler answers meanwhile."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


class Process:
    """A process that may be told to crash, and those that it starts: they are one group.

    They print to ``FOLDER/out.txt``.
    """

    def __init__(
        self, folder: Path, command: Sequence[object], cwd: Path = ROOT, environment: Mapping[str, str] = os.environ
    ) -> None:
        environment = {"FKJOIN_FAULT": f"{folder}/fault", **environment}
        self._fault, self._out = Path(environment["FKJOIN_FAULT"]), folder / "out.txt"
        with self._out.open("ab") as log:
            about: Any = {"cwd": cwd, "env": environment, "stdout": log, "stderr": log}
            self._process = subprocess.Popen(list(map(str, command)), start_new_session=True, **about)
        self.pid = self._process.pid

    def arm(self, fault: str) -> None:
        """Let a process be killed at a point: ``point|before or after|victim``."""
        draft = self._fault.with_name("fault.draft")
        draft.write_text(fault)
        draft.rename(self._fault)

    def struck(self) -> bool:
        """Tell whether the fault has happened."""
        return not self._fault.exists()

    def output(self) -> str:
        """The end of what is printed."""
        return self._out.read_text(errors="replace")[-4000:]

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_for_its_end(self) -> None:
        """Wait until the process ends by itself, after its JVM was killed."""
        assert self._process.wait(60) != 0
        self.kill()

    def wait_for(self, goal: str, reached: Callable[[], bool], pause_s: float = 0.5, limit_s: float = 240) -> None:
        deadline = time.monotonic() + limit_s
        while not reached():
            assert not self.has_ended(), f"{goal}: {self.output()}"
            assert time.monotonic() < deadline, f"{goal} is not reached: {self.output()}"
            time.sleep(pause_s)

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stands_still(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    def go_on(self) -> None:
        """Let the process go on after it stood still."""
        os.killpg(self.pid, signal.SIGCONT)
