"""A claim on a checkpoint folder, so that a job that is started twice by mistake is refused the second time.

A file with the owner's host and process; a running job makes its modification time that of now, every few seconds.  It is
a courtesy, not what keeps the state whole: that is Spark's commit log, in which only one of two queries can write a batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.spark.files import hadoop, read_file, write_file

FILE = "fkjoin-job.claim"
RENEWED_EVERY_S = 10.0
LAPSES_AFTER_S = 60.0


@contextlib.contextmanager
def claimed(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Hold the claim; ``FkJoinError`` when another process that is alive, or was less than a minute ago, holds it."""
    path, files = hadoop(spark, f"{checkpoint.rstrip('/')}/{FILE}")
    _refuse_if_held(checkpoint, path, files)
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(RENEWED_EVERY_S):
            with contextlib.suppress(Exception):  # the job goes on without a storage that answers, as long as Spark does
                if not _touched(path, files):
                    write_file(path, files, _owner())

    write_file(path, files, _owner())
    renewing = threading.Thread(target=renew, name="fkjoin-claim", daemon=True)
    renewing.start()
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # at once: the JVM may be amid an answer, and the process is gone when it is asked
        stop.set()
        raise
    except BaseException:
        _give_up(stop, renewing, path, files)
        raise
    _give_up(stop, renewing, path, files)


def _give_up(stop: threading.Event, renewing: threading.Thread, path: Any, files: Any) -> None:
    stop.set()
    renewing.join(5)
    with contextlib.suppress(Exception):
        files.delete(path, False)


def _refuse_if_held(checkpoint: str, path: Any, files: Any) -> None:
    if not files.exists(path):
        return
    age, host, process = 0.0, "an unknown host", 0
    try:
        age = time.time() - files.getFileStatus(path).getModificationTime() / 1000
        owner = json.loads(read_file(path, files))
        host, process = str(owner["host"]), int(owner["process"])
    except Exception:  # it is being written, or was given up just now
        if not files.exists(path):
            return
    here = host == socket.gethostname()
    if age > LAPSES_AFTER_S or (here and (process == os.getpid() or not _alive(process))):
        return
    raise FkJoinError(
        f"checkpoint: {checkpoint} is in use by process {process} on {host}: stop that job first. If it is gone, its claim "
        f"lapses {LAPSES_AFTER_S:.0f} s after its last sign of life, which was {max(0.0, age):.0f} s ago"
    )


def _touched(path: Any, files: Any) -> bool:
    """Make the file one of now.  Not by writing it again: who is killed amid that leaves a claim that says nobody's name.

    False where that cannot be done, as in object stores, which replace a file as a whole.
    """
    now_ms = int(time.time() * 1000)
    try:
        files.setTimes(path, now_ms, -1)
        return bool(abs(files.getFileStatus(path).getModificationTime() - now_ms) < 1000)
    except Exception:
        return False


def _owner() -> bytes:
    return json.dumps({"host": socket.gethostname(), "process": os.getpid()}).encode()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True
