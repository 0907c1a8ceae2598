"""Batches of Parquet files at a path: what a path of any kind does, and the names of folders."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.written import LABELS, restores
from fkjoin.checkpoint.batch_log import Mark, another_run
from fkjoin.checkpoint.files import files_at, has_begun, query_id
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.spark import object_store
from fkjoin.spark.parquet import UNFINISHED, ChangesOf, WriteFile

FOLDER = re.compile(r"\w+=([0-9]+)-([0-9a-f]{8})(\.[0-9]+)?")
"""Name of a batch's folder: its number, the query's id's beginning, and the count of restores."""

LAST = "_fkjoin-last.json"
"""Lies beside the folders: the last batch, if it has no rows or is one that a restore led to."""

_RENAMING = ("file", "hdfs")
"""Schemes of file systems that rename a folder at once or not at all."""


class BatchFiles(ABC):
    """The batches of Parquet files at a place; a batch is in a folder of its own there."""

    path: str
    """The path in full."""
    options: Mapping[str, str] | None
    """Options of the object store that the path is in; None elsewhere."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``FkJoinError`` if the place cannot be written to; nothing is made."""

    @abstractmethod
    def noted(self, name: str) -> dict[str, Any]:
        """The facts of a note at the place; none without one."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write a note at the place, in one step."""

    @abstractmethod
    def folders(self) -> list[str]:
        """The names of the folders of batches that are whole, whatever wrote them."""

    @abstractmethod
    def mark(self, folder: str) -> Mark | None:
        """The batch that a folder has; None if there is no such folder."""

    @abstractmethod
    def clear_drafts(self, query: str) -> None:
        """Delete what attempts of the query have left unfinished.

        One that is alive after all publishes nothing.
        """

    @abstractmethod
    def set_aside(self, folders: Sequence[str]) -> None:
        """Move folders of batches to where no reader looks.

        The newest goes first, so that an end in between leaves no gap.
        """

    @abstractmethod
    def _publish(
        self, batch: DataFrame, write: WriteFile, draft: str, name: str, mark: Mark
    ) -> None:
        """Have ``write`` write the batch into ``draft``, and move that to ``name``."""

    @abstractmethod
    def _delete(self, folder: str) -> None:
        """Delete a folder, if it is there."""

    def publish(
        self,
        batch: DataFrame,
        changes: ChangesOf | None,
        *,
        label: str,
        writer: str,
        mark: Mark,
        schema: StructType,
    ) -> None:
        """Write the batch, or the ``changes`` packed in it, into a folder, unless that exists.

        ``label``, ``writer``: what folders are called; ``schema``: of what is written.  A batch
        without rows is noted. ``FkJoinError`` when the folder that is there is of another batch,
        when the note has another or a later one, and when the place was restored since the query
        began: a driver that stood still meanwhile would publish what does not follow.
        """
        name = f"{label}={mark.number:08}-{writer}"
        draft = f"{UNFINISHED}/{name}-{uuid.uuid4().hex}"
        folder = _for_arrow(f"{self.path}/{draft}")
        write = WriteFile(folder, changes, schema.json().encode(), self.options)
        try:
            self._publish(batch, write, draft, name, mark)
        finally:
            with contextlib.suppress(OSError):  # what is left goes with the query's next start
                self._delete(draft)

    def require_writer(self, folder: str, facts: Mapping[str, Any]) -> None:
        """``FkJoinError`` if the path was restored since a query began to write such folders."""
        writer = writer_in(folder)
        if writer != writer_of(writer, restores(facts)):
            raise FkJoinError(
                f"parquet {self.path} was restored by another process, which now owns this "
                "checkpoint"
            )

    def has_batch(self, folder: str, mark: Mark) -> bool:
        """Tell whether a batch is at the path, where it would be in ``folder``.

        ``FkJoinError`` if another one is there.
        """
        for last in (self.mark(folder), self.noted_batch(writer_in(folder))):
            if last == mark:
                return True
            if last is not None and last.number >= mark.number:
                raise another_run(f"parquet {self.path}", last, mark)
        return False

    def noted_batch(self, query: str) -> Mark | None:
        """The query's batch in ``LAST``; None without one."""
        note = self.noted(LAST)
        return Mark(note["number"], note["began_ms"]) if note.get("query") == query[:8] else None

    def note_batch(self, query: str, mark: Mark) -> None:
        """Write a batch of the query to ``LAST``."""
        note = {"query": query[:8], "number": mark.number, "began_ms": mark.began_ms}
        self.put(LAST, json.dumps(note).encode())

    def of_query(self, query: str) -> list[str]:
        """The folders of the query's batches, the oldest first."""
        folders = [name for name in self.folders() if FOLDER.fullmatch(name)]
        own = [name for name in folders if is_of(query, name)]
        return sorted(own, key=lambda name: (number_of(name), name))

    def require_alone(self, spark: SparkSession, checkpoint: str) -> None:
        """``TopologyError`` if there are batches at the path, and none of the checkpoint's query.

        Nothing would say which are newer.
        """
        matches = (FOLDER.fullmatch(name) for name in self.folders())
        writers = sorted({match[2] for match in matches if match is not None})
        own = query_id(spark, checkpoint)[:8] if writers and has_begun(spark, checkpoint) else None
        if writers and own not in writers:
            raise TopologyError(
                f"path: {self.path} contains batches of another query ({', '.join(writers)}), and "
                f"none of the query of checkpoint {checkpoint}: their order is unknown. Give each "
                "checkpoint of to_parquet a path of its own"
            )

    def label_for(self, columns: Collection[str]) -> str:
        """Choose a name for the folders of batches that is none of the ``columns``.

        ``TopologyError`` if there is none.
        """
        taken = {name.lower() for name in columns}
        free = [label for label in LABELS if label not in taken]
        if not free:
            raise TopologyError(
                f"path: a table with the columns {' and '.join(LABELS)} leaves no name for "
                "folders; rename one"
            )
        label = free[0]
        for name in self.folders():
            other = name.split("=")[0]
            if other != label:
                hidden = f", which hides the column {other!r}" if other in taken else ""
                raise TopologyError(
                    f"path: {self.path} already contains the folder {name}{hidden}, and the "
                    f"folders of this table are called {label}=…: write to another path, with a "
                    "new checkpoint"
                )
        return label


def place_of(spark: SparkSession, path: str) -> str:
    """The path in full.

    ``TopologyError`` unless it is in an object store, or on a file system that renames folders at
    once.
    """
    _require_scheme(path)
    if object_store.is_store(path):
        return path.rstrip("/")
    whole = files_at(spark, path).root
    _require_scheme(whole)
    return whole


def _require_scheme(path: str) -> None:
    scheme = urlsplit(path).scheme or _RENAMING[0]
    if scheme not in _RENAMING and not object_store.is_store(path):
        raise TopologyError(
            f"path: exactly-once is not available on {scheme}:, since it needs atomic renames of "
            "folders or atomic copies of objects; give a path on one of "
            f"{', '.join((*_RENAMING, *object_store.SCHEMES))}; or write "
            'changes.writeStream.format("parquet"), whose files have a log of their own'
        )


def require_not_read(spark: SparkSession, target: str, read: Iterable[str]) -> None:
    """``TopologyError`` if a query that writes to ``target`` reads files there.

    Its own would be among them.  ``read``: the paths of what it reads.
    """
    folder = PurePosixPath(object_store.by_one_name(target))
    for path in read:
        pattern = str(PurePosixPath(object_store.by_one_name(files_at(spark, path).root)))
        if any(fnmatchcase(str(above), pattern) for above in (folder, *folder.parents)):
            raise TopologyError(
                f"path: the table is read from {path}, and would read its own output in {target}: "
                "write to a folder outside those that it reads"
            )


def number_of(folder: str) -> int:
    """The number of the batch that a folder is of."""
    return int(folder.partition("=")[2].partition("-")[0])


def writer_in(folder: str) -> str:
    """The ending of a folder's name, see ``writer_of``."""
    return folder.rpartition("-")[2]


def is_of(query: str, name: str) -> bool:
    """Tell whether a folder, or the draft of one, is of a query's batches."""
    match = FOLDER.match(name)
    return match is not None and match[2] == query[:8]


def writer_of(query: str, restored: int) -> str:
    """Return the ending of a query's folders, which differs after batches were set aside."""
    return f"{query[:8]}.{restored}" if restored else query[:8]


def _for_arrow(path: str) -> str:
    """A local path as it is; anything else is a URI."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path
