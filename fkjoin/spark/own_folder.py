"""A folder under the temporary folder for what this process, its JVM and their processes keep there while they run.

The folder is locked: by this process, and by the JVM that inherits the lock.  A folder that nobody holds is of processes that
were killed; whoever makes the next one removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PREFIX = "fkjoin-run-"


class _Held(NamedTuple):
    process: int
    path: Path
    lock: int
    """An open file: whoever inherits it holds the folder, too."""


_own: _Held | None = None


def own_folder() -> Path:
    """The folder of this process, made when it is first asked for, and removed when the process and its JVM have ended."""
    return _mine().path


def own_lock() -> int:
    """The open file by which the folder of this process is held."""
    return _mine().lock


@contextlib.contextmanager
def held_folder() -> Iterator[Path]:
    """A folder for a while."""
    held = _make()
    try:
        yield held.path
    finally:
        os.close(held.lock)
        shutil.rmtree(held.path, ignore_errors=True)


def sweep(place: Path) -> None:
    """Remove the folders in ``place`` that no process holds."""
    for path in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is somebody else's, or in use
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                _lock(lock, wait=False)
                shutil.rmtree(path)
            finally:
                os.close(lock)


def _mine() -> _Held:
    global _own
    if _own is None or _own.process != os.getpid() or not _own.path.is_dir():
        _own = _make()
        atexit.register(_let_go, _own)
    return _own


def _make() -> _Held:
    place = Path(tempfile.gettempdir())
    sweep(place)
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        lock = os.open(path, os.O_RDONLY)
        _lock(lock, wait=True)
        if path.is_dir():  # nobody has swept it before it was locked
            return _Held(os.getpid(), path, lock)
        os.close(lock)


def _let_go(held: _Held) -> None:
    """Remove the folder, unless the JVM still holds it, which then does so itself."""
    if held.process == os.getpid():
        os.close(held.lock)
        sweep(held.path.parent)


def _lock(file: int, *, wait: bool) -> None:
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
