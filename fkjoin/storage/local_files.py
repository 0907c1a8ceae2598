"""Files of this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import uuid
import zlib
from pathlib import Path

from fkjoin.storage.files import Files, FileStatus, unwritable

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES)
"""Errors of a look at a path where nothing is, or nothing that this user may see."""
_CHECKSUMS = b"crc\0"
"""The beginning of a checksum file of Hadoop's; the bytes that each of its sums is of follow."""
_HEADER_SIZE = len(_CHECKSUMS) + 4


class LocalFiles(Files):
    """See ``Files``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = f"file:{folder}"

    @property
    def local(self) -> Path:
        return self._folder

    def status(self, path: str = "") -> FileStatus | None:
        file = self._folder / path
        try:
            facts = file.stat()
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        changed_ms = facts.st_mtime_ns // 1_000_000
        return FileStatus(file.name, stat.S_ISDIR(facts.st_mode), facts.st_size, changed_ms)

    def listed(self, folder: str = "") -> list[FileStatus]:
        statuses = [self.status(f"{folder}/{name}".lstrip("/")) for name in self.names(folder)]
        # A running query deletes files between the list and the look.
        return [status for status in statuses if status is not None]

    def names(self, folder: str = "") -> list[str]:
        try:
            paths = list((self._folder / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(path.name for path in paths if not _has_checksums(path))

    def read(self, path: str) -> bytes:
        """Read all of a file; ``OSError`` if it differs from what Hadoop has summed up of it."""
        file = self._folder / path
        try:
            data = file.read_bytes()
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, error.strerror, str(file)) from error
        if not _fits(data, _checksums_of(file)):
            raise OSError(f"Checksum error: {file} has changed since it was written")
        return data

    def read_end(self, path: str, most: int) -> bytes:
        with (self._folder / path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return file.read(most)

    def _write(self, path: str, data: bytes) -> None:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.draft")
        draft.write_bytes(data)
        _checksums_of(file).unlink(missing_ok=True)
        draft.replace(file)

    def _create(self, path: str, data: bytes) -> bool:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
        draft.write_bytes(data)
        if not file.exists():
            _checksums_of(file).unlink(missing_ok=True)
        try:
            os.link(draft, file)  # whole at once
        except FileExistsError:
            return False
        except OSError:  # such a file system has no links
            return _created_in_place(file, data)
        finally:
            draft.unlink(missing_ok=True)
        return True

    def _make_folder(self, path: str) -> None:
        (self._folder / path).mkdir(parents=True, exist_ok=True)

    def _rename(self, path: str, target: str) -> None:
        if (self._folder / target).exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        (self._folder / path).rename(self._folder / target)

    def delete(self, path: str = "") -> None:
        target = self._folder / path
        if target.is_dir() and not target.is_symlink():
            # A task that is still alive may write there meanwhile; its files are left.
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)
            _checksums_of(target).unlink(missing_ok=True)

    def touch(self, path: str) -> bool:
        os.utime(self._folder / path)
        return True

    def obstacle(self, folder: str) -> str | None:
        return _obstacle(self._folder / folder)


def _has_checksums(path: Path) -> bool:
    """Tell whether Hadoop keeps checksums in a file, which it does not list either."""
    return path.name.startswith(".") and path.suffix == ".crc"


def _checksums_of(file: Path) -> Path:
    """The file in which Hadoop has the checksums of another one.

    It goes when fkjoin changes that one: Hadoop refuses a file that its checksums do not fit.
    """
    return file.with_name(f".{file.name}.crc")


def _fits(data: bytes, checksums: Path) -> bool:
    """Tell whether data is what Hadoop's ``ChecksumFileSystem`` has summed up.

    It has the CRC-32 of each piece.  As in Hadoop, a checksum file counts if it can be read and has
    a whole header: after a loss of power it may be empty beside a whole file.
    """
    try:
        content = checksums.read_bytes()
    except OSError:
        return True
    size = int.from_bytes(content[len(_CHECKSUMS) : _HEADER_SIZE], "big")
    if not content.startswith(_CHECKSUMS) or len(content) < _HEADER_SIZE or not size:
        return True
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    sums = b"".join(zlib.crc32(piece).to_bytes(4, "big") for piece in pieces)
    return content[_HEADER_SIZE:] == sums


def _created_in_place(file: Path, data: bytes) -> bool:
    try:
        with file.open("xb") as stream:
            stream.write(data)
    except FileExistsError:
        return False
    return True


def require_writable(folder: Path) -> None:
    """Raise ``FkJoinError`` if a folder on this machine cannot be, or cannot be written to."""
    require_folder(folder)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise unwritable(folder, f"{existing} is not this user's to write to")
    # Root may write anywhere, but not to a file system that has no files, such as /proc.
    if os.geteuid() == 0:
        try:
            Path(tempfile.mkdtemp(prefix=".fkjoin-", dir=existing)).rmdir()
        except OSError as error:
            raise unwritable(folder, f"{existing}: {error.strerror}") from error


def require_folder(folder: Path) -> None:
    """Raise ``FkJoinError`` if a folder on this machine is not there and cannot be made."""
    if (why := _obstacle(folder.absolute())) is not None:
        raise unwritable(folder, why)


def _obstacle(folder: Path) -> str | None:
    """Find what on the way to a folder is none, and say why it cannot be made; None if it can."""
    with contextlib.suppress(PermissionError):  # of a look below a folder that is not this user's
        for path in reversed([folder, *folder.parents]):
            if path.is_symlink() and not path.exists():
                return f"{path} is a link to {path.readlink()}, which does not exist"
            if path.exists() and not path.is_dir():
                return f"{path} is a file"
    return None
