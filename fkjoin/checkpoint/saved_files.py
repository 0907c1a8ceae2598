"""A checkpoint's files as Spark has written them: their names, and what a commit says of them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fkjoin.checkpoint.damage import RESTORE, damaged
from fkjoin.checkpoint.spark_formats import ForeignFormatError, Version
from fkjoin.errors import FkJoinError, FormatError
from fkjoin.state import StateError
from fkjoin.storage.arrow_files import without_spark
from fkjoin.storage.files import Files

_OURS = [("log", "MapState"), ("meta", "ValueState")]
"""State variables of fkjoin's operators."""

_SETTINGS = {
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
}
"""Settings that a checkpoint keeps, and the values of those that can be read."""

_TRIES = 20
"""Number of batches that are tried while Spark removes one after the other."""

_CONFIGURED = "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"
"""Variables with folders in which another file system may be named as the default one."""

_T = TypeVar("_T")


class Commit(NamedTuple):
    """A batch that was committed."""

    batch: int
    versions: dict[int, tuple[Version, ...]]
    """By the number of each stateful operator, the versions of its partitions' stores."""


class SavedFiles:
    """The files under the folder ``checkpoint``, by their paths in it."""

    def __init__(self, checkpoint: str | Path, files: Files) -> None:
        self.checkpoint = str(checkpoint).rstrip("/")
        self.folder = files

    @classmethod
    def without_spark(cls, checkpoint: str | Path) -> SavedFiles:
        """The files, on this machine or wherever pyarrow reads; ``FkJoinError`` elsewhere."""
        try:
            return cls(checkpoint, without_spark(str(checkpoint)))
        except OSError as error:
            raise FkJoinError(
                f"checkpoint {checkpoint} cannot be read without Spark: {error}; "
                "fkjoin.read_state reads it in a session"
            ) from error

    def read(self, name: str) -> bytes:
        """Read a file; ``FileNotFoundError`` if it is not there, ``FkJoinError`` of damage."""
        try:
            return self.folder.read(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise damaged(self.checkpoint, error, f"{name} is not as it was written") from error

    def commits(self) -> dict[int, int]:
        """The committed batches, and when the file of each in ``commits`` was last written."""
        logs = self.folder.listed("commits")
        return {int(log.name): log.changed_ms for log in logs if log.name.isdigit()}


def files_here(checkpoint: str) -> SavedFiles | None:
    """Return the files of a checkpoint that Spark, too, would look for on this machine.

    None for any other: a path without a scheme is on the file system that settings of Spark and
    Hadoop name.
    """
    has_settings = any(os.environ.get(name) for name in _CONFIGURED)
    is_here = "://" not in checkpoint and (Path(checkpoint).is_dir() or not has_settings)
    if is_here or checkpoint.startswith("file:"):
        return SavedFiles.without_spark(checkpoint)
    return None


def checkpoints_in(folder: str) -> str:
    """Name the checkpoints in a folder of this machine, such as a job's; nothing without any."""
    here = Path(folder)
    inside = sorted(path.parent.name for path in here.glob("*/commits")) if here.is_dir() else []
    return f"; there are checkpoints in it: {', '.join(inside)}" if inside else ""


def committed(files: SavedFiles, batch: int | None = None) -> int:
    """Return the number of the last committed batch, or ``batch`` if it is a committed one.

    ``FkJoinError`` without any.
    """
    numbers = files.folder.numbers("commits")
    if not numbers:
        if not files.folder.exists():
            raise FkJoinError(f"checkpoint {files.checkpoint} does not exist")
        raise FkJoinError(
            f"checkpoint {files.checkpoint} has no committed batch"
            f"{checkpoints_in(files.checkpoint)}: give the checkpointLocation of a query that has "
            "finished one (of a job: CHECKPOINT/sink-NAME or sinks-TABLE)"
        )
    if batch is not None and batch not in numbers:
        raise FkJoinError(
            f"batch: {files.checkpoint} has batches {numbers[0]} to {numbers[-1]}, not {batch}"
        )
    return numbers[-1] if batch is None else batch


def at_commit(files: SavedFiles, batch: int | None, work: Callable[[Commit], _T]) -> _T:
    """Return what ``work`` makes of a batch: of the newest without a number.

    It is of a later one if Spark removes files meanwhile.  ``FkJoinError`` says in which checkpoint
    there is no such batch, or damage.
    """
    for _ in range(_TRIES):
        number = committed(files, batch)
        try:
            with damage_named(files.checkpoint):
                return work(commit_of(files, number))
        except FileNotFoundError as error:
            if committed(files, batch) == number:
                raise FkJoinError(
                    f"checkpoint {files.checkpoint} is damaged, a file of its batch {number} is "
                    f"missing: {RESTORE} ({error})"
                ) from error
    raise FkJoinError(
        f"checkpoint {files.checkpoint}: Spark removed the files of {_TRIES} batches, one after "
        "the other, before they were read (spark.sql.streaming.minBatchesToRetain says how many "
        "batches Spark keeps)"
    )


@contextlib.contextmanager
def damage_named(checkpoint: str) -> Iterator[None]:
    """Say of damage in which checkpoint it is."""
    try:
        yield
    except ForeignFormatError as error:
        raise FkJoinError(f"checkpoint {checkpoint}: {error}") from error
    except FormatError as error:
        raise FkJoinError(f"checkpoint {checkpoint}: {error}; {RESTORE}") from error
    except StateError as error:
        raise FkJoinError(f"checkpoint {checkpoint}: {error}") from error


def commit_of(files: SavedFiles, batch: int) -> Commit:
    """Read which versions of the state a batch left; ``FkJoinError`` if their form is another."""
    ids = _second_line(files, f"commits/{batch}").get("stateUniqueIds") or {}
    if not ids:
        if not files.folder.numbers("state"):
            raise FkJoinError(
                f"checkpoint {files.checkpoint} has no state: its query has no stateful operator"
            )
        raise FkJoinError(
            f"checkpoint {files.checkpoint} does not say which files of its state were committed: "
            "it is not of checkpoint format 2"
        )
    settings = _second_line(files, f"offsets/{batch}").get("conf", {})
    for name, readable in _SETTINGS.items():
        if settings.get(name, readable) != readable:
            raise FkJoinError(
                f"checkpoint {files.checkpoint} was begun with {name}={settings[name]}, and fkjoin "
                f"reads state that was written with {readable}"
            )
    versions = {}
    for operator, partitions in ids.items():
        numbered = (Version(batch + 1, str(attempts[0])) for attempts in partitions)
        versions[int(operator)] = tuple(numbered)
    return Commit(batch, versions)


def is_ours(files: SavedFiles, operator: int) -> bool:
    """Tell whether a stateful operator is one of fkjoin's."""
    folder = f"state/{operator}/_metadata/v2"
    numbers = files.folder.numbers(folder)
    if not numbers:
        return False
    about = _second_line(files, f"{folder}/{numbers[-1]}")
    if not str(about.get("operatorInfo", {}).get("operatorName")).startswith("transformWithState"):
        return False
    variables = json.loads(about.get("operatorPropertiesJson") or "{}").get("stateVariables", [])
    kinds = sorted((item["stateName"], item["stateVariableType"]) for item in variables)
    return kinds == _OURS


def _second_line(files: SavedFiles, name: str) -> dict[str, Any]:
    """Read the JSON of a log of Spark's, which stands below a line with its form.

    ``FormatError`` if it is damaged.
    """
    try:
        return dict(json.loads(files.read(name).decode().splitlines()[1]))
    except (ValueError, TypeError, IndexError) as error:
        raise FormatError(f"{name} is damaged: {error}") from error
