"""Records of internal topics that every query has read, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.kafka.admin import delete_records
from fkjoin.kafka.committed_offsets import (
    Offsets,
    committed_offsets,
    internal_connections,
    internal_ranges,
)
from fkjoin.kafka.internal import StageQuery


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
