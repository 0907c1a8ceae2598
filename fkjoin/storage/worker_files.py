"""Files of a Spark Connect session, which its workers reach, and this process perhaps, too."""

from __future__ import annotations

import base64
import json
import os
import posixpath
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.storage.arrow_files import LOCAL, is_elsewhere, without_spark
from fkjoin.storage.files import Files, FileStatus

_SERVER = "SPARK_CONNECT_LOCAL_URL"
"""A variable of the processes in which a server runs what a client gave to it."""
_ANSWER = "answer string"


def of_client(spark: SparkSession, where: str) -> Files:
    """The files of a folder that the workers of a Spark Connect session reach.

    The client may be on another machine than the server.  It does without a worker if it runs
    within the server, or if a worker sees a file that it has made.  ``FkJoinError`` for a relative
    path.
    """
    root = _in_full(where)
    if _SERVER in os.environ or (root.startswith(LOCAL) and _shares_a_machine(spark)):
        return without_spark(root)
    return WorkerFiles(spark, root)


def _in_full(where: str) -> str:
    """The path as Hadoop has it; ``FkJoinError`` if it is relative, to whose folder ever."""
    if is_elsewhere(where):
        return where.rstrip("/")
    path = where.removeprefix(LOCAL)
    if not path.startswith("/"):
        raise FkJoinError(
            f"path: {where} is relative, and client and server of a Spark Connect session "
            "have folders of their own: write the path in full, such as /data/checkpoint or "
            "s3://bucket/checkpoint"
        )
    return f"{LOCAL}{posixpath.normpath('/' + path.lstrip('/'))}"


_shared: dict[str, bool] = {}
"""By the id of a session, whether its workers see the files of this machine."""


def _shares_a_machine(spark: SparkSession) -> bool:
    session: Any = spark
    known = _shared.get(session.session_id)
    if known is None:
        with tempfile.NamedTemporaryFile(prefix="fkjoin-") as shared:
            folder, name = os.path.split(shared.name)
            known = WorkerFiles(spark, f"{LOCAL}{folder}").exists(name)
        _shared[session.session_id] = known
    return known


class WorkerFiles(Files):
    """See ``Files``; each call is a task of a worker, which reaches what this process may not."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root
        self._spark = spark

    def status(self, path: str = "") -> FileStatus | None:
        status = self._ask("status", path)
        return None if status is None else FileStatus(*status)

    def listed(self, folder: str = "") -> list[FileStatus]:
        return [FileStatus(*status) for status in self._ask("listed", folder)]

    def read(self, path: str) -> bytes:
        return base64.b64decode(self._ask("read", path))

    def read_end(self, path: str, most: int) -> bytes:
        return base64.b64decode(self._ask("read_end", path, most))

    def _write(self, path: str, data: bytes) -> None:
        self._ask("_write", path, data)

    def _create(self, path: str, data: bytes) -> bool:
        return bool(self._ask("_create", path, data))

    def _make_folder(self, path: str) -> None:
        self._ask("_make_folder", path)

    def _rename(self, path: str, target: str) -> None:
        self._ask("_rename", path, target)

    def delete(self, path: str = "") -> None:
        self._ask("delete", path)

    def touch(self, path: str) -> bool:
        return bool(self._ask("touch", path))

    def _ask(self, method: str, *arguments: Any) -> Any:
        rows = self._spark.range(0, 1, 1, 1).mapInArrow(
            _Order(self.root, method, arguments), _ANSWER
        )
        answer = json.loads(rows.collect()[0][0])
        if "error" in answer:
            kind = FileNotFoundError if answer["is_missing"] else OSError
            raise kind(answer["error"])
        return answer["value"]


@dataclass(frozen=True)
class _Order:
    """A call in a worker, which answers with one text."""

    root: str
    method: str
    arguments: tuple[Any, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            try:
                value = getattr(without_spark(self.root), self.method)(*self.arguments)
                if isinstance(value, bytes):
                    value = base64.b64encode(value).decode()
                answer = {"value": value}
            except OSError as error:
                is_missing = isinstance(error, FileNotFoundError)
                answer = {"error": str(error), "is_missing": is_missing}
            yield pa.record_batch({"answer": [json.dumps(answer)]})
