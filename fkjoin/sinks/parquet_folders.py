"""Folders of Parquet files, one a batch: drafted, published by renaming, listed and set aside."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.written import ABOUT, folders_of
from fkjoin.checkpoint.batch_log import Mark
from fkjoin.checkpoint.files import (
    hadoop,
    local_path,
    moved,
    read_file,
    require_writable,
    write_file,
)
from fkjoin.errors import FkJoinError
from fkjoin.sinks.parquet_batches import (
    FOLDER,
    has_batch,
    name_of,
    note_batch,
    number_of,
    require_writer,
)
from fkjoin.spark.parquet import SET_ASIDE, UNFINISHED, ChangesOf, WriteFile

_READY, _MARK, _GONE = "ready", "_batch.json", "gone-"


@dataclass(frozen=True)
class BatchFolders:
    """Batches on a file system that renames a folder at once or not at all; see ``BatchFiles``."""

    spark: SparkSession
    path: str

    def check(self) -> None:
        if (here := local_path(*self._file())) is not None:
            require_writable(here)

    def noted(self, name: str) -> dict[str, Any]:
        note, files = self._file(name)
        return dict(json.loads(read_file(note, files))) if files.exists(note) else {}

    def put(self, name: str, data: bytes) -> None:
        write_file(*self._file(name), data)

    def folders(self) -> list[str]:
        return folders_of(self.spark, self.path)

    def mark(self, folder: str) -> Mark | None:
        home, files = self._file(folder)
        if not files.exists(home):
            return None
        about, _ = self._file(folder, _MARK)
        return Mark(number_of(folder), json.loads(read_file(about, files))["began_ms"])

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
        """Each attempt at a batch writes into a folder of its own.

        It moves the files to where they wait for being published.  So what a task that comes second
        writes is not among them.
        """
        name = name_of(label, mark, writer)
        draft = f"{UNFINISHED}/{name}-{uuid.uuid4().hex}"
        ready, files = self._file(draft, _READY)
        goal, _ = self._file(name)
        files.mkdirs(ready)
        try:
            write = WriteFile(_for_arrow(f"{self.path}/{draft}"), changes, schema.json().encode())
            written = [row.file for row in batch.mapInArrow(write, "file string").collect()]
            require_writer(self.path, writer, self.noted(ABOUT))
            if has_batch(self, name, mark, writer):
                return
            if not written:
                note_batch(self, writer, mark)
                return
            about = json.dumps({"began_ms": mark.began_ms})
            write_file(*self._file(draft, _READY, _MARK), about.encode())
            for file in written:
                moved(self._file(draft, file)[0], self._file(draft, _READY, file)[0], files)
            if not moved(ready, goal, files):  # another attempt was faster
                has_batch(self, name, mark, writer)
        finally:
            files.delete(ready.getParent(), True)

    def clear_drafts(self, query: str) -> None:
        """A folder gets another name first, so that no attempt can publish what is left of it."""
        home, files = self._file(UNFINISHED)
        for status in files.listStatus(home) if files.exists(home) else ():
            path, name = status.getPath(), status.getPath().getName()
            match = FOLDER.match(name)
            if match is not None and match[2] == query[:8]:
                gone, _ = self._file(UNFINISHED, f"{_GONE}{uuid.uuid4().hex}")
                with contextlib.suppress(FkJoinError):  # its owner is alive, and has thrown it away
                    moved(path, gone, files)
                    files.delete(gone, True)
            elif name.startswith(_GONE):
                files.delete(path, True)

    def set_aside(self, folders: Sequence[str]) -> None:
        home, files = self._file(SET_ASIDE)
        files.mkdirs(home)
        for folder in reversed(folders):
            aside, _ = self._file(SET_ASIDE, f"{folder}-{uuid.uuid4().hex}")
            moved(self._file(folder)[0], aside, files)

    def _file(self, *names: str) -> tuple[Any, Any]:
        """A path below the batches', and its file system."""
        return hadoop(self.spark, "/".join((self.path, *names)))


def _for_arrow(path: str) -> str:
    """A local path as it is; anything else is a URI."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path
