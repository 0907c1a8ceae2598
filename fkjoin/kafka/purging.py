"""Internal topics and their readers: what is committed, what is in flight, and purging.

A query has read a topic up to the offsets of its checkpoint's committed batches.  Records that
every query has read can be deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import files_at
from fkjoin.errors import FkJoinError
from fkjoin.kafka.admin import delete_records, offset_ranges
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.new_topics import both_logs, offsets_of

Offsets = dict[int, int]
"""An offset of each partition."""


def internal_connections(stages: Iterable[StageQuery]) -> dict[str, Connection]:
    """Name the internal topics that the stages write to and read, with how each is reached."""
    connections: dict[str, Connection] = {}
    for stage in stages:
        connections |= {stage.topics.last: stage.topics.connection, **stage.internal}
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


def purge(
    stages: Sequence[StageQuery], checkpoints: Sequence[str | Path]
) -> dict[str, dict[int, int]]:
    """Delete the records of internal topics that all kept batches of their readers have read.

    A checkpoint keeps its last batches, by default 100, and a query may continue from each of them.
    So records after the oldest of these batches stay. A query cannot continue from an older backup
    of its checkpoint afterwards.

    Parameters
    ----------
    stages : sequence of StageQuery
        ``table.stages`` of a table with staged joins or aggregates.
    checkpoints : sequence of path
        The checkpoints of **all** queries that read these topics: the queries of the stages, and
        all queries of the table, including queries of dead letters. A query that is not named may
        x

    Returns
    -------
    dict of str to (dict of int to int)
        For each topic, by partition, the offset of the first record that stays.

    Raises
    ------
    FkJoinError
        If a checkpoint does not contain a committed batch, or if its query reads none of these
        topics. Also if you name no checkpoint of a topic. Nothing is deleted then. Also if the
        brokers refuse to delete records of a topic; the topics before it are purged then.

    Examples
    --------
    >>> from fkjoin.kafka import purge
    >>> left = purge(joined.stages, ["ck/joined-subscription", "ck/resolve"])
    """
    if not stages:
        raise FkJoinError(
            "stages: there are none; a table with a staged join or aggregate has stages"
        )
    spark, connections = stages[0].spark, internal_connections(stages)
    read: dict[str, list[Offsets]] = {topic: [] for topic in connections}
    for checkpoint in checkpoints:
        folder = str(checkpoint).rstrip("/")
        for topic, offsets in _read(spark, folder, list(connections)).items():
            read[topic] += offsets
    if missing := [topic for topic, readers in read.items() if not readers]:
        raise FkJoinError(
            f"checkpoints: none belongs to a query that reads {missing[0]}; "
            "name the checkpoints of all queries that do"
        )
    firsts = {topic: _first(readers) for topic, readers in read.items()}
    for topic, before in firsts.items():
        connection = connections[topic]
        delete_records(topic, connection.bootstrap_servers, connection.options, before)
    return firsts


def _first(readers: Sequence[Offsets]) -> dict[int, int]:
    """Find the least offset of each partition; a reader without one has read nothing of it."""
    firsts: dict[int, int] = {}
    for number in set[int]().union(*readers):
        firsts[number] = min(offsets.get(number, 0) for offsets in readers)
    return firsts


def purge_read(
    stages: Sequence[StageQuery], checkpoints: Sequence[str]
) -> dict[str, dict[int, int]]:
    """Purge as ``purge`` does; ``checkpoints``: of all queries.

    Some read no internal topic.  Nothing is deleted as long as one of them has no committed batch,
    since it is not known what that query reads.
    """
    spark, topics = stages[0].spark, list(internal_connections(stages))
    read = {folder: committed_offsets(spark, folder, topics) for folder in checkpoints}
    if None in read.values():
        return {}
    return purge(stages, [folder for folder, offsets in read.items() if offsets])


def internal_records(stages: Sequence[StageQuery]) -> dict[str, int]:
    """Count the offsets that each internal topic has."""
    ranges = internal_ranges(stages).items()
    return {topic: sum(map(len, partitions.values())) for topic, partitions in ranges}


def _read(spark: SparkSession, checkpoint: str, topics: Sequence[str]) -> dict[str, list[Offsets]]:
    """Find where the oldest batch that the checkpoint keeps has ended, in each topic it reads."""
    offsets = committed_offsets(spark, checkpoint, topics)
    if offsets is None:
        raise FkJoinError(
            f"checkpoints: {checkpoint} has no batch that is committed; "
            "purge when its query has read something"
        )
    if not offsets:
        raise FkJoinError(
            f"checkpoints: {checkpoint} belongs to a query that reads none of "
            f"{', '.join(topics)}; leave it out"
        )
    return offsets
