"""The indexes of a machine's queries: marked with their checkpoints, and removed with these."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import files_at, query_id
from fkjoin.errors import FkJoinError
from fkjoin.sessions.access import access
from fkjoin.spark.index_home import HOME_FILE, OWNER
from fkjoin.state.folders import FOLDERS, in_use


def owner(spark: SparkSession, checkpoint: str) -> AbstractContextManager[None]:
    """Queries that are started meanwhile have this checkpoint."""
    return access(spark).owned(OWNER, files_at(spark, checkpoint).root)


class Found(NamedTuple):
    """The indexes of a query."""

    folder: Path
    size: int
    fate: Literal["gone", "kept", "unknown"]
    """Fate of the query's checkpoint."""
    why: str


def found(spark: SparkSession, base: Path) -> list[Found]:
    """The indexes of all queries under ``base``, and what has become of their checkpoints."""
    folders = sorted(path for path in base.glob("*") if path.is_dir() and not path.is_symlink())
    return [Found(folder, _size(folder), *_fate(spark, folder)) for folder in folders]


def remove(some: list[Found]) -> list[Found]:
    """Remove and return the indexes of checkpoints that are gone."""
    gone = [index for index in some if index.fate == "gone"]
    for index in gone:
        try:
            shutil.rmtree(index.folder)
        except OSError as error:
            raise FkJoinError(
                f"{index.folder} cannot be removed: {error}; remove it as its owner"
            ) from error
    return gone


def _fate(spark: SparkSession, folder: Path) -> tuple[Literal["gone", "kept", "unknown"], str]:
    try:
        note = json.loads((folder / HOME_FILE).read_bytes())
        checkpoint, host = str(note["checkpoint"]), str(note["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown", "nothing says where the checkpoint is"
    if checkpoint.startswith("file:") and host != socket.gethostname():
        return "unknown", f"{checkpoint} is on {host}"
    try:
        exists = files_at(spark, checkpoint).exists("metadata")
        mine = exists and query_id(spark, checkpoint) == folder.name
    except Exception as error:
        reason = str(error).strip().splitlines()[-1][:200]
        return "unknown", f"{checkpoint} cannot be asked: {reason}"
    if mine:
        return "kept", checkpoint
    if any(in_use(index) for index in folder.rglob(FOLDERS)):
        return "kept", f"{checkpoint} is gone, but a process has an index open"
    return "gone", f"{checkpoint} is now of another query" if exists else checkpoint


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it has been removed meanwhile
            total += path.lstat().st_size
    return total
