"""Messages on checkpoints that are damaged, in use, or another job's; and a check of the files that Spark does not check."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import hadoop
from fkjoin.errors import FkJoinError, first_line
from fkjoin.spark.cause import innermost

RESTORE = (
    "restore it from a backup (to the same path), or start with a new checkpoint and an empty target, and replay the sources"
)

NEW_OR_BACK = (
    "start this version of the job with a new checkpoint and an empty target, or go back to what the checkpoint was made with"
)

_DAMAGED = (
    "CANNOT_LOAD_STATE_STORE",
    "CANNOT_READ_STREAMING_STATE_FILE",
    "STDS_FAILED_TO_READ_OPERATOR_METADATA",
    "/_stateSchema/",
)
_UNREADABLE = ("Unexpected end-of-input", "Unexpected character", "Incomplete log file", "ChecksumException", "Checksum error")
"""Words about files of a checkpoint, and of others: they count where a path below the checkpoint is named."""
_ELSEWHERE = re.compile(r"No space left on device|Disk quota exceeded|Connection refused|Connection reset|UnknownHostException")
"""Words about what keeps a state from being loaded though it is whole."""
_FROM_A_WORKER = ("fkjoin.errors.", "fkjoin.state.errors.", "PythonException")
"""A record that a user's function cannot parse reads much like a log that Spark cannot."""
_IN_USE = ("Multiple streaming queries are concurrently using", "CONCURRENT_STREAM_LOG_UPDATE", "Concurrent update to the")
_KEPT = 2

_ESCAPED = re.compile(r'[\s%#?{}^`|"<>\[\]\\]')
"""Characters that Spark's source of state writes in another way, as in URLs, before it looks for a folder."""


def explain(error: str, checkpoint: str) -> tuple[str, str] | None:
    """Say what a query's error means, and what to do, when it comes from its checkpoint; None when it does not."""
    first = error.split("=== Streaming Query ===", 1)[0]
    if any(mark in first for mark in _FROM_A_WORKER):
        return None
    if any(mark in first for mark in _IN_USE):
        return (
            f"another query is writing to checkpoint {checkpoint}",
            f"stop one of the two. If there is none, the newest file of its folder commits/ was lost: {RESTORE}",
        )
    if "sources in the checkpoint offsets and now there are" in first:
        return (
            f"checkpoint {checkpoint} was made by a query that reads another number of tables and snapshots "
            f"({innermost([first]).text})",
            NEW_OR_BACK,
        )
    if "STATEFUL_OPERATOR_NOT_MATCH" in first:
        return (
            f"checkpoint {checkpoint} was made by a query with other operators",
            f"{NEW_OR_BACK}, also in spark.fkjoin.optimize and spark.fkjoin.optimizer.excludedRules",
        )
    of_checkpoint = checkpoint.removeprefix("file:").rstrip("/") in first and any(mark in first for mark in _UNREADABLE)
    if (of_checkpoint or any(mark in first for mark in _DAMAGED)) and not _ELSEWHERE.search(first):
        return f"checkpoint {checkpoint} is damaged, its state cannot be read ({innermost([first]).text})", RESTORE
    return None


def damaged(checkpoint: str, error: Exception) -> FkJoinError:
    """Make the error for a state that Spark cannot read; raises the error itself if it is not of the checkpoint."""
    if "Python worker" in str(error):
        raise error
    if (odd := _ESCAPED.search(checkpoint)) is not None:
        return FkJoinError(
            f"checkpoint {checkpoint}: Spark's source of state does not find folders with {odd[0]!r} in their path; "
            "read a copy, or a link to it, under another name (queries can go on where they are)"
        )
    first = first_line(error)
    return FkJoinError(f"checkpoint {checkpoint} is damaged, its state cannot be read: {RESTORE} ({first})")


def check_logs(spark: SparkSession, checkpoint: str) -> None:
    """Read the newest entries of the logs that say where a query goes on; ``FkJoinError`` when one is not as it was written.

    Spark reads them without regard to their checksums: a damaged one could make it skip input.
    """
    place, files = hadoop(spark, checkpoint)
    jvm: Any = spark._jvm
    for folder in ("offsets", "commits", *_children(jvm, files, place, "sources/*")):
        names = [name for name in _children(jvm, files, place, f"{folder}/*") if PurePosixPath(name).name.isdigit()]
        for name in sorted(names, key=lambda name: int(PurePosixPath(name).name))[-_KEPT:]:
            try:
                stream = files.open(jvm.org.apache.hadoop.fs.Path(place, name))
                jvm.org.apache.hadoop.io.IOUtils.copyBytes(stream, jvm.java.io.OutputStream.nullOutputStream(), 4096, True)
            except Exception as error:
                raise FkJoinError(
                    f"checkpoint {checkpoint} is damaged: {name} is not as it was written; {RESTORE} ({_line(str(error))})"
                ) from error


def _children(jvm: Any, files: Any, place: Any, pattern: str) -> list[str]:
    """The paths below ``place`` that match, relative to it."""
    found = files.globStatus(jvm.org.apache.hadoop.fs.Path(place, pattern)) or []
    depth = pattern.count("/") + 1
    return ["/".join(str(status.getPath()).split("/")[-depth:]) for status in found]


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
