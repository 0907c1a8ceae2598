"""Offsets up to which a query has read internal topics, by its checkpoint's committed batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import files_at
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.new_topics import both_logs, offsets_of
from fkjoin.storage.files import Files

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
    files = files_at(spark, checkpoint)
    texts = (_text(files, number) for number in sorted(both_logs(files), reverse=newest))
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


def _text(files: Files, batch: int) -> str | None:
    """The text of a batch's file; None if it is gone: a running query deletes the oldest."""
    try:
        return files.read(f"offsets/{batch}").decode()
    except FileNotFoundError:
        return None
