"""Files and folders that no other user of the machine can read, change or prepare."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fkjoin.state.errors import StateError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_folder(path: Path) -> None:
    """Make the folder, with its parents, if it is not there; ``StateError`` unless it is this
    user's alone.

    A folder of this user's that others may read is closed to them.  Owner and mode are read through
    a descriptor, so that no other user can put another folder in its place meanwhile.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        pass  # a file, or a link to nowhere: said below
    except OSError as error:
        need = "it must be writable and its disk must have room"
        raise StateError(f"folder {path} cannot be made: {error}; {need}") from error
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise StateError(
            f"{path} is not a folder ({error.strerror}; links are not followed): {_ELSEWHERE}"
        ) from error
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            users = f"belongs to user {status.st_uid}, this process runs as {os.geteuid()}"
            raise StateError(f"folder {path} {users}: {_ELSEWHERE}")
        if status.st_mode & _OTHERS:
            os.fchmod(handle, 0o700)
    except OSError as error:
        raise StateError(
            f"folder {path} cannot be closed to other users: {error}; {_ELSEWHERE}"
        ) from error
    finally:
        os.close(handle)


_ELSEWHERE = "remove it, or choose another folder for the index (spark.fkjoin.index.dir)"


def write_private(file: Path, data: bytes) -> None:
    """Write a file that only this user can read."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(data)
    except OSError as error:  # it names no file
        raise OSError(error.errno, error.strerror, str(file)) from error


def close_to_others(file: Path) -> None:
    """Take from other users all rights to a file that foreign code has made."""
    if file.stat().st_mode & _OTHERS:
        file.chmod(0o600)
