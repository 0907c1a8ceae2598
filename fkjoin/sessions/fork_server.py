"""A process that has imported what Python workers need, and of which those that Spark starts in a local session are forked.

Spark starts Python anew for the daemon of its workers and, whenever a query starts, for each stateful operator, one after the
other, to ask for its states; imports take a quarter of a second and more, each time.  ``local_start`` asks here for a fork
instead, and starts Python itself where it gets none (docs/adr/0024-processes-are-forked-from-one.md).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from fkjoin.sessions.local_start import FORKED, LENGTH, STATUS, without_archives
from fkjoin.sessions.own_folder import own_folder

NEEDED = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "fkjoin.folds.bulk",
    "fkjoin.spark.bucket_run",
    "fkjoin.spark.parquet",
    "fkjoin.spark.stepped",
    "fkjoin.spark.topic_records",
    "fkjoin.spark.topic_values",
    "fkjoin.analysis.vectorize",
)
"""Modules that may be imported before a fork: the one thread that they start is a memory allocator's, which knows of forks."""

_READ_AT_START = ("PYTHON", "GLIBC_", "MALLOC_", "LD_", "ARROW_", "OMP_", "OPENBLAS_", "MKL_", "LANG", "LC_", "TZ")
"""Variables that an interpreter and its libraries read when they start, and not later: where these are equal, a fork is what it
would be had it been started."""

_LISTENING = 3
"""The server's file on which it is asked."""

_PROGRAM = f"""
try:
    from {__name__} import serve
except ImportError:  # this process has found it where others do not look
    raise SystemExit(1)
serve()
"""


def load() -> None:
    """Import what is ``NEEDED``.  What cannot be imported is left to the process that needs it, which says so."""
    for name in NEEDED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if worker := sys.modules.get("pyspark.worker"):
        worker.main = _while_open(worker.main)  # type: ignore[attr-defined]
    if numpy := sys.modules.get("numpy"):  # forks are not to draw the same numbers
        os.register_at_fork(after_in_child=numpy.random.seed)
    gc.collect()
    gc.freeze()


def _while_open(run: Callable[[BufferedReader, Any], None]) -> Callable[[BufferedReader, Any], None]:
    """A worker's work, unless there is no more.

    Spark closes the connections of workers that had none for a minute.  PySpark then writes an error to the closed connection,
    which fails, and prints that failure: a traceback for each worker of a query that waits for rows.
    """

    def work(infile: BufferedReader, outfile: Any) -> None:
        if not infile.peek(1):
            raise SystemExit(1)
        run(infile, outfile)

    return work


class _Running(NamedTuple):
    """A fork server of this process, and the variables that it was asked for with."""

    process: int
    leash: int
    """The end of its standard input that this process holds."""
    address: str
    environment: dict[str, str]

    def ended(self) -> bool:
        try:
            return os.waitpid(self.process, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True


_running: _Running | None = None


def address(environment: Mapping[str, str]) -> str | None:
    """Return the address of a fork server for processes with this environment, started if there is none; else None.

    It ends with this process, and after all of its forks.
    """
    global _running
    if sys.platform != "linux":  # elsewhere libraries do not outlive a fork
        return None
    if _running is not None and (_running.ended() or _read_at_start(environment) != _running.environment):
        os.close(_running.leash)
        if _running.ended():
            shutil.rmtree(Path(_running.address).parent, ignore_errors=True)  # it may not have come to that
        _running = None
    if _running is None:
        _running = _start(environment)
    return _running.address if _running is not None else None


def _start(environment: Mapping[str, str]) -> _Running | None:
    # As Spark sets them for its processes, the second for workers: by it libraries start no threads.
    started = os.environ | environment | {"PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}
    started["PYTHONPATH"] = without_archives(started.get("PYTHONPATH", ""))
    folder = tempfile.mkdtemp(prefix="forks-", dir=own_folder())
    place = f"{folder}/socket"
    reading, leash = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        files = [
            (os.POSIX_SPAWN_DUP2, reading, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, listening.fileno(), _LISTENING),
        ]
        command = [sys.executable, "-c", _PROGRAM]
        try:
            listening.bind(place)
            listening.listen()  # a caller before modules are imported waits
            process = os.posix_spawn(sys.executable, command, started, file_actions=files)
        except OSError:  # the temporary folder's name is too long, say
            os.close(leash)
            shutil.rmtree(folder, ignore_errors=True)
            return None
        finally:
            os.close(reading)
    return _Running(process, leash, place, _read_at_start(environment))


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if value and name.startswith(_READ_AT_START) and not name.startswith("PYTHON_")  # those are Spark's
    }


def serve() -> None:
    """Fork a process for each caller, until standard input ends and all forks have ended.  Each fork ends within, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the session ends this process's input
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    owner = os.getpid()
    with socket.socket(fileno=_LISTENING) as server:
        place = Path(server.getsockname())
        try:
            load()
            wanted = _Server(server, hangup).wait()
        finally:
            if os.getpid() == owner:
                shutil.rmtree(place.parent, ignore_errors=True)
    if wanted is not None:
        wanted.run()


class _Wanted(NamedTuple):
    """A process that a fork is to become."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str

    def run(self) -> None:
        """Run the module as ``python -m`` does."""
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv = list(self.arguments)
        runpy.run_module(self.arguments[0], run_name="__main__", alter_sys=True)


class _Server:
    def __init__(self, listening: socket.socket, hangup: Any) -> None:
        self._listening = listening
        self._hangup = hangup
        """Action of forks when their terminal closes: none where the session began with ``nohup``."""
        self._environment = _read_at_start(os.environ)
        self._asked: dict[int, socket.socket] = {}
        """By the fork's process, the connection of its caller."""
        self._ready = selectors.DefaultSelector()
        self._wakened, self._waker = socket.socketpair()
        for end in (self._wakened, self._waker):
            end.setblocking(False)

    def wait(self) -> _Wanted | None:
        """In a fork, what it is to become; here None, at the end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno())
        for source in (0, self._listening, self._wakened):
            self._ready.register(source, selectors.EVENT_READ)
        parent = True
        while parent or self._asked:
            for key, _ in self._ready.select():
                if key.fileobj == 0:
                    parent = False
                    self._ready.unregister(0)
                elif key.fileobj is self._wakened:
                    self._wakened.recv(4096)
                    self._reap()
                elif key.fileobj is not self._listening:
                    self._abandoned(key.data)
                elif (wanted := self._answer()) is not None:
                    return wanted
        return None

    def _reap(self) -> None:
        """Tell callers how their forks have ended."""
        while self._asked:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            code = os.waitstatus_to_exitcode(status)
            asked = self._asked.pop(process)
            with contextlib.suppress(KeyError):
                self._ready.unregister(asked)
            with contextlib.suppress(OSError), asked:
                asked.sendall(STATUS.pack(code if code >= 0 else 128 - code))

    def _abandoned(self, process: int) -> None:
        """End a fork whose requester has been killed."""
        if process in self._asked:
            self._ready.unregister(self._asked[process])
            os.kill(process, signal.SIGTERM)

    def _answer(self) -> _Wanted | None:
        """A fork for the next caller; in the fork, what it is to become."""
        asked, _ = self._listening.accept()
        asked.settimeout(10)
        files: list[int] = []
        process = None
        try:
            head, files, _, _ = socket.recv_fds(asked, LENGTH.size, 3)
            with asked.makefile("rb") as request:
                wanted = _Wanted(**json.loads(request.read(LENGTH.unpack(head)[0])))
            known = _read_at_start(wanted.environment).items() <= self._environment.items()
            if known and not _gone(asked):
                process = os.fork()
        except (OSError, ValueError, TypeError, struct.error):  # gone, or there is no memory: the caller helps itself
            pass
        if process == 0:
            self._become(asked, files)
            return wanted
        for file in files:
            os.close(file)
        if process is None:
            asked.close()
            return None
        self._asked[process] = asked
        self._ready.register(asked, selectors.EVENT_READ, process)
        with contextlib.suppress(OSError):
            asked.sendall(FORKED)
        return None

    def _become(self, asked: socket.socket, files: list[int]) -> None:
        """In a fork: leave the server's files, and take over those of the caller."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, self._hangup)
        self._ready.close()
        for end in (asked, self._wakened, self._waker, *self._asked.values()):
            end.close()
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)


def _gone(connection: socket.socket) -> bool:
    """Tell whether the other side, which has nothing more to say, has closed it: it has waited for too long."""
    return bool(select.select([connection], [], [], 0)[0])
