"""A folder under the temporary folder for what this process, its JVM and their processes keep there while they run.

The folder is locked: by this process, and by the JVM that inherits the lock.  A folder that no process holds is of
processes that were killed; the process that makes the next one removes it.  Its name says on which machine, since it may be on
a file system of several, which need not see each other's locks.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER_PREFIX = "fkjoin-run-"

_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""Errors of a file system without locks."""


class _HeldFolder(NamedTuple):
    process: int
    path: Path
    lock: int | None
    """An open file: a process that inherits it holds the folder, too.  None: there are no locks here."""


_own: _HeldFolder | None = None
_making = threading.Lock()


def own_folder() -> Path:
    """The folder of this process, made when it is first asked for, and removed when the process and its JVM have ended."""
    return _mine().path


def own_lock() -> int | None:
    """The open file by which the folder of this process is held; None where nothing can be locked."""
    return _mine().lock


@contextlib.contextmanager
def held_folder() -> Iterator[Path]:
    """A folder for a while."""
    held = _make()
    try:
        yield held.path
    finally:
        if held.lock is not None:
            os.close(held.lock)
        shutil.rmtree(held.path, ignore_errors=True)


def sweep(place: Path) -> None:
    """Remove the folders in ``place`` that no process holds: of this user, and of this machine, whose locks are seen."""
    for path in place.glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is in use, or gone
            if not _is_ours(path):
                continue
            lock = _locked(path, wait=False)
            try:
                shutil.rmtree(path)
            finally:
                os.close(lock)


def _is_ours(path: Path) -> bool:
    if sys.platform == "win32":
        return False
    there, names = path.lstat(), path.name.removeprefix(FOLDER_PREFIX).split("-")
    if there.st_uid != os.getuid() or len(names) != 3:
        return False
    host, kernel = _machine()
    return names[1] == kernel or (names[0] == host and there.st_mtime < _started_at())


def _machine() -> tuple[str, str]:
    """Short names of the host, and of the kernel since it has started: containers of one kernel see each other's locks."""
    host = kernel = socket.gethostname()
    with contextlib.suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    first, second = (hashlib.sha256(one.encode()).hexdigest()[:6] for one in (host, kernel))
    return first, second


def _started_at() -> float:
    """The time at which the kernel started: what is older is of no other machine of that name that started since."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return 0 if clock is None else time.time() - time.clock_gettime(clock)


def _mine() -> _HeldFolder:
    global _own
    with _making:
        if _own is None or _own.process != os.getpid() or not _own.path.is_dir():
            _own = _make()
            atexit.register(_let_go, _own)
        return _own


def _make() -> _HeldFolder:
    place = Path(tempfile.gettempdir())
    sweep(place)
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{'-'.join(_machine())}-", dir=place))
        try:
            lock = _locked(path, wait=True)
        except FileNotFoundError:  # another process has swept it
            continue
        except OSError as error:
            path.rmdir()
            if error.errno not in _NO_LOCKS:
                raise
            return _HeldFolder(os.getpid(), Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}unlocked-", dir=place)), None)
        if path.is_dir():  # no process has swept it before it was locked
            return _HeldFolder(os.getpid(), path, lock)
        os.close(lock)


def _let_go(held: _HeldFolder) -> None:
    """Remove the folder, unless the JVM still holds it, which then does so itself."""
    if held.process != os.getpid():
        return
    if held.lock is None:
        shutil.rmtree(held.path, ignore_errors=True)
    else:
        os.close(held.lock)
        sweep(held.path.parent)


def _locked(path: Path, *, wait: bool) -> int:
    """The folder, opened and locked."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, "folders are not locked")
    import fcntl

    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(file)
        raise
    return file
