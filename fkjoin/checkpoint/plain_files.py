"""A checkpoint's files, read without Spark: on this machine, or wherever pyarrow reads."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyarrow.fs import FileSelector, FileType, SubTreeFileSystem

from fkjoin.checkpoint.damage import RESTORE
from fkjoin.checkpoint.spark_formats import ForeignFormatError, Version
from fkjoin.errors import FkJoinError, FormatError
from fkjoin.sessions.arrow_files import ArrowPath, opened
from fkjoin.state import StateError

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


class OnlySparkError(FkJoinError):
    """A checkpoint is at a place, or has files of a form, that only Spark reads."""


class Commit(NamedTuple):
    """A batch that was committed."""

    batch: int
    versions: dict[int, tuple[Version, ...]]
    """By the number of each stateful operator, the versions of its partitions' stores."""


class PlainFiles:
    """The files under a checkpoint's folder, by their paths in it; raises ``FileNotFoundError`` for one that is not there."""

    def __init__(self, checkpoint: str | Path) -> None:
        self.checkpoint = str(checkpoint)
        where = self.checkpoint
        if "://" not in where and not where.startswith("file:"):
            where = str(Path(where).absolute())
        scheme, _, rest = where.partition("://")
        if scheme in ("s3a", "s3n"):  # Hadoop's names of it
            where = f"s3://{rest}"
        try:
            files, place = opened(ArrowPath.of(where))
        except OSError as error:
            raise OnlySparkError(
                f"checkpoint {checkpoint} cannot be read without Spark: {error}; fkjoin.read_state reads it in a session"
            ) from error
        self._files = SubTreeFileSystem(place, files)

    def read(self, name: str) -> bytes:
        with self._files.open_input_file(name) as opened_file:
            return bytes(opened_file.read())

    def there(self, name: str) -> bool:
        return bool(self._files.get_file_info(name).is_file)

    @property
    def are_there(self) -> bool:
        """True if the checkpoint's folder is there."""
        return bool(self._files.get_file_info("").type == FileType.Directory)

    def copy(self, name: str, target: Path) -> None:
        with self._files.open_input_file(name) as source, target.open("wb") as copied:
            shutil.copyfileobj(source, copied, 1 << 20)

    def numbers(self, folder: str) -> list[int]:
        """The numbers that files or folders in a folder are called by, the least first; none without the folder."""
        found = self._files.get_file_info(FileSelector(folder, allow_not_found=True))
        return sorted(int(one.base_name) for one in found if one.base_name.isdigit())


def files_here(checkpoint: str) -> PlainFiles:
    """Return the files of a checkpoint that Spark, too, would look for on this machine, whatever its settings and Hadoop's are.

    ``OnlySparkError`` for any other: a path without a scheme is on the file system that those settings name.
    """
    has_settings = any(os.environ.get(name) for name in _CONFIGURED)
    if checkpoint.startswith("file:") or ("://" not in checkpoint and (Path(checkpoint).is_dir() or not has_settings)):
        return PlainFiles(checkpoint)
    raise OnlySparkError(f"checkpoint {checkpoint} is where settings of Spark and Hadoop lead to")


def checkpoints_in(folder: str) -> str:
    """Name the checkpoints in a folder of this machine that is none itself, as a job's; nothing without any."""
    here = Path(folder)
    inside = sorted(path.parent.name for path in here.glob("*/commits")) if here.is_dir() else []
    return f"; there are checkpoints in it: {', '.join(inside)}" if inside else ""


def committed(files: PlainFiles, batch: int | None = None) -> int:
    """Return the number of the last committed batch, or ``batch`` if it is a committed one; ``FkJoinError`` without any."""
    numbers = files.numbers("commits")
    if not numbers:
        if not files.are_there:
            raise FkJoinError(f"checkpoint {files.checkpoint} is not there")
        raise FkJoinError(
            f"checkpoint {files.checkpoint} has no committed batch{checkpoints_in(files.checkpoint)}: give the "
            "checkpointLocation of a query that has finished one (of a job: CHECKPOINT/sink-NAME or sinks-TABLE)"
        )
    if batch is not None and batch not in numbers:
        raise FkJoinError(f"batch: {files.checkpoint} has batches {numbers[0]} to {numbers[-1]}, not {batch}")
    return numbers[-1] if batch is None else batch


def at_commit(files: PlainFiles, batch: int | None, work: Callable[[Commit], _T]) -> _T:
    """Return what ``work`` makes of a batch; of the newest without a number, or a later one if Spark removes files meanwhile.

    ``FkJoinError`` says in which checkpoint there is no such batch, or damage.
    """
    for _ in range(_TRIES):
        number = committed(files, batch)
        try:
            with _named(files):
                return work(commit_of(files, number))
        except FileNotFoundError as error:
            if committed(files, batch) == number:
                raise FkJoinError(
                    f"checkpoint {files.checkpoint} is damaged, a file of its batch {number} is not there: {RESTORE} ({error})"
                ) from error
    raise FkJoinError(
        f"checkpoint {files.checkpoint}: Spark has removed the files of {_TRIES} batches in turn before they were "
        "read (spark.sql.streaming.minBatchesToRetain says how many it keeps)"
    )


@contextlib.contextmanager
def _named(files: PlainFiles) -> Iterator[None]:
    """Say of damage in which checkpoint it is."""
    try:
        yield
    except ForeignFormatError as error:
        raise OnlySparkError(f"checkpoint {files.checkpoint}: {error}") from error
    except (StateError, FormatError) as error:
        raise FkJoinError(f"checkpoint {files.checkpoint}: {error}") from error


def commit_of(files: PlainFiles, batch: int) -> Commit:
    """Read which versions of the state a batch left; ``FkJoinError`` if this cannot be told, or their form is another."""
    about = _second_line(files, f"commits/{batch}")
    ids = about.get("stateUniqueIds") or {}
    if not ids:
        if not files.numbers("state"):
            raise FkJoinError(f"checkpoint {files.checkpoint} has no state: its query has no operator that keeps any")
        raise OnlySparkError(
            f"checkpoint {files.checkpoint} does not say which files of its state were committed: it is not of checkpoint "
            "format 2"
        )
    kept = _second_line(files, f"offsets/{batch}").get("conf", {})
    for name, wanted in _SETTINGS.items():
        if kept.get(name, wanted) != wanted:
            raise OnlySparkError(
                f"checkpoint {files.checkpoint} was begun with {name}={kept[name]}, whose files only Spark reads: "
                "fkjoin.read_state reads it in a session"
            )
    return Commit(batch, {int(n): tuple(Version(batch + 1, str(one[0])) for one in of) for n, of in ids.items()})


def is_ours(files: PlainFiles, operator: int) -> bool:
    """Tell whether a stateful operator is one of fkjoin's."""
    folder = f"state/{operator}/_metadata/v2"
    numbers = files.numbers(folder)
    if not numbers:
        return False
    about = _second_line(files, f"{folder}/{numbers[-1]}")
    if not str(about.get("operatorInfo", {}).get("operatorName")).startswith("transformWithState"):
        return False
    variables = json.loads(about.get("operatorPropertiesJson") or "{}").get("stateVariables", [])
    return sorted((one["stateName"], one["stateVariableType"]) for one in variables) == _OURS


def _second_line(files: PlainFiles, name: str) -> dict[str, Any]:
    """Read the JSON of a log of Spark's, which stands below a line with its form; ``FormatError`` if it is damaged."""
    try:
        return dict(json.loads(files.read(name).decode().splitlines()[1]))
    except (ValueError, TypeError, IndexError) as error:
        raise FormatError(f"{name} is damaged: {RESTORE} ({error})") from error
