"""A table as the query of a checkpoint reads it: what is beside the checkpoint says how the query was begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fkjoin.files.kept_schemas import kept_columns
from fkjoin.kafka.new_topics import checked_topics
from fkjoin.lowering.recipes import below, made_again
from fkjoin.plan.nodes import Source

if TYPE_CHECKING:
    from fkjoin.table import Table


def as_begun(table: Table, checkpoint: str) -> Table:
    """The table with the columns of files that the checkpoint knows, and with topics that have started over.

    Raises ``FkJoinError`` for a topic that was made anew and is not to start over, and for a folder of ``to_parquet`` whose
    batches, which the query has read, were set aside.
    """
    _require_what_was_read(table, checkpoint)
    others = {**kept_columns(table, checkpoint), **_topics(table, checkpoint)}
    return made_again(table, others) if others else table


def _require_what_was_read(table: Table, checkpoint: str) -> None:
    from fkjoin.analysis.written import require_what_was_read
    from fkjoin.table import Table  # it starts queries

    for one in below(table):
        if one.recipe.make == Table.from_fkjoin:
            spark, path, *_ = one.recipe.arguments
            require_what_was_read(spark, checkpoint.rstrip("/"), str(path).rstrip("/"))


def _topics(table: Table, checkpoint: str) -> dict[int, dict[str, Any]]:
    """Arguments for ``made_again``: of topics that start over, and of those that have another id since the table was made."""
    sources = [one for one in below(table) if one.recipe.connection is not None]
    if not sources:
        return {}
    connections = [one.recipe.connection for one in sources]
    stateful = not isinstance(table.node, Source)
    checked = checked_topics(table.frame.sparkSession, checkpoint, connections, stateful=stateful)
    found: dict[int, dict[str, Any]] = {}
    for one, topic in zip(sources, checked, strict=True):
        if topic.start_over is not None:
            found[id(one)] = {"again": topic.start_over}
        elif topic.topic_id != one.recipe.connection.topic_id:
            found[id(one)] = {}
    return found
