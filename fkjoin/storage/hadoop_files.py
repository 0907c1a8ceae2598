"""Files that a session's JVM reaches by Hadoop: on HDFS and in object stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from fkjoin.spark.cause import cause_of
from fkjoin.spark.spark_api import java_gateway, jvm
from fkjoin.storage.files import Files, FileStatus

_RENAMING = "hdfs"
"""The scheme of file systems that show a file while it is written, and rename it at once.

An object store shows a file when it is whole.
"""


class HadoopFiles(Files):
    """See ``Files``; ``system``: Hadoop's ``FileSystem`` of the folder."""

    def __init__(self, root: str, system: Any) -> None:
        self.root = root
        self._system = system

    def status(self, path: str = "") -> FileStatus | None:
        try:
            with self._asked(path):
                return _status(self._system.getFileStatus(self._path(path)))
        except FileNotFoundError:
            return None

    def listed(self, folder: str = "") -> list[FileStatus]:
        try:
            with self._asked(folder):
                return sorted(map(_status, self._system.listStatus(self._path(folder))))
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes:
        with self._asked(path), contextlib.closing(self._system.open(self._path(path))) as stream:
            return bytes(stream.readAllBytes())

    def read_end(self, path: str, most: int) -> bytes:
        with self._asked(path):
            size = self._system.getFileStatus(self._path(path)).getLen()
            with contextlib.closing(self._system.open(self._path(path))) as stream:
                stream.seek(max(0, size - most))
                return bytes(stream.readNBytes(most))

    def _write(self, path: str, data: bytes) -> None:
        with self._asked(path):
            if self._system.getUri().getScheme() != _RENAMING:
                self._put(path, data, overwrite=True)
                return
            draft = f"{path}.draft"
            self._put(draft, data, overwrite=True)
            self._renamed(draft, path, "OVERWRITE")

    def _create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        try:
            with self._asked(path):
                self._put(path, data, overwrite=False)
        except OSError:
            if self.exists(path):
                return False
            raise
        return True

    def _make_folder(self, path: str) -> None:
        with self._asked(path):
            self._system.mkdirs(self._path(path))

    def _rename(self, path: str, target: str) -> None:
        with self._asked(path):
            self._renamed(path, target)

    def delete(self, path: str = "") -> None:
        with self._asked(path):
            self._system.delete(self._path(path), True)

    def touch(self, path: str) -> bool:
        """Look at the time afterwards: some file systems do not set it, and do not say so."""
        now_ms = jvm().java.lang.System.currentTimeMillis()
        try:
            with self._asked(path):
                self._system.setTimes(self._path(path), now_ms, -1)
            status = self.status(path)
        except OSError:
            return False
        return status is not None and abs(status.changed_ms - now_ms) < 1000

    @contextlib.contextmanager
    def _asked(self, path: str) -> Iterator[None]:
        """Raise ``OSError`` for what Java raises."""
        try:
            yield
        except (Py4JJavaError, PySparkException) as error:
            cause = cause_of(error)
            kind = FileNotFoundError if cause.startswith("FileNotFoundException") else OSError
            raise kind(f"{self._at(path)}: {cause}") from error

    def _path(self, path: str) -> Any:
        return jvm().org.apache.hadoop.fs.Path(self._at(path))

    def _put(self, path: str, data: bytes, *, overwrite: bool) -> None:
        out = self._system.create(self._path(path), overwrite)
        out.write(data)
        out.close()

    def _renamed(self, path: str, target: str, *options: str) -> None:
        """Rename by ``FileContext``: ``FileSystem.rename`` moves into a folder that is there."""
        hadoop_fs = jvm().org.apache.hadoop.fs
        kinds = hadoop_fs.Options.Rename
        chosen = java_gateway().new_array(kinds, len(options))
        for index, option in enumerate(options):
            chosen[index] = getattr(kinds, option)
        system = self._system
        of_scheme = hadoop_fs.FileContext.getFileContext(system.getUri(), system.getConf())
        of_scheme.rename(self._path(path), self._path(target), chosen)


def _status(status: Any) -> FileStatus:
    return FileStatus(
        str(status.getPath().getName()),
        bool(status.isDirectory()),
        int(status.getLen()),
        int(status.getModificationTime()),
    )
