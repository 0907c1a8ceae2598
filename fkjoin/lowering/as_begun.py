"""A table as the query of a checkpoint reads it: the checkpoint's document says how the query was begun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from fkjoin.analysis.written import require_what_was_read
from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.begun import Begun
from fkjoin.files.kept_schemas import keep, kept_folders
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.new_topics import Checked, checked_topics
from fkjoin.lowering.recipes import Remembered, learned_sources, made_again, recipes_below

_T = TypeVar("_T", bound=Remembered)


def as_begun(
    spark: SparkSession, table: _T, checkpoint: str, *, stateful: bool, events: Sequence[Connection] = ()
) -> tuple[_T, Begun]:
    """The table as the checkpoint knows it: columns of files, topics that have started over, snapshots that were read.

    Returns also the checkpoint's document with new columns and topics, to be written when the query
    is about to start.  ``stateful``: the query keeps state.  ``events``: the topics of events that
    it reads.

    Raises ``FkJoinError`` for a topic that was made anew and is not to start over, and for a folder of ``to_parquet`` whose
    batches, which the query has read, were set aside.
    """
    for _, recipe in recipes_below(table):
        if recipe.folder is not None:
            require_what_was_read(spark, checkpoint.rstrip("/"), recipe.folder)
    begun = Begun.of(spark, checkpoint)
    sources = [(one, recipe.connection) for one, recipe in recipes_below(table) if recipe.connection is not None]
    topics = [*(connection for _, connection in sources), *events]
    again = _topics(sources, checked_topics(spark, checkpoint, begun, topics, stateful=stateful))
    others = {**_columns(table, begun), **again, **_snapshots(spark, table, checkpoint)}
    return made_again(table, others) if others else table, begun


def with_read_snapshots(spark: SparkSession, table: _T, checkpoint: str) -> _T:
    """The table without the rows of snapshots that the query of the checkpoint has read."""
    others = _snapshots(spark, table, checkpoint)
    return made_again(table, others) if others else table


def _snapshots(spark: SparkSession, table: Remembered, checkpoint: str) -> dict[int, dict[str, Any]]:
    """Arguments for ``made_again``: of snapshots that the query has read, which its first batch does as a whole."""
    found = [one for one, recipe in recipes_below(table) if "was_read" in recipe.named]
    was_read = bool(found) and BatchLog(spark, checkpoint.rstrip("/")).done >= 0
    return {id(one): {"was_read": True} for one in found} if was_read else {}


def _columns(table: Remembered, begun: Begun) -> dict[int, dict[str, Any]]:
    """Arguments for ``made_again``: the columns of files as the query was begun with them, if it was."""
    others: dict[int, dict[str, Any]] = {}
    for name, tables in learned_sources(table).items():
        _, recipe = tables[0]
        kept = keep(begun.columns, name, recipe.learned, recipe.folders)
        other: dict[str, Any] = {}
        if recipe.learned is not None and kept.schema != recipe.learned:
            other["schema"] = kept.schema
        if recipe.folders is not None and (other or kept.folders != recipe.folders):
            other |= {"kept": kept_folders(kept, learned=recipe.learned is not None)}
        if other:
            others |= {id(one): other for one, _ in tables}
    return others


def _topics(sources: Sequence[tuple[Any, Connection]], checked: Sequence[Checked]) -> dict[int, dict[str, Any]]:
    """Arguments for ``made_again``: of topics that start over, and of those that have another id since the table was made."""
    others: dict[int, dict[str, Any]] = {}
    for (one, connection), topic in zip(sources, checked, strict=False):  # events are not made again
        if topic.start_over is not None:
            others[id(one)] = {"again": topic.start_over}
        elif topic.topic_id != connection.topic_id:
            others[id(one)] = {}
    return others
