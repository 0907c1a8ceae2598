"""Parquet files in an object store, one a batch: drafted, published by a copy, and set aside.

A store puts, copies and deletes one object at once, and renames none.  So a batch is one object.
One task writes its draft, and the driver copies that to its name.  A draft that another run of the
query has deleted cannot be copied, as a folder that is gone cannot be renamed.  The object's name
has the time when the batch began: two attempts at a batch at the same time write one object, with
the same rows.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyspark.sql import DataFrame

from fkjoin.analysis.written import ABOUT, LABELS, restores
from fkjoin.checkpoint.batch_log import Mark
from fkjoin.errors import FkJoinError
from fkjoin.sinks.parquet_batches import BatchFiles, is_of, number_of, writer_in
from fkjoin.sinks.retry import in_a_line, in_outages, through_outages
from fkjoin.spark.object_store import S3, opened
from fkjoin.spark.parquet import SET_ASIDE, UNFINISHED, PutFile, WriteFile

LARGEST_COPY = 5 << 30
"""Bytes of the largest object that S3 copies at once."""

_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET"
    r"|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|PERMISSION_DENIED|UNAUTHENTICATED"
    r"|AuthenticationFailed|AuthorizationFailure|HTTP status 4(?!08|09|12|25|29)\d\d"
)
"""Answers of a store that no repetition repairs: access refused, or no such bucket.

408, 409, 412, 425 and 429 pass.
"""
_FILE = re.compile(r"part-([0-9a-f]{16})[0-9a-f]{8}\.parquet")
"""Name of a batch's file: when it began, and how often the place was restored before."""
_UNKNOWN = 0
"""Time of a batch of which the checkpoint does not know when it began."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class BatchObjects(BatchFiles):
    """Batches in an object store; see ``BatchFiles``."""

    path: str
    options: Mapping[str, str] = field(repr=False)
    retry_s: float

    @in_outages
    def check(self) -> None:
        files, base = self._opened
        bucket = base.partition("/")[0]
        if files.get_file_info(bucket).type == FileType.NotFound:
            raise OSError(f"NO_SUCH_BUCKET: there is no {bucket}")

    @in_outages
    def noted(self, name: str) -> dict[str, Any]:
        files, base = self._opened
        try:
            with files.open_input_stream(f"{base}/{name}") as stream:
                return dict(json.loads(stream.readall()))
        except FileNotFoundError:
            return {}

    @in_outages
    def put(self, name: str, data: bytes) -> None:
        files, base = self._opened
        with files.open_output_stream(f"{base}/{name}") as stream:
            stream.write(data)

    @in_outages
    def folders(self) -> list[str]:
        folders = {path.parts[0] for path in self._files() if len(path.parts) == 2}
        beginnings = tuple(f"{label}=" for label in LABELS)
        return sorted(folder for folder in folders if folder.startswith(beginnings))

    @in_outages
    def mark(self, folder: str) -> Mark | None:
        files = self._files(folder)
        if not files:
            return None
        matches = [_FILE.fullmatch(str(path)) for path in files]
        times = [int(match[1], 16) for match in matches if match is not None]
        began_ms = max(times, default=_UNKNOWN)
        return Mark(number_of(folder), None if began_ms == _UNKNOWN else began_ms)

    def _publish(
        self, batch: DataFrame, write: WriteFile, draft: str, name: str, mark: Mark
    ) -> None:
        """The rows go through one task.

        A repetition writes them again, and Spark keeps them for it before that task.
        """
        rows = batch.repartition(1).mapInArrow(PutFile(write), "file string, error string")
        self._attempt(rows, draft, name, mark)

    @in_outages
    def clear_drafts(self, query: str, but: str = "") -> None:
        for draft in {path.parts[0] for path in self._files(UNFINISHED)}:
            if is_of(query, draft) and f"{UNFINISHED}/{draft}" != but:
                self._delete(f"{UNFINISHED}/{draft}")

    def set_aside(self, folders: Sequence[str]) -> None:
        for folder in reversed(folders):
            self._set_aside(folder)

    @in_outages  # each folder by itself: all of them may take longer than ``retry_s``
    def _set_aside(self, folder: str) -> None:
        aside = f"{SET_ASIDE}/{folder}-{uuid.uuid4().hex}"
        for path in self._files(folder):
            self._copy(f"{folder}/{path}", f"{aside}/{path}")
        self._delete(folder)

    @cached_property
    def _opened(self) -> tuple[FileSystem, str]:
        return opened(self.path, self.options)

    @in_outages
    def _attempt(self, rows: DataFrame, draft: str, name: str, mark: Mark) -> None:
        """Write the batch and publish it.

        It deletes other drafts of the query before it looks for the batch, so that none is
        published between look and copy.
        """
        written = rows.collect()
        if failed := [row.error for row in written if row.error is not None]:
            raise OSError(failed[0])
        facts = self.noted(ABOUT)
        self.require_writer(name, facts)
        if written:
            self.clear_drafts(writer_in(name), draft)
        if self.has_batch(name, mark):
            return
        if not written:
            self.note_batch(writer_in(name), mark)
            return
        try:
            self._copy(f"{draft}/{written[0].file}", f"{name}/{_file_of(mark, facts)}")
        except FileNotFoundError:
            if not self.has_batch(name, mark):
                raise FkJoinError(
                    f"parquet {self.path}: another run of the query has deleted the draft of batch "
                    f"{mark.number}: does one still write there? Start the query again"
                ) from None

    def _files(self, folder: str = "") -> list[PurePosixPath]:
        """The files in a folder, and in those in it, by their paths from there.

        Folders are only what names of files say: some stores list a draft's folders, some do not,
        and some keep empty ones.
        """
        files, base = self._opened
        home = f"{base}/{folder}".rstrip("/")
        infos = files.get_file_info(FileSelector(home, allow_not_found=True, recursive=True))
        paths = [PurePosixPath(info.path) for info in infos if info.type == FileType.File]
        return [path.relative_to(home) for path in paths]

    def _delete(self, folder: str) -> None:
        files, base = self._opened
        with contextlib.suppress(FileNotFoundError):
            files.delete_dir(f"{base}/{folder}")

    def _copy(self, name: str, target: str) -> None:
        """Copy an object; ``FileNotFoundError`` if it is not there, or goes before it is copied."""
        files, base = self._opened
        info = files.get_file_info(f"{base}/{name}")
        if info.type == FileType.NotFound:
            raise FileNotFoundError(f"{name} is not there")
        if urlsplit(self.path).scheme in S3 and info.size > LARGEST_COPY:
            raise FkJoinError(
                f"parquet {self.path}: the file of a batch has {info.size} bytes, and S3 copies at "
                f"most {LARGEST_COPY} at once. Start with a new checkpoint, an empty path and "
                "smaller batches (maxOffsetsPerTrigger, maxFilesPerTrigger), or write to Delta or "
                "Iceberg. A first batch with a snapshot cannot be made smaller: write it to Delta "
                "or Iceberg"
            )
        try:
            files.copy_file(f"{base}/{name}", f"{base}/{target}")
        except OSError as error:
            if files.get_file_info(f"{base}/{name}").type == FileType.NotFound:
                raise FileNotFoundError(f"{name} is not there") from error
            raise

    def _repeated(self, work: Callable[[], _T]) -> _T:
        """Return what the work returns, through outages; ``FkJoinError`` of other refusals."""
        about: Any = {"text_of": in_a_line, "is_of_target": _of_a_store}
        return through_outages(f"parquet {self.path}", work, mends, self.retry_s, **about)


def mends(error: BaseException) -> bool:
    """Tell whether the same work may succeed later, unchanged."""
    return _of_a_store(error) and not _REFUSED.search(str(error))


def _of_a_store(error: BaseException) -> bool:
    """Tell whether a store says it; a ``ConnectionError`` is one to the JVM."""
    return isinstance(error, OSError) and not isinstance(error, ConnectionError)


def _file_of(mark: Mark, facts: Mapping[str, Any]) -> str:
    """Name the file of a batch: the same for each attempt, and another one after a restore."""
    began_ms = _UNKNOWN if mark.began_ms is None else mark.began_ms
    return f"part-{began_ms:016x}{restores(facts):08x}.parquet"
