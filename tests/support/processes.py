"""Processes that tests start: when they end, and all that come of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest


def ends(process: int) -> bool:
    """Tell whether a process ends within ten seconds, and its parent is told of it."""
    for _ in range(1000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def interruptible() -> None:
    """Have a new process take Ctrl-C, as from a terminal: one that a shell has started in the background ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


class Command:
    """A command, with all processes that come of it; they have a variable of their own in common."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.temporary, self.said = folder / "tmp", folder / "said.txt"
        self.temporary.mkdir(exist_ok=True)
        self._mark = f"FKJOIN_TEST={uuid.uuid4()}".encode()
        name, _, value = self._mark.decode().partition("=")
        environment = os.environ | {"TMPDIR": str(self.temporary), name: value, "PYTHONUNBUFFERED": "1"}
        with self.said.open("wb") as out:
            command = [sys.executable, "-m", "fkjoin", *arguments]
            self.process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=out, start_new_session=True, preexec_fn=interruptible
            )

    def processes(self) -> dict[int, str]:
        """Those that are there, with their command lines."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if line and self._mark in (place / "environ").read_bytes().split(b"\0"):
                    found[int(place.name)] = line
            except (OSError, ValueError):  # it has ended
                pass
        return found

    def java(self) -> int | None:
        """The JVM's process."""
        return next((number for number, line in self.processes().items() if "deploy.SparkSubmit" in line), None)

    def wait_for(self, what: str, reached: Callable[[], object]) -> None:
        for _ in range(12_000):
            if reached():
                return
            assert self.process.poll() is None, f"{what}: {self.said.read_text()[-3000:]}"
            time.sleep(0.005)
        raise AssertionError(f"{what} is not reached: {self.said.read_text()[-3000:]}")

    def ends(self) -> None:
        """Wait until all processes are gone, long after they should be; else fail with those that are not."""
        self.process.wait(180)
        for _ in range(600):
            if not (left := self.processes()):
                return
            time.sleep(0.1)
        raise AssertionError(f"left: {left}")

    def end_by_force(self) -> None:
        for number in self.processes():
            os.kill(number, signal.SIGKILL)
        self.process.wait()
