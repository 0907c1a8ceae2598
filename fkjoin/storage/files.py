"""``Files``: what the engine does with files below a folder, whatever file system that is on.

``LocalFiles`` are on this machine, a session's JVM reaches ``HadoopFiles``, and pyarrow
``ArrowFiles``.  ``WorkerFiles`` hands each call to a worker of a Spark Connect session.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fkjoin.errors import FkJoinError


class FileStatus(NamedTuple):
    """Facts of a file or folder."""

    name: str
    """Its last name."""
    is_folder: bool
    size: int
    """Bytes of a file."""
    changed_ms: int
    """Time of the last change, in milliseconds since 1970."""


class Files(ABC):
    """The files below a folder, by their paths in it; the path ``""`` is the folder itself.

    ``OSError`` is what the file system says; of ``write``, ``create``, ``make_folder`` and
    ``rename`` it is an ``FkJoinError``.
    """

    root: str
    """The folder in full: ``file:/folder`` or ``scheme://place/folder``."""

    @property
    def local(self) -> Path | None:
        """The folder, if it is on this machine."""
        return None

    @abstractmethod
    def status(self, path: str = "") -> FileStatus | None:
        """Look at a file or folder; None if it is not there."""

    @abstractmethod
    def listed(self, folder: str = "") -> list[FileStatus]:
        """List what is in a folder, by name; nothing if it is not there."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Read all of a file; ``FileNotFoundError`` if it is not there."""

    @abstractmethod
    def read_end(self, path: str, most: int) -> bytes:
        """Read the last bytes of a file, at most so many."""

    @abstractmethod
    def _write(self, path: str, data: bytes) -> None: ...

    @abstractmethod
    def _create(self, path: str, data: bytes) -> bool: ...

    @abstractmethod
    def _make_folder(self, path: str) -> None: ...

    @abstractmethod
    def _rename(self, path: str, target: str) -> None: ...

    @abstractmethod
    def delete(self, path: str = "") -> None:
        """Delete a file or a folder, if it is there."""

    @abstractmethod
    def touch(self, path: str) -> bool:
        """Set the time of a file's last change to now; False if the file system cannot."""

    def exists(self, path: str = "") -> bool:
        """Tell whether there is a file or folder."""
        return self.status(path) is not None

    def is_file(self, path: str) -> bool:
        """Tell whether there is a file."""
        status = self.status(path)
        return status is not None and not status.is_folder

    def names(self, folder: str = "") -> list[str]:
        """List the names of what is in a folder."""
        return [status.name for status in self.listed(folder)]

    def numbers(self, folder: str) -> list[int]:
        """List the numbers that files in a folder are called by, such as Spark's logs, ordered."""
        return sorted(int(name) for name in self.names(folder) if name.isdigit())

    def write(self, path: str, data: bytes) -> None:
        """Make a file, or replace it in one step.

        A process that is killed meanwhile leaves the file unchanged.
        """
        with self._changing(path):
            self._write(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Make a file; False, and nothing has changed, if it is there.

        Of two processes that do it at a time one succeeds, on a machine's disk and on HDFS.  An
        object store may let both.
        """
        with self._changing(path):
            return self._create(path, data)

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, if they are not there."""
        with self._changing(path):
            self._make_folder(path)

    def rename(self, path: str, target: str) -> bool:
        """Give a file or folder another path, in one step.

        False, with both unchanged, if something is there already.
        """
        try:
            self._rename(path, target)
        except OSError as error:
            if self.exists(path) and self.exists(target):
                return False
            raise FkJoinError(
                f"{self._at(path)} cannot be renamed to {self._at(target)}: "
                f"{error.strerror or error}. Check that the folder is writable, and that no other "
                "run of the query writes there; then start the query again"
            ) from error
        return True

    def obstacle(self, folder: str) -> str | None:
        """Say why a folder cannot be there; None if nothing is known."""
        return None

    def _at(self, path: str) -> str:
        """A path in full."""
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    @contextlib.contextmanager
    def _changing(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = path.rpartition("/")[0]
            why = self.obstacle(folder) or str(error.strerror or error)
            raise unwritable(self._at(folder).removeprefix("file:"), why) from error


def unwritable(folder: object, why: str) -> FkJoinError:
    """Make the error for a folder in which nothing can be written."""
    return FkJoinError(
        f"{folder} cannot be written to: {why}; make that folder, or give another place"
    )
