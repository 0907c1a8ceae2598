"""``fkjoin run`` on a terminal, from its first second to Ctrl-C.

Where there is none: tests/jobs/test_job.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.support.job_files import GOOD, job
from tests.support.queries import write_lines

_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")


class OnTerminal:
    """``fkjoin …`` in a folder, on a terminal of 24 lines; ``said`` has all that was shown so far, without colors."""

    def __init__(self, folder: Path, *arguments: str, width: int = 80) -> None:
        self._outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fkjoin", *arguments],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color"},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inner)
        self._said = b""

    @property
    def said(self) -> str:
        return _CONTROL.sub(b"", self._said).decode(errors="replace")

    def wait_for(self, pattern: str, since: int = 0, within_s: float = 240) -> int:
        """Wait until it is shown; the place in ``said`` where it ends."""
        until = time.monotonic() + within_s
        while (found := re.compile(pattern).search(self.said, since)) is None:
            assert time.monotonic() < until, f"{pattern!r} is not shown: {self.said[-3000:]}"
            assert self._read(), f"it ended without {pattern!r}: {self.said[-3000:]}"
        return found.end()

    def press(self, keys: str) -> None:
        os.write(self._outer, keys.encode())

    def ends(self) -> int:
        """Read to the end; the exit status."""
        while self._read():
            pass
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._outer)

    def _read(self) -> bool:
        """Read what is there, or wait a moment for it; False at the end."""
        if not select.select([self._outer], [], [], 1)[0]:
            return True
        try:
            piece = os.read(self._outer, 65_536)
        except OSError:  # so a terminal ends
            return False
        self._said += piece
        return bool(piece)


ORDER = {"id": 1, "customer": "c", "amount": 1, "lsn": 1, "op": "u"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an order and its customer."""
    write_lines(tmp_path / "orders", "1", [ORDER])
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    return tmp_path


def test_the_screen_stands_before_spark_is_imported() -> None:
    """Imports take seconds, in which the command says already that it reads the job."""
    code = (
        "import sys, fkjoin.cli.main, fkjoin.jobs.screen; print({'pyspark', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.spark
def test_ctrl_c_amid_the_start_ends_it_at_once(folder: Path) -> None:
    job(folder, GOOD)
    terminal = OnTerminal(folder, "run", "job.toml")
    with contextlib.closing(terminal):
        at = terminal.wait_for(r"reading job\.toml  0 s")
        terminal.wait_for(r"starting Spark at local\[2\]  \d+ s", at)
        terminal.press("\x03")
        assert terminal.ends() == 130
    assert re.search(r"– starting Spark at local\[2\]  stopped after \d+\.\d s\s*$", terminal.said)
