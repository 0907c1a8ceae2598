"""Offsets up to which a query has read internal topics, by its checkpoint's committed batches.

And the records that it has yet to read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import files_at
from fkjoin.kafka.admin import offset_ranges
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.new_topics import both_logs, offsets_of

Offsets = dict[int, int]
"""An offset of each partition."""


def internal_connections(stages: Iterable[StageQuery]) -> dict[str, Connection]:
    """Name the internal topics that the stages write to and read, with how each is reached."""
    connections: dict[str, Connection] = {}
    for stage in stages:
        own = filter(None, (stage.topics.last, stage.internal))
        connections |= dict.fromkeys(own, stage.topics.connection)
    return connections


def internal_ranges(stages: Iterable[StageQuery]) -> dict[str, dict[int, range]]:
    """The offsets that each partition of the internal topics has."""
    return {
        topic: offset_ranges(topic, connection.bootstrap_servers, connection.options)
        for topic, connection in internal_connections(stages).items()
    }


def committed_offsets(
    spark: SparkSession, checkpoint: str, topics: Sequence[str], *, newest: bool = False
) -> dict[str, list[Offsets]] | None:
    """Find where the oldest batch that the checkpoint keeps has ended, in each topic.

    These are the topics that the query reads.  A query that reads a topic in several places has
    several offsets of it.  ``newest``: where the last committed batch has ended.  None if no batch
    is committed.
    """
    files = files_at(spark, checkpoint)
    for number in sorted(both_logs(files), reverse=newest):
        with contextlib.suppress(FileNotFoundError):  # a running query deletes the oldest
            text = files.read(f"offsets/{number}").decode()
            break
    else:
        return None
    ended: dict[str, list[Offsets]] = {}
    for line in text.split("\n"):
        for topic in topics:
            if (offsets := offsets_of(line, topic)) is not None:
                numbered_offsets = {int(number): offset for number, offset in offsets.items()}
                ended.setdefault(topic, []).append(numbered_offsets)
    return ended


class InFlight(NamedTuple):
    """Records of an internal topic that lie behind what a query has committed."""

    topic: str
    query: str
    """The query that has yet to read them."""
    records: int


def in_flight(
    spark: SparkSession, stages: Sequence[StageQuery], checkpoints: Mapping[str, str]
) -> list[InFlight]:
    """Find what is in flight in the topics between the stages; nothing where they are drained.

    ``checkpoints``: of all queries, by their names.  A query without a committed batch has
    yet to read everything.
    """
    ranges = internal_ranges(stages)
    read = {
        query: committed_offsets(spark, checkpoint, list(ranges), newest=True)
        for query, checkpoint in checkpoints.items()
    }
    return unread(ranges, read)


def unread(
    ranges: Mapping[str, Mapping[int, range]],
    read: Mapping[str, Mapping[str, Sequence[Offsets]] | None],
) -> list[InFlight]:
    """Find the records that queries have yet to read.

    ``ranges``: the offsets that each partition of a topic has; ``read``: where each query stands in
    the topics that it reads, None if it has committed nothing.  Of a topic that no query has read,
    any may be a reader.
    """
    flights = []
    for topic, partitions in ranges.items():
        known = read.items()
        readers = {query: ends for query, ends in known if ends is None or topic in ends}
        for query, ends in (readers or dict.fromkeys(read)).items():
            positions: Sequence[Offsets] = [{}] if ends is None else ends[topic]
            records = max(_left(partitions, position) for position in positions)
            if records:
                flights.append(InFlight(topic, query, records))
    return flights


def _left(partitions: Mapping[int, range], position: Offsets) -> int:
    """Count the offsets of partitions from where a query stands."""
    left = 0
    for number, offsets in partitions.items():
        left += max(0, offsets.stop - max(offsets.start, position.get(number, 0)))
    return left
