"""The folders of a bucket's indexes: their writer locks them; one without a lock can be removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

from fkjoin.state.seal import SEAL

FOLDERS = "index-*"

_LEFT_S = 600
"""A seal is written, and taken, in a moment: a draft of this age is left by a dead process."""


def locked(folder: Path) -> int | None:
    """A descriptor of the folder with a lock on it, which ends with the process.

    None if it is locked, or gone.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Else it was removed before it was locked.
        if os.path.samestat(os.fstat(lock), folder.lstat()):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def in_use(folder: Path) -> bool:
    """A process that is alive is writing to the index."""
    if (lock := locked(folder)) is None:
        return folder.exists()
    os.close(lock)
    return False


def remove_abandoned(directory: Path, but: Path | None = None) -> None:
    """Remove indexes that no process writes to, except ``but``, and seals of dead processes."""
    for folder in directory.glob(FOLDERS):
        if folder != but and (lock := locked(folder)) is not None:
            remove(folder)
            os.close(lock)
    for draft in directory.glob(f"{SEAL}-*"):
        with contextlib.suppress(OSError):
            if time.time() - draft.lstat().st_ctime > _LEFT_S:
                draft.unlink()


def remove(folder: Path) -> None:
    """Remove an index; it need not be there."""
    shutil.rmtree(folder, ignore_errors=True)
