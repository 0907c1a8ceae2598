"""Folders of Parquet files, one a batch: drafted, published by renaming, listed and set aside."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fkjoin.analysis.written import ABOUT, folders_of
from fkjoin.checkpoint.batch_log import Mark
from fkjoin.checkpoint.files import files_at
from fkjoin.errors import FkJoinError
from fkjoin.sinks.parquet_batches import BatchFiles, is_of, number_of, writer_in
from fkjoin.spark.parquet import SET_ASIDE, UNFINISHED, WriteFile
from fkjoin.storage.files import Files
from fkjoin.storage.local_files import require_writable

_READY, _MARK, _GONE = "ready", "_batch.json", "gone-"


@dataclass(frozen=True)
class BatchFolders(BatchFiles):
    """Batches on a file system that renames a folder at once or not at all; see ``BatchFiles``."""

    spark: SparkSession
    path: str
    options: None = None

    def check(self) -> None:
        if (folder := self._files.local) is not None:
            require_writable(folder)

    def noted(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads(self._files.read(name)))
        except FileNotFoundError:
            return {}

    def put(self, name: str, data: bytes) -> None:
        self._files.write(name, data)

    def folders(self) -> list[str]:
        return folders_of(self.spark, self.path)

    def mark(self, folder: str) -> Mark | None:
        if not self._files.exists(folder):
            return None
        about = json.loads(self._files.read(f"{folder}/{_MARK}"))
        return Mark(number_of(folder), about["began_ms"])

    def _publish(
        self, batch: DataFrame, write: WriteFile, draft: str, name: str, mark: Mark
    ) -> None:
        """Each attempt at a batch writes into a folder of its own.

        It moves the files to where they wait for being published.  So what a task that comes second
        writes is not among them.
        """
        ready = f"{draft}/{_READY}"
        self._files.make_folder(ready)
        written = [row.file for row in batch.mapInArrow(write, "file string").collect()]
        self.require_writer(name, self.noted(ABOUT))
        if self.has_batch(name, mark):
            return
        if not written:
            self.note_batch(writer_in(name), mark)
            return
        about = json.dumps({"began_ms": mark.began_ms})
        self._files.write(f"{ready}/{_MARK}", about.encode())
        for file in written:
            self._files.rename(f"{draft}/{file}", f"{ready}/{file}")
        if not self._files.rename(ready, name):  # another attempt was faster
            self.has_batch(name, mark)

    def clear_drafts(self, query: str) -> None:
        """A folder gets another name first, so that no attempt can publish what is left of it."""
        for name in self._files.names(UNFINISHED):
            draft = f"{UNFINISHED}/{name}"
            if is_of(query, name):
                gone = f"{UNFINISHED}/{_GONE}{uuid.uuid4().hex}"
                # Its owner may be alive, and have thrown it away.
                with contextlib.suppress(FkJoinError, OSError):
                    self._files.rename(draft, gone)
                    self._files.delete(gone)
            elif name.startswith(_GONE):
                self._files.delete(draft)

    def set_aside(self, folders: Sequence[str]) -> None:
        self._files.make_folder(SET_ASIDE)
        for folder in reversed(folders):
            self._files.rename(folder, f"{SET_ASIDE}/{folder}-{uuid.uuid4().hex}")

    def _delete(self, folder: str) -> None:
        self._files.delete(folder)

    @cached_property
    def _files(self) -> Files:
        return files_at(self.spark, self.path)
