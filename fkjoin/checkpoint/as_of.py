"""The batch that was the last one at a time, by when a checkpoint's batches were committed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import hadoop
from fkjoin.errors import FkJoinError


class Committed(NamedTuple):
    """A batch, and when its file in ``commits`` was last written."""

    batch: int
    ms: int


def batch_as_of(spark: SparkSession, checkpoint: str, as_of: datetime | str) -> int:
    """Return the newest batch that was committed at or before a time; ``FkJoinError`` if none is there any more."""
    at = _milliseconds(spark, as_of)
    return newest(checkpoint, _committed(spark, checkpoint), at, str(as_of))


def newest(checkpoint: str, batches: Sequence[Committed], at: int, shown: str) -> int:
    """Choose the newest of ``batches`` whose file was written by the time ``at``, which a message calls ``shown``."""
    newest_first = sorted(batches, reverse=True)
    found = next((one for one in newest_first if one.ms <= at), None)
    if found is None:
        oldest = (
            f"the oldest that is there, {newest_first[-1].batch}, is of {_text(newest_first[-1].ms)}"
            if batches
            else "it has none"
        )
        raise FkJoinError(f"as_of: {checkpoint} has no batch that was committed at or before {shown}: {oldest}")
    return found.batch


def _committed(spark: SparkSession, checkpoint: str) -> list[Committed]:
    place, files = hadoop(spark, f"{checkpoint.rstrip('/')}/commits")
    found = files.listStatus(place) if files.exists(place) else []
    return [
        Committed(int(status.getPath().getName()), int(status.getModificationTime()))
        for status in found
        if status.getPath().getName().isdigit()
    ]


def _milliseconds(spark: SparkSession, as_of: datetime | str) -> int:
    """Read a time as Spark reads a timestamp: without a zone it is of the session's."""
    if not isinstance(as_of, datetime | str):
        raise _no_time(as_of)
    if isinstance(as_of, datetime) and as_of.tzinfo is not None:
        return int(as_of.timestamp() * 1000)
    text = as_of if isinstance(as_of, str) else as_of.isoformat(sep=" ")
    (row,) = spark.sql("select unix_millis(try_cast(:at as timestamp)) as ms", {"at": text}).collect()
    if row.ms is None:
        raise _no_time(as_of)
    return int(row.ms)


def _text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(sep=" ", timespec="milliseconds")


def _no_time(given: object) -> FkJoinError:
    return FkJoinError(f"as_of: {given!r} is no time; give a datetime, or a text such as '2026-11-27 06:45:00'")
