"""The program of ``local-python``: it becomes a process that Spark starts, or stands in for a fork in its place.

Run as a file by an interpreter without site packages, in a few milliseconds: it imports nothing but Python's own, which an
isolated interpreter (``-I``) does not look for beside the file.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from typing import NoReturn

FORKS = "FKJOIN_FORKS"
"""The variable with the address of ``fkjoin.sessions.fork_server``."""

PATIENCE_S = 5
"""The time that an answer may take, which comes once modules are imported: Spark itself waits for ten seconds."""

LENGTH = struct.Struct("!I")
FORKED = b"+"
STATUS = struct.Struct("!i")


def without_archives(path: str) -> str:
    """A ``PYTHONPATH`` without Spark's archives of PySpark.

    Whatever is imported from an archive is compiled anew by each process; beside the interpreter, PySpark lies ready compiled.
    """
    return os.pathsep.join(place for place in path.split(os.pathsep) if place and not _archive(place.rpartition("/")[2]))


def _archive(name: str) -> bool:
    beginnings = {"py4j-": "-src.zip", "spark-core_": ".jar"}
    return name == "pyspark.zip" or any(name.startswith(start) and name.endswith(end) for start, end in beginnings.items())


def main() -> NoReturn:
    """Become ``FKJOIN_PYTHON`` with this process's arguments, or wait for a fork that does the same."""
    python = os.environ["FKJOIN_PYTHON"]
    os.environ["PYTHONPATH"] = without_archives(os.environ.get("PYTHONPATH", ""))
    address = os.environ.pop(FORKS, None)
    arguments = sys.argv[1:]
    if address and arguments[:1] == ["-m"]:
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for the session, which ends the fork
        _fork(address, arguments[1:])
        signal.signal(signal.SIGINT, handler)
    os.execvp(python, [python, *arguments])


def _fork(address: str, arguments: list[str]) -> None:
    """Have a fork run the module with its arguments and exit as it does; return if there is none."""
    folder = os.getcwd()  # noqa: PTH109 (pathlib takes as long to import as all that is imported here)
    request = json.dumps({"arguments": arguments, "environment": dict(os.environ), "folder": folder}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(PATIENCE_S)
        try:
            server.connect(address)
            socket.send_fds(server, [LENGTH.pack(len(request))], [0, 1, 2])
            server.sendall(request)
            if server.recv(1) != FORKED:
                return
        except OSError:
            return
        server.settimeout(None)
        # Whoever ends this process ends the fork: its server sees this connection close.
        status = server.recv(STATUS.size)
    os._exit(STATUS.unpack(status)[0] if len(status) == STATUS.size else 1)


if __name__ == "__main__":
    main()
