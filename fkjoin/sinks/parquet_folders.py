"""Folders of Parquet files, one a batch: drafted, published, listed and set aside."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.written import LABELS, folders_of, set_backs
from fkjoin.checkpoint.batch_log import Mark, has_batch
from fkjoin.checkpoint.files import begun, hadoop, moved, query_id, read_file, write_file
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.spark.parquet import SET_ASIDE, UNFINISHED, ChangesOf, WriteFile

_READY, _MARK, _GONE = "ready", "_batch.json", "gone-"


_FOLDER = re.compile(r"\w+=([0-9]+)-([0-9a-f]{8})(\.[0-9]+)?")


_SCHEMES = ("file", "hdfs")
"""Schemes of file systems that rename a folder at once or not at all."""


def require_renaming(spark: SparkSession, path: str) -> str:
    """The path in full; ``TopologyError`` unless it is on a file system that renames folders at once."""
    _require_scheme(path)
    home, files = hadoop(spark, path)
    place = str(files.makeQualified(home))
    _require_scheme(place)
    return place


def _require_scheme(place: str) -> None:
    scheme = urlsplit(place).scheme or _SCHEMES[0]
    if scheme not in _SCHEMES:
        raise TopologyError(
            f"path: on {scheme}: folders cannot be renamed at once, which exactly-once needs here; write "
            'changes.writeStream.format("parquet"), whose files have a log of their own'
        )


def require_not_read(spark: SparkSession, place: str, read: Iterable[str]) -> None:
    """``TopologyError`` if a query that writes to ``place`` reads files there, among them its own: ``read`` has their paths."""
    for path in read:
        home, files = hadoop(spark, path)
        pattern = str(PurePosixPath(str(files.makeQualified(home))))
        if any(fnmatchcase(str(one), pattern) for one in (PurePosixPath(place), *PurePosixPath(place).parents)):
            raise TopologyError(
                f"path: the table is read from {path}, and would read what it writes to {place}: write to a folder that is "
                "none of those and in none of those that it reads"
            )


def require_alone(spark: SparkSession, place: str, checkpoint: str) -> None:
    """``TopologyError`` if the folder has batches, and none of the checkpoint's query: nothing would say which are newer."""
    matches = (_FOLDER.fullmatch(name) for name in folders_of(spark, place))
    writers = sorted({match[2] for match in matches if match is not None})
    if writers and (not begun(spark, checkpoint) or query_id(spark, checkpoint)[:8] not in writers):
        raise TopologyError(
            f"path: {place} has batches of another query ({', '.join(writers)}), and none of that of checkpoint {checkpoint}: "
            "nothing says which of them are newer. Give each checkpoint of to_parquet a path of its own"
        )


def label_for(spark: SparkSession, place: str, columns: Collection[str]) -> str:
    """Choose a name for the folders of batches that is none of the ``columns``; ``TopologyError`` if there is none."""
    taken = {name.lower() for name in columns}
    free = [label for label in LABELS if label not in taken]
    if not free:
        raise TopologyError(f"path: a table with the columns {' and '.join(LABELS)} leaves no name for folders; rename one")
    other = next((name for name in folders_of(spark, place) if name.split("=")[0] != free[0]), None)
    if other is not None:
        hidden = f", which hides the column {other.split('=')[0]!r}" if other.split("=")[0] in taken else ""
        raise TopologyError(
            f"path: {place} has the folder {other} already{hidden}, and those of this table are called {free[0]}=…: write to "
            "another path, with a new checkpoint"
        )
    return free[0]


def publish(
    batch: DataFrame, changes: ChangesOf | None, place: str, *, label: str, writer: str, mark: Mark, schema: StructType
) -> None:
    """Write the batch, or the ``changes`` that are packed in it, into a folder of its own, unless that is there already.

    ``label``, ``writer``: what folders are called; ``schema``: of what is written.  Each attempt at a batch writes into a
    folder of its own, whose files it moves to where they wait for being published: what a task that comes second writes is not
    among them.  ``FkJoinError`` when the folder that is there is of another batch, and when batches were set aside since the
    query began: a driver that stood still meanwhile would publish what comes after them, beside the query that goes on.
    """
    name = f"{label}={mark.number:08}-{writer}"
    draft, final = f"{place}/{UNFINISHED}/{name}-{uuid.uuid4().hex}", f"{place}/{name}"
    spark = batch.sparkSession
    ready, files = hadoop(spark, f"{draft}/{_READY}")
    goal, _ = hadoop(spark, final)
    files.mkdirs(ready)
    try:
        write = WriteFile(_for_arrow(draft), changes, schema.json().encode())
        written = [row.file for row in batch.mapInArrow(write, "file string").collect()]
        if has_batch(f"parquet {place}", mark_of(spark, final), mark) or not written:
            return
        write_file(*hadoop(spark, f"{draft}/{_READY}/{_MARK}"), json.dumps({"began_ms": mark.began_ms}).encode())
        if writer != writer_of(writer, set_backs(spark, place)):
            raise FkJoinError(f"parquet {place} was set back since this query began, and another query goes on with it")
        for file in written:
            moved(hadoop(spark, f"{draft}/{file}")[0], hadoop(spark, f"{draft}/{_READY}/{file}")[0], files)
        if not moved(ready, goal, files):  # another attempt was faster
            has_batch(f"parquet {place}", mark_of(spark, final), mark)
    finally:
        files.delete(ready.getParent(), True)


def writer_of(query: str, set_backs: int) -> str:
    """Return the ending of a query's folders of batches, by which a reader of batches that were set aside notices others."""
    return f"{query[:8]}.{set_backs}" if set_backs else query[:8]


def mark_of(spark: SparkSession, folder: str) -> Mark | None:
    """The batch that a folder has; None if there is no such folder."""
    path, files = hadoop(spark, folder)
    if not files.exists(path):
        return None
    about, _ = hadoop(spark, f"{folder}/{_MARK}")
    said = json.loads(read_file(about, files)) if files.exists(about) else {}  # a release before did not say it
    return Mark(int(path.getName().partition("=")[2].partition("-")[0]), said.get("began_ms"))


def batches_of(spark: SparkSession, place: str, query: str) -> list[tuple[int, str]]:
    """The numbers of the query's batches that are whole, and their folders, the oldest first."""
    found = ((_FOLDER.fullmatch(name), f"{place}/{name}") for name in folders_of(spark, place))
    return sorted((int(match[1]), folder) for match, folder in found if match is not None and match[2] == query[:8])


def clear_drafts(spark: SparkSession, place: str, query: str) -> None:
    """Delete what attempts of the query have left unfinished.  One that is alive after all finds its folder gone, and fails.

    A folder gets another name first, so that no attempt can publish what is left of it.
    """
    home, files = hadoop(spark, f"{place}/{UNFINISHED}")
    for status in files.listStatus(home) if files.exists(home) else ():
        path, name = status.getPath(), status.getPath().getName()
        match = _FOLDER.match(name)
        if match is not None and match[2] == query[:8]:
            gone, _ = hadoop(spark, f"{place}/{UNFINISHED}/{_GONE}{uuid.uuid4().hex}")
            with contextlib.suppress(FkJoinError):  # its owner is alive, and has thrown it away
                moved(path, gone, files)
                files.delete(gone, True)
        elif name.startswith(_GONE):
            files.delete(path, True)


def set_aside(spark: SparkSession, place: str, folders: Sequence[str]) -> None:
    """Move folders of batches to where no reader looks, the newest first, so that an end in between leaves no gap."""
    home, files = hadoop(spark, f"{place}/{SET_ASIDE}")
    files.mkdirs(home)
    for folder in reversed(folders):
        path, _ = hadoop(spark, folder)
        target, _ = hadoop(spark, f"{place}/{SET_ASIDE}/{path.getName()}-{uuid.uuid4().hex}")
        moved(path, target, files)


def _for_arrow(place: str) -> str:
    """A local path as it is; anything else is a URI."""
    return "/" + place.removeprefix("file:").lstrip("/") if place.startswith("file:") else place
