"""Keep what the JVM and its workers write on standard error out of a command's output."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated

import typer

from fkjoin.errors import FkJoinError
from fkjoin.sessions import words

SparkLogOption = Annotated[
    Path | None,
    typer.Option(
        "--spark-log",
        help="The file to which Spark's own log is appended; older ones are LOG.1 to LOG.4.",
        show_default="spark.log at a terminal, else standard error",
    ),
]
LOG_BYTES, OLDER_LOGS = 10 << 20, 4
"""A log of this size is renamed, so many are kept."""

_SHOWN = 200
"""Lines of what was written last, of a command that fails."""


def log_file(chosen: Path | None) -> Path | None:
    """The file of Spark's log: the user's, else ``spark.log`` if standard error is a terminal.

    None: standard error, unchanged, which a container's host collects.
    """
    return chosen or (Path("spark.log") if sys.stderr.isatty() else None)


@contextlib.contextmanager
def spark_log(log: Path | None) -> Iterator[None]:
    """Send what the JVM and its workers write on standard error to ``log``; None: leave it there.

    An error of Spark's becomes one of fkjoin's, which says where the rest is; one of a query does
    already.
    """
    with contextlib.nullcontext() if log is None else quiet_spark(log):
        try:
            yield
        except Exception as error:
            if not of_spark(error):
                raise
            raise FkJoinError(f"{cause_line(error)}\n{the_rest(log)}") from error


def the_rest(log: Path | None) -> str:
    """Say where the rest is."""
    return f"Spark's log{' above' if log is None else f', {log},'} has the rest"


def of_spark(error: BaseException) -> bool:
    """Tell whether Py4J or PySpark has raised an error, without importing them for some seconds."""
    return type(error).__module__.partition(".")[0] in ("py4j", "pyspark")


def cause_line(error: BaseException) -> str:
    """Say in one line what an error of Py4J's or PySpark's comes from."""
    from fkjoin.spark.cause import cause_of

    return cause_of(error)


@contextlib.contextmanager
def quiet_spark(log: Path | None = None) -> Iterator[None]:
    """Send what the JVM and its workers write on standard error to the end of ``log``, or nowhere.

    The last lines are shown when the command fails.
    """
    file: logging.Handler = logging.NullHandler()
    try:
        if log is not None:
            file = _File(log, maxBytes=LOG_BYTES, backupCount=OLDER_LOGS, encoding="utf-8")
    except OSError as error:
        raise FkJoinError(
            f"Spark's log cannot be written to {log}: {error.strerror}; --spark-log names another "
            "file"
        ) from error
    last: deque[bytes] = deque(maxlen=_SHOWN)

    def take(line: bytes) -> None:
        last.append(line)
        text = line.decode(errors="replace").rstrip("\n")
        file.handle(logging.makeLogRecord({"msg": text}))

    output, error_file = words.output(), os.dup(2)
    shown: Iterable[bytes] = ()
    sys.stderr.flush()
    output.take = output.next_take = take
    os.dup2(output.writing, 2)
    try:
        yield
    except FkJoinError as error:
        take(f"fkjoin: {error}\n".encode())
        raise
    except Exception:
        shown = last
        raise
    finally:
        sys.stderr.flush()
        os.dup2(error_file, 2)
        os.close(error_file)
        output.next_take = words.show
        output.catch_up()
        for line in shown:
            words.show(line)


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Continue without what cannot be written: on standard error, it would come here again."""
