"""Offsets up to which a query has read internal topics, by its checkpoint's committed batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import hadoop, numbered, read_file
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.new_topics import offsets_of

Offsets = dict[int, int]
"""An offset of each partition."""


def internal_connections(stages: Iterable[StageQuery]) -> dict[str, Connection]:
    """Name the internal topics that the stages write to and read, with how each is reached."""
    connections: dict[str, Connection] = {}
    for stage in stages:
        own = filter(None, (stage.topics.last, stage.internal))
        connections |= dict.fromkeys(own, stage.topics.connection)
    return connections


def committed_offsets(
    spark: SparkSession, checkpoint: str, topics: Sequence[str], *, newest: bool = False
) -> dict[str, list[Offsets]] | None:
    """Find where the oldest batch that the checkpoint keeps has ended, in each topic.

    These are the topics that the query reads.  A query that reads a topic in several places has
    several offsets of it.  ``newest``: where the last committed batch has ended.  None if no batch
    is committed.
    """
    begun, done = (dict(numbered(spark, f"{checkpoint}/{log}")) for log in ("offsets", "commits"))
    committed = sorted(begun.keys() & done.keys(), reverse=newest)
    texts = (_text(spark, begun[number]) for number in committed)
    text = next((text for text in texts if text is not None), None)
    if text is None:
        return None
    ended: dict[str, list[Offsets]] = {}
    for line in text.split("\n"):
        for topic in topics:
            if (offsets := offsets_of(line, topic)) is not None:
                numbered_offsets = {int(number): offset for number, offset in offsets.items()}
                ended.setdefault(topic, []).append(numbered_offsets)
    return ended


def _text(spark: SparkSession, file: str) -> str | None:
    """The text of a batch's file; None if it is gone: a running query deletes the oldest."""
    path, files = hadoop(spark, file)
    try:
        return read_file(path, files).decode()
    except (Py4JJavaError, OSError):
        if files.exists(path):
            raise
        return None
