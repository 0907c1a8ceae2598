"""Messages on checkpoints that are damaged, in use, or another job's."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError

from fkjoin.errors import FkJoinError
from fkjoin.spark.cause import innermost, texts_of

RESTORE = (
    "restore it from a backup (to the same path), or start with a new checkpoint and an empty "
    "target, and replay the sources"
)

NEW_OR_BACK = (
    "start this version of the job with a new checkpoint and an empty target, or go back to what "
    "the checkpoint was made with"
)

TAKEN_OVER = "has taken over the claim on checkpoint"
"""Words of an error; the way out differs from the way out of a batch that fails."""

_DAMAGED = (
    "CANNOT_LOAD_STATE_STORE",
    "CANNOT_READ_STREAMING_STATE_FILE",
    "STDS_FAILED_TO_READ_OPERATOR_METADATA",
    "/_stateSchema/",
)
_UNREADABLE = (
    "Unexpected end-of-input",
    "Unexpected character",
    "Incomplete log file",
    "ChecksumException",
    "Checksum error",
)
"""Words about files of a checkpoint, and of others.

They count where a path below the checkpoint is named.
"""
_ELSEWHERE = re.compile(
    r"No space left on device|Disk quota exceeded"
    r"|Connection refused|Connection reset|UnknownHostException"
)
"""Words about what keeps a state from being loaded though it is whole."""
_FROM_A_WORKER = ("fkjoin.errors.", "fkjoin.state.errors.", "PythonException")
"""A record that a user's function cannot parse reads much like a log that Spark cannot."""
_IN_USE = (
    "Multiple streaming queries are concurrently using",
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Concurrent update to the",
)


def explain(error: str, checkpoint: str) -> tuple[str, str] | None:
    """Say what a query's error means, and what to do; None when its checkpoint is not the cause."""
    first = error.split("=== Streaming Query ===", 1)[0]
    if any(mark in first for mark in _FROM_A_WORKER):
        return None
    if any(mark in first for mark in _IN_USE):
        return (
            f"another query is writing to checkpoint {checkpoint}",
            "stop one of the two. If there is none, the newest file of its folder commits/ was "
            f"lost: {RESTORE}",
        )
    if "sources in the checkpoint offsets and now there are" in first:
        return (
            f"checkpoint {checkpoint} was made by a query that reads another number of tables and "
            f"snapshots ({innermost([first]).text})",
            NEW_OR_BACK,
        )
    if "STATEFUL_OPERATOR_NOT_MATCH" in first:
        return (
            f"checkpoint {checkpoint} was made by a query with other operators",
            f"{NEW_OR_BACK}, also in spark.fkjoin.optimize and "
            "spark.fkjoin.optimizer.excludedRules",
        )
    unreadable = any(mark in first for mark in _UNREADABLE)
    of_checkpoint = unreadable and checkpoint.removeprefix("file:").rstrip("/") in first
    if (of_checkpoint or any(mark in first for mark in _DAMAGED)) and not _ELSEWHERE.search(first):
        return (
            f"checkpoint {checkpoint} is damaged, its state cannot be read "
            f"({innermost([first]).text})",
            RESTORE,
        )
    return None


def damaged(
    checkpoint: str, error: Exception, problem: str = "its state cannot be read"
) -> FkJoinError:
    """Make the error for a checkpoint that cannot be read.

    Raises ``error`` itself if it is not of that.
    """
    texts = texts_of(error.java_exception) if isinstance(error, Py4JJavaError) else [str(error)]
    cause = innermost(texts)
    if cause.ours:
        return FkJoinError(cause.text)
    whole = "\n".join(texts)
    if any(mark in whole for mark in _UNREADABLE):
        return FkJoinError(
            f"checkpoint {checkpoint} is damaged: {problem}; {RESTORE} ({cause.text})"
        )
    raise error
