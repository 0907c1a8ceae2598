"""Offsets up to which a query has read internal topics, by the batches that its checkpoint has committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import hadoop, numbered, read_file
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.new_topics import offsets_of

Offsets = dict[int, int]
"""An offset of each partition."""


def internal_connections(stages: Iterable[StageQuery]) -> dict[str, Connection]:
    """Name the internal topics that the stages write to and read, with how each is reached."""
    found: dict[str, Connection] = {}
    for stage in stages:
        found |= dict.fromkeys(filter(None, (stage.topics.last, stage.internal)), stage.topics.connection)
    return found


def committed_offsets(
    spark: SparkSession, checkpoint: str, topics: Sequence[str], *, newest: bool = False
) -> dict[str, list[Offsets]] | None:
    """Find where the oldest batch that the checkpoint keeps has ended in each topic that the query reads.

    A query that reads a topic in several places has several offsets of it.  ``newest``: where the last committed batch has
    ended.  None if that batch is not committed, or if there is none.
    """
    begun, done = (dict(numbered(spark, f"{checkpoint}/{log}")) for log in ("offsets", "commits"))
    number = max(begun.keys() & done.keys(), default=-1) if newest else min(begun, default=-1)
    if number not in begun or number not in done:
        return None
    found: dict[str, list[Offsets]] = {}
    for line in read_file(*hadoop(spark, begun[number])).decode().split("\n"):
        for topic in topics:
            if (offsets := offsets_of(line, topic)) is not None:
                found.setdefault(topic, []).append({int(partition): offset for partition, offset in offsets.items()})
    return found
