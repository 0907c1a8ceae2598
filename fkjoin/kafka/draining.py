"""Records of internal topics that a query has yet to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from fkjoin.kafka.admin import offset_ranges
from fkjoin.kafka.committed_offsets import Offsets, committed_offsets, internal_connections
from fkjoin.kafka.internal import StageQuery


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

    ``checkpoints``: those of all queries, by their names.  A query without a committed batch has
    yet to read everything.
    """
    connections = internal_connections(stages)
    ranges = {
        topic: offset_ranges(topic, connection.bootstrap_servers, connection.options)
        for topic, connection in connections.items()
    }
    read = {
        query: committed_offsets(spark, checkpoint, list(connections), newest=True)
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
