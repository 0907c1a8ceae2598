"""Small files of a session of Spark Connect: what the engine calls of Hadoop's ``FileSystem``.

It is made of pyarrow.  The client may be on another machine than the server.  So a worker reads and
writes them.  This process does so itself if a worker sees a file that it has made, which is tried
once, and if it is a process of the server's.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError

_LOCAL = "file"
_SERVER = "SPARK_CONNECT_LOCAL_URL"
"""A variable of the processes in which a server runs what a client gave to it."""
_ANSWER = "answer string"


class ArrowPath(str):
    """A path in full, ``file:/folder/name`` or ``scheme://place/folder/name``, as Hadoop has it."""

    __slots__ = ()

    @classmethod
    def of(cls, where: str) -> ArrowPath:
        """The path; ``FkJoinError`` if it is relative, to a folder of the client or the server."""
        parts = urlsplit(where)
        if parts.scheme and parts.scheme != _LOCAL:
            return cls(where.rstrip("/"))
        path = where.removeprefix(f"{_LOCAL}:")
        if not path.startswith("/"):
            raise FkJoinError(
                f"path: {where} is relative, and client and server of a Spark Connect session "
                "have folders of their own: write the path in full, such as /data/checkpoint or "
                "s3://bucket/checkpoint"
            )
        return cls(f"{_LOCAL}:{posixpath.normpath('/' + path.lstrip('/'))}")

    @property
    def scheme(self) -> str:
        return self.partition(":")[0]

    def getName(self) -> str:  # noqa: N802
        return posixpath.basename(self)

    def getParent(self) -> ArrowPath:  # noqa: N802
        return ArrowPath(posixpath.dirname(self))

    def suffix(self, more: str) -> ArrowPath:
        return ArrowPath(f"{self}{more}")


class Status(NamedTuple):
    """Facts of a file or folder."""

    path: str
    folder: bool
    size: int
    changed_ms: int

    def getPath(self) -> ArrowPath:  # noqa: N802
        return ArrowPath(self.path)

    def isDirectory(self) -> bool:  # noqa: N802
        return self.folder

    def getLen(self) -> int:  # noqa: N802
        return self.size

    def getModificationTime(self) -> int:  # noqa: N802
        return self.changed_ms


class WorkerFiles:
    """Do things to files, where the session's workers see them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._same_machine: bool | None = None

    def is_here(self, scheme: str) -> bool:
        """Tell whether this process sees the workers' files of that kind itself."""
        if _SERVER in os.environ:
            return True
        if scheme != _LOCAL:
            return False
        if self._same_machine is None:
            with tempfile.NamedTemporaryFile(prefix="fkjoin-") as shared:
                path = ArrowPath(f"{_LOCAL}:{shared.name}")
                self._same_machine = bool(self._by_a_worker(_status, path))
        return self._same_machine

    def __call__(self, action: Callable[..., Any], path: ArrowPath, *more: Any) -> Any:
        if self.is_here(path.scheme):
            return action(path, *more)
        return self._by_a_worker(action, path, *more)

    def _by_a_worker(self, action: Callable[..., Any], path: ArrowPath, *more: Any) -> Any:
        task = self._spark.range(0, 1, 1, 1)
        (row,) = task.mapInArrow(_Order(action, str(path), more), _ANSWER).collect()
        answer = json.loads(row[0])
        if "error" in answer:
            raise OSError(f"{path}: {answer['error']}")
        return base64.b64decode(answer["data"]) if "data" in answer else answer["found"]


@dataclass(frozen=True)
class _Order:
    """An order to a worker, which answers with one text."""

    action: Callable[..., Any]
    path: str
    more: tuple[Any, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            try:
                result = self.action(ArrowPath(self.path), *self.more)
                answer = {"found": result}
                if isinstance(result, bytes):
                    answer = {"data": base64.b64encode(result).decode()}
            except OSError as error:
                answer = {"error": str(error)}
            yield pa.record_batch({"answer": [json.dumps(answer)]})


@dataclass(frozen=True)
class ArrowFiles:
    """The files of a scheme, with the methods of Hadoop's ``FileSystem``."""

    do: WorkerFiles
    scheme: str

    @property
    def here(self) -> bool:
        """Tell whether this process sees the same files of the machine."""
        return self.scheme == _LOCAL and self.do.is_here(self.scheme)

    def makeQualified(self, path: ArrowPath) -> ArrowPath:  # noqa: N802
        return path

    def exists(self, path: ArrowPath) -> bool:
        return bool(self.do(_status, path))

    def isFile(self, path: ArrowPath) -> bool:  # noqa: N802
        statuses = self.do(_status, path)
        return bool(statuses) and not Status(*statuses[0]).folder

    def getFileStatus(self, path: ArrowPath) -> Status:  # noqa: N802
        statuses = self.do(_status, path)
        if not statuses:
            raise FileNotFoundError(f"{path} is not there")
        return Status(*statuses[0])

    def listStatus(self, path: ArrowPath) -> list[Status]:  # noqa: N802
        return [Status(*facts) for facts in self.do(_listed, path)]

    def globStatus(self, pattern: ArrowPath) -> list[Status]:  # noqa: N802
        return [Status(*facts) for facts in self.do(_matching, pattern)]

    def read(self, path: ArrowPath) -> bytes:
        return bytes(self.do(_read, path))

    def read_end(self, path: ArrowPath, most: int) -> bytes:
        """The last bytes of a file, at most so many."""
        return bytes(self.do(_read_end, path, most))

    def write(self, path: ArrowPath, data: bytes) -> None:
        self.do(_write, path, data)

    def mkdirs(self, path: ArrowPath) -> None:
        self.do(_make, path)

    def delete(self, path: ArrowPath, recursive: bool) -> None:
        self.do(_delete, path)

    def rename(self, path: ArrowPath, target: ArrowPath) -> None:
        self.do(_rename, path, str(target))

    def setTimes(self, path: ArrowPath, changed_ms: int, _: int) -> None:  # noqa: N802
        self.do(_date, path, changed_ms)


def opened(path: ArrowPath) -> tuple[FileSystem, str]:
    """Open the file system that a path is on; it, and the path on it."""
    if path.scheme == _LOCAL:
        return LocalFileSystem(), path.partition(":")[2]
    parts = urlsplit(path)
    try:
        files, base = FileSystem.from_uri(f"{parts.scheme}://{parts.netloc}")
    except (pa.ArrowException, OSError) as error:
        raise OSError(f"pyarrow cannot reach it: {error}") from error
    return files, base.rstrip("/") + parts.path


def _status(path: ArrowPath) -> list[tuple[Any, ...]]:
    files, name = opened(path)
    info = files.get_file_info(name)
    return [] if info.type == FileType.NotFound else [_facts(path, info)]


def _facts(path: str, info: FileInfo) -> tuple[Any, ...]:
    changed_ms = (info.mtime_ns or 0) // 1_000_000
    return path, info.type == FileType.Directory, info.size or 0, changed_ms


def _matching(pattern: ArrowPath) -> list[tuple[Any, ...]]:
    """Find what is at paths that match; ``*`` stands for any text within a name."""
    names = pattern.split("/")
    first = next(index for index, name in enumerate(names) if "*" in name)
    folders = ["/".join(names[:first])]
    matches: list[tuple[Any, ...]] = []
    for name in names[first:]:
        matches = []
        for folder in folders:
            matches += _inside(ArrowPath(folder), name)
        folders = [path for path, is_folder, *_ in matches if is_folder]
    return sorted(matches)


def _inside(folder: ArrowPath, pattern: str) -> list[tuple[Any, ...]]:
    """Find what is in a folder, under a name that matches."""
    files, name = opened(folder)
    infos = files.get_file_info(FileSelector(name, allow_not_found=True))
    wanted = pattern.replace("[", "[[]").replace("?", "[?]")
    matches = [info for info in infos if fnmatchcase(info.base_name, wanted)]
    return [_facts(f"{folder}/{info.base_name}", info) for info in matches]


def _listed(folder: ArrowPath) -> list[tuple[Any, ...]]:
    """Find what is in a folder, whose own name may have a ``*``."""
    return sorted(_inside(folder, "*"))


def _read(path: ArrowPath) -> bytes:
    files, name = opened(path)
    with files.open_input_stream(name) as stream:
        return stream.readall()


def _read_end(path: ArrowPath, most: int) -> bytes:
    files, name = opened(path)
    with files.open_input_file(name) as stream:
        stream.seek(max(0, stream.size() - most))
        return stream.read(most)


def _write(path: ArrowPath, data: bytes) -> None:
    """Make or replace a file in one step; an object store shows a file when it is whole."""
    files, name = opened(path)
    if path.scheme == _LOCAL:
        replace_local(Path(name), data)
        return
    with files.open_output_stream(name) as stream:
        stream.write(data)


def replace_local(path: Path, data: bytes) -> None:
    """Replace a file of this machine in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    # Hadoop refuses a file that its checksum does not fit.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    draft.replace(path)


def _make(path: ArrowPath) -> None:
    files, name = opened(path)
    files.create_dir(name)


def _delete(path: ArrowPath) -> None:
    files, name = opened(path)
    kind = files.get_file_info(name).type
    if kind == FileType.Directory:
        files.delete_dir(name)
    elif kind != FileType.NotFound:
        files.delete_file(name)


def _rename(path: ArrowPath, target: str) -> None:
    if path.scheme != _LOCAL:
        raise OSError("only folders of a machine are renamed at once")
    Path(opened(path)[1]).rename(opened(ArrowPath(target))[1])


def _date(path: ArrowPath, changed_ms: int) -> None:
    if path.scheme != _LOCAL:
        raise OSError("only files of a machine can be dated")
    os.utime(opened(path)[1], (changed_ms / 1000, changed_ms / 1000))
