"""Files that pyarrow reaches."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileType

from fkjoin.spark.object_store import by_address
from fkjoin.storage.files import Files, FileStatus
from fkjoin.storage.local_files import LocalFiles

LOCAL = "file:"


class ArrowFiles(Files):
    """See ``Files``; all but this machine's files, by pyarrow."""

    def __init__(self, root: str) -> None:
        """Find the file system; ``OSError`` if pyarrow does not reach it."""
        self.root = root
        scheme, _, rest = root.partition("://")
        bucket, slash, path = rest.partition("/")
        try:
            self._system, base = by_address(scheme, bucket)
        except (pa.ArrowException, OSError) as error:
            raise OSError(f"{root}: pyarrow cannot reach it: {error}") from error
        self._folder = f"{base}{slash}{path}"

    def status(self, path: str = "") -> FileStatus | None:
        info = self._system.get_file_info(self._path(path))
        return None if info.type == FileType.NotFound else _status(info)

    def listed(self, folder: str = "") -> list[FileStatus]:
        inside = FileSelector(self._path(folder), allow_not_found=True)
        return sorted(map(_status, self._system.get_file_info(inside)))

    def read(self, path: str) -> bytes:
        with self._system.open_input_stream(self._path(path)) as stream:
            return bytes(stream.readall())

    def read_end(self, path: str, most: int) -> bytes:
        with self._system.open_input_file(self._path(path)) as stream:
            stream.seek(max(0, stream.size() - most))
            return bytes(stream.read(most))

    def _write(self, path: str, data: bytes) -> None:
        """Write it as it is: an object store shows a file when it is whole."""
        with self._system.open_output_stream(self._path(path)) as stream:
            stream.write(data)

    def _create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        self._write(path, data)
        return True

    def _make_folder(self, path: str) -> None:
        self._system.create_dir(self._path(path))

    def _rename(self, path: str, target: str) -> None:
        raise OSError("only folders of a local disk are renamed atomically")

    def delete(self, path: str = "") -> None:
        target = self._path(path)
        kind = self._system.get_file_info(target).type
        if kind == FileType.Directory:
            self._system.delete_dir(target)
        elif kind != FileType.NotFound:
            self._system.delete_file(target)

    def touch(self, path: str) -> bool:
        return False

    def _path(self, path: str) -> str:
        return f"{self._folder}/{path}".rstrip("/")


def _status(info: FileInfo) -> FileStatus:
    changed_ms = (info.mtime_ns or 0) // 1_000_000
    return FileStatus(info.base_name, info.type == FileType.Directory, info.size or 0, changed_ms)


def is_elsewhere(where: str) -> bool:
    """Tell whether a path names a file system other than a machine's own."""
    return "://" in where and not where.startswith(LOCAL)


def without_spark(where: str) -> Files:
    """The files of a folder that this process reaches without a session.

    ``OSError`` if it does not reach them.
    """
    if is_elsewhere(where):
        return ArrowFiles(where.rstrip("/"))
    # By its text, as Hadoop does: ".." after a link leaves the folder in which the link is.
    return LocalFiles(Path(os.path.normpath(Path(where.removeprefix(LOCAL)).absolute())))
