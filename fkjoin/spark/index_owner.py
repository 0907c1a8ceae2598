"""Where the indexes on a machine are, and whose: beside those of a query, a file says where its checkpoint is.

The driver says so to the workers, by a local property of the thread that starts the query, which Spark hands on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from pyspark import TaskContext
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.spark.files import hadoop, query_id
from state.folders import FOLDERS, in_use
from state.private import private_folder

FILE = "checkpoint.json"

_PROPERTY = "fkjoin.checkpoint"


@contextlib.contextmanager
def owner(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Queries that are started meanwhile have this checkpoint."""
    path, files = hadoop(spark, checkpoint)
    spark.sparkContext.setLocalProperty(_PROPERTY, str(files.makeQualified(path).toString()))
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty(_PROPERTY, None)  # type: ignore[arg-type]


def index_base(index_dir: str) -> Path:
    """Where the indexes of all queries are on a machine; ``index_dir`` empty: under the temporary folder."""
    return Path(index_dir) if index_dir else Path(tempfile.gettempdir()) / f"fkjoin-{os.geteuid()}"


def index_home(index_dir: str, query: str, operator: str, stage: str) -> Path:
    """Where a store's indexes are on a machine, a folder per bucket.

    Folders that are not there are made, and none below ``index_dir`` is another user's, nor open to one (``StateError``): the
    temporary folder is everybody's.
    """
    base = index_base(index_dir)
    place = base / query / f"{operator}-{stage}"
    for folder in (*(() if index_dir else (base,)), place.parent, place):
        private_folder(folder)
    return place


def note_owner(indexes: Path) -> None:
    """In a worker: write down whose the indexes of its query are."""
    context = TaskContext.get()
    checkpoint = None if context is None else context.getLocalProperty(_PROPERTY)
    if checkpoint is not None:
        _note(indexes, checkpoint)


@cache
def _note(indexes: Path, checkpoint: str) -> None:
    file, text = indexes / FILE, json.dumps({"checkpoint": checkpoint, "host": socket.gethostname()})
    with contextlib.suppress(OSError):  # nothing but `prune` would miss it
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            draft = indexes / f".{FILE}.{os.getpid()}"
            draft.write_text(text, encoding="utf-8")
            draft.replace(file)


class Found(NamedTuple):
    """The indexes of a query."""

    folder: Path
    size: int
    fate: Literal["gone", "kept", "unknown"]
    """Of the query's checkpoint."""
    why: str


def found(spark: SparkSession, base: Path) -> list[Found]:
    """The indexes of all queries under ``base``, and what has become of their checkpoints."""
    folders = sorted(path for path in base.glob("*") if path.is_dir() and not path.is_symlink())
    return [Found(folder, _size(folder), *_fate(spark, folder)) for folder in folders]


def remove(some: list[Found]) -> list[Found]:
    """Remove those of checkpoints that are gone; they are returned."""
    gone = [one for one in some if one.fate == "gone"]
    for one in gone:
        try:
            shutil.rmtree(one.folder)
        except OSError as error:
            raise FkJoinError(f"{one.folder} cannot be removed: {error}; remove it as its owner") from error
    return gone


def _fate(spark: SparkSession, folder: Path) -> tuple[Literal["gone", "kept", "unknown"], str]:
    try:
        note = json.loads((folder / FILE).read_bytes())
        checkpoint, host = str(note["checkpoint"]), str(note["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown", "nothing says where the checkpoint is"
    if checkpoint.startswith("file:") and host != socket.gethostname():
        return "unknown", f"{checkpoint} is on {host}"
    try:
        path, files = hadoop(spark, f"{checkpoint.rstrip('/')}/metadata")
        there = bool(files.exists(path))
        mine = there and query_id(spark, checkpoint) == folder.name
    except Exception as error:
        return "unknown", f"{checkpoint} cannot be asked: {str(error).strip().splitlines()[-1][:200]}"
    if mine:
        return "kept", checkpoint
    if any(in_use(index) for index in folder.rglob(FOLDERS)):
        return "kept", f"{checkpoint} is gone, but a process has an index open"
    return "gone", f"{checkpoint} is now of another query" if there else checkpoint


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it has been removed meanwhile
            total += path.lstat().st_size
    return total
