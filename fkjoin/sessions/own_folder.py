"""Folders under the temporary folder, which a later process removes if their own is killed.

A process holds a folder by a lock, and so does a JVM that inherits the lock. Names say on which
kernel, since locks of another one need not be seen where machines share a file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "fkjoin-run-"


def machine() -> tuple[str, str]:
    """Short names of the host, and of the kernel since it has started.

    Containers of one kernel see each other's locks.
    """
    host = kernel = platform.node()
    with contextlib.suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    first, second = (hashlib.sha256(name.encode()).hexdigest()[:8] for name in (host, kernel))
    return first, second


def folder_prefix() -> str:
    """The beginning of the names of folders of this host and this kernel."""
    return f"{_PREFIX}{'-'.join(machine())}-"


class HeldFolder:
    """A folder that only this user can open."""

    def __init__(self) -> None:
        sweep()
        draft = Path(tempfile.mkdtemp(prefix="fkjoin-new-"))
        self.lock: int | None = None
        # Without locks, no other process removes it.
        with contextlib.suppress(ImportError, OSError):
            self.lock = _locked(draft)
        # By its name, others may remove what is not locked.
        self.path = draft.rename(draft.with_name(folder_prefix() + draft.name[-8:]))

    def let_go(self) -> None:
        """Remove the folder, unless another process holds it, too."""
        if self.lock is not None:
            os.close(self.lock)
        sweep()


@contextlib.contextmanager
def held_folder() -> Iterator[Path]:
    """A folder for a while."""
    folder = HeldFolder()
    try:
        yield folder.path
    finally:
        folder.let_go()
        shutil.rmtree(folder.path, ignore_errors=True)


def sweep() -> None:
    """Remove the folders of this user that no process holds, and whose locks would be seen here."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(ImportError, OSError):  # it is in use, or gone
            if not _has_visible_locks(path):
                continue
            lock = _locked(path)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(path)
            finally:
                os.close(lock)


def _has_visible_locks(path: Path) -> bool:
    """Tell whether a folder is of this kernel, or of this host from before the kernel started."""
    host, kernel = machine()
    names = path.name.removeprefix(_PREFIX).split("-")
    if names[1:2] == [kernel]:
        return True
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    started_at = 0.0 if clock is None else time.time() - time.clock_gettime(clock)
    return names[0] == host and path.lstat().st_mtime < started_at


def _locked(path: Path) -> int:
    """The folder, opened and locked."""
    import fcntl  # which Windows lacks

    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file
