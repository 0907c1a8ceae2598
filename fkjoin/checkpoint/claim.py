"""A claim on a checkpoint folder, so that a job or a query that is started twice by mistake is refused the second time.

A file with the owner's host and process; the owner makes its modification time that of now, every few seconds.  It is
a courtesy, not what keeps the state whole: that is Spark's commit log, in which only one of two queries can write a batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.files import hadoop, local_path, read_file, write_file
from fkjoin.checkpoint.query import Query
from fkjoin.errors import FkJoinError

FILE = "fkjoin-job.claim"
RENEWED_EVERY_S = 10.0
LAPSES_AFTER_S = 60.0


@dataclass
class _Held:
    """A claim of this process; it ends with the last of those that it is held for."""

    stop: threading.Event
    renewing: threading.Thread
    held_for: int = 1


_held: dict[str, _Held] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def claimed(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Hold the claim; ``FkJoinError`` when another process that is alive, or was less than a minute ago, holds it.

    This process may hold it several times over: of two queries on one checkpoint in a session, Spark stops the first.
    """
    path, files = hadoop(spark, f"{checkpoint.rstrip('/')}/{FILE}")
    path = files.makeQualified(path)
    place, local = str(path), local_path(path, files)
    with _lock:
        if place in _held:
            _held[place].held_for += 1
        else:
            _refuse_if_held(checkpoint, path, files)
            write_file(path, files, _owner())
            _held[place] = _renewed(path, files)
    at_once = False  # the JVM may be amid an answer then, and the process is gone when it is asked
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        at_once = True
        raise
    finally:
        with _lock:
            held = _held[place]
            held.held_for -= 1
            if not held.held_for:
                del _held[place]
                held.stop.set()
                if not at_once:
                    held.renewing.join(5)
                if not at_once or local is not None:
                    _give_up(path, files, local)


def start_claimed(spark: SparkSession, checkpoint: str, start: Callable[[], StreamingQuery]) -> Query:
    """Start a query, and hold the claim from before it starts until it ends, in whatever way."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(claimed(spark, checkpoint))
        query = start()
        claim = stack.pop_all()

    def hold() -> None:
        with claim, contextlib.suppress(Exception):  # of the query, which others are told, or of a JVM that is gone
            query.awaitTermination()

    threading.Thread(target=hold, name="fkjoin-claim-of-query", daemon=True).start()
    if hasattr(query, "_jsq"):
        return Query(query._jsq)
    from fkjoin.checkpoint.connect_query import shown  # it needs packages that classic sessions do without

    return shown(query)


def _renewed(path: Any, files: Any) -> _Held:
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(RENEWED_EVERY_S):
            with contextlib.suppress(Exception):  # the job goes on without a storage that answers, as long as Spark does
                if not _touched(path, files):
                    write_file(path, files, _owner())

    renewing = threading.Thread(target=renew, name="fkjoin-claim", daemon=True)
    renewing.start()
    return _Held(stop, renewing)


def _give_up(path: Any, files: Any, local: Path | None) -> None:
    """Leave the claim to nobody.

    On this machine the file stays, and is empty: that works without a JVM, and no file vanishes from under a program that
    copies or deletes the folder when the query has ended.
    """
    with contextlib.suppress(Exception):
        if (read_file(path, files) if local is None else local.read_bytes()) != _owner():
            return  # another process holds it, since this one stood still
        if local is None:
            files.delete(path, False)
        else:
            os.truncate(local, 0)
            if [one.name for one in local.parent.iterdir()] == [FILE]:  # the query did not come to its start
                local.unlink()
                local.parent.rmdir()


def _refuse_if_held(checkpoint: str, path: Any, files: Any) -> None:
    if not files.exists(path) or not files.getFileStatus(path).getLen():
        return
    age, host, process = 0.0, "an unknown host", 0
    try:
        age = time.time() - files.getFileStatus(path).getModificationTime() / 1000
        owner = json.loads(read_file(path, files))
        host, process = str(owner["host"]), int(owner["process"])
    except Exception:  # it is being written, or was given up just now
        if not files.exists(path) or not files.getFileStatus(path).getLen():
            return
    here = host == socket.gethostname()
    if abs(age) > LAPSES_AFTER_S or (here and (process == os.getpid() or not _alive(process))):
        return
    raise FkJoinError(
        f"checkpoint: {checkpoint} is in use by process {process} on {host}: stop that job first. If it is gone, its claim "
        f"lapses {LAPSES_AFTER_S:.0f} s after its last sign of life, which was {max(0.0, age):.0f} s ago"
    )


def _touched(path: Any, files: Any) -> bool:
    """Renew the file's time.  Not by writing it again: a process killed amid that leaves a claim without a name.

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
