"""Keep what the JVM and its workers write on standard error out of a command's output."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import BinaryIO

from fkjoin.errors import FkJoinError

LOG_BYTES, OLDER_LOGS = 10 << 20, 4
"""A log of this size is renamed, so many are kept."""

_SHOWN = 200
"""Lines of what was written last, of a command that fails."""

_END = b"fkjoin: the command has ended\n"


def log_file(given: Path | None) -> Path | None:
    """Where Spark's log goes: where the user says, else to ``spark.log`` if somebody sits before a terminal; None: to standard
    error, as it is, which whoever runs a container collects.
    """
    return given or (Path("spark.log") if sys.stderr.isatty() else None)


@contextlib.contextmanager
def spark_log(log: Path | None) -> Iterator[None]:
    """Send what the JVM and its workers write on standard error to ``log``, or leave it there if that is None."""
    with contextlib.nullcontext() if log is None else quiet_spark(log):
        yield


@contextlib.contextmanager
def quiet_spark(log: Path | None = None) -> Iterator[None]:
    """Send what the JVM and its workers write on standard error to the end of ``log``, or to nowhere.

    The last lines are shown when the command fails.
    """
    try:
        file = None if log is None else _File(log, maxBytes=LOG_BYTES, backupCount=OLDER_LOGS, encoding="utf-8")
    except OSError as error:
        raise FkJoinError(
            f"Spark's log cannot be written to {log}: {error.strerror}; --spark-log names another file"
        ) from error
    keep, failed = os.dup(2), False
    reading, writing = os.pipe()
    sys.stderr.flush()
    os.dup2(writing, 2)
    pump = _Pump(os.fdopen(reading, "rb"), file)
    pump.start()
    try:
        yield
    except (FkJoinError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        failed = True
        raise
    finally:
        sys.stderr.flush()
        os.dup2(keep, 2)
        os.write(writing, _END)
        os.close(writing)
        pump.caught_up.wait()
        if failed:
            os.write(keep, b"".join(pump.last))
        os.close(keep)


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Go on without what cannot be written: said on standard error, it would come here again."""


class _Pump(threading.Thread):
    """Take lines to a file, until all processes that write them have ended, or this one has."""

    def __init__(self, source: BinaryIO, file: logging.Handler | None) -> None:
        super().__init__(name="fkjoin-log", daemon=True)
        self._source, self._file = source, file
        self.last: deque[bytes] = deque(maxlen=_SHOWN)
        self.caught_up = threading.Event()
        """The command has ended, and what was written before that is in the file."""

    def run(self) -> None:
        for line in self._source:
            if line.endswith(_END):  # perhaps at the end of a line that was not finished
                self.caught_up.set()
                line = line.removesuffix(_END)
            if line:
                self.last.append(line)
                self._take(line)
        self.caught_up.set()

    def _take(self, line: bytes) -> None:
        if self._file is not None:
            self._file.handle(logging.makeLogRecord({"msg": line.decode(errors="replace").rstrip("\n")}))
