"""A table as the query of a checkpoint reads it: the checkpoint's document says how the query was begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fkjoin.analysis.planned import Planned, tables_below
from fkjoin.analysis.snapshots import with_snapshot
from fkjoin.analysis.written import require_what_was_read
from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.begun import Begun
from fkjoin.files.kept_schemas import keep
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.new_topics import checked_topics
from fkjoin.lowering.enrich import topics_of_events
from fkjoin.plan.nodes import Source

OtherOptions = Mapping[Planned, Mapping[str, Any]]
"""Options in the place of those of tables' calls; empty ones repeat a call, too."""


def as_begun(table: Planned, checkpoint: str) -> tuple[Planned, Begun]:
    """The table as the checkpoint knows it: columns of files, topics that have started over, snapshots that were read.

    Returns also what the query was begun with, and columns and topics that are new, to be written
    when it is about to start.

    Raises ``FkJoinError`` for a topic that was made anew and is not to start over, and for a folder
    of ``to_parquet`` whose batches, which the query has read, were set aside; ``TopologyError`` for
    a snapshot that is to be read and does not fit.
    """
    spark = table.spark
    for source in read_below(table):
        written = getattr(source.bound, "written", None)
        if written is not None:
            require_what_was_read(spark, checkpoint.rstrip("/"), written)
    begun = Begun.of(spark, checkpoint)
    others = {**_columns(table, begun), **_topics(table, checkpoint, begun)}
    table = bound_again(table, {**others, **_snapshots(table, checkpoint)})
    table.require_fitting()
    return table, begun


def with_read_snapshots(table: Planned, checkpoint: str) -> Planned:
    """The table without the rows of snapshots that the query of the checkpoint has read; else they must fit."""
    table = bound_again(table, _snapshots(table, checkpoint))
    table.require_fitting()
    return table


def topics_of(table: Planned) -> list[Connection]:
    """The topics that a query of the table reads, but for internal ones."""
    read = [source.connection for source in read_below(table)]
    return [*(topic for topic in read if topic is not None), *topics_of_events(table)]


def read_below(table: Planned) -> list[Planned]:
    """The tables that calls have read, of which the table is made, each once."""
    return [one for one in _calls(table) if one.call is not None and not one.call.tables]


def bound_again(table: Planned, others: OtherOptions) -> Planned:
    """The table with some of its calls repeated with other options, and so all calls that were given such tables.

    A call may keep anything of a table that it is given: types, timestamps, columns of an aggregate.
    """
    made: dict[Planned, Planned] = {}

    def again(one: Planned) -> Planned:
        if one not in made:
            made[one] = repeated(one)
        return made[one]

    def repeated(one: Planned) -> Planned:
        call = one.call
        if call is None:
            return one
        of = tuple(map(again, call.tables))
        if one not in others and of == call.tables:
            return one
        options = {**call.options, **others.get(one, {})}
        return replace(call.bind(*of, **options), call=replace(call, tables=of, options=options))

    return again(table)


def _calls(table: Planned) -> list[Planned]:
    """The table and those that its calls were given, each once."""
    return tables_below(table, lambda one: () if one.call is None else one.call.tables)


def _snapshots(table: Planned, checkpoint: str) -> OtherOptions:
    """Options of snapshots that the query has read, which its first batch does as a whole."""
    calls = [one for one in _calls(table) if one.call is not None]
    snapshots = [one for one in calls if one.call is not None and one.call.bind is with_snapshot]
    if not snapshots or BatchLog(table.spark, checkpoint.rstrip("/")).done < 0:
        return {}
    return {one: {"was_read": True} for one in snapshots}


def _columns(table: Planned, begun: Begun) -> OtherOptions:
    """The columns of files as the query was begun with them, if it was."""
    others: dict[Planned, Mapping[str, Any]] = {}
    for name, sources in _learned(table).items():
        source = sources[0].bound
        kept = keep(begun.columns, name, source.learned, source.folders)
        if kept.schema != source.learned:
            options: dict[str, Any] = {"schema": kept.schema}
            if kept.folders:
                options["begun_folders"] = kept.folders
            others |= dict.fromkeys(sources, options)
    return others


def _learned(table: Planned) -> dict[str, list[Planned]]:
    """The sources whose columns were learned, by name; those of the same files are together."""
    alike: dict[tuple[Any, ...], list[Planned]] = {}
    for source in read_below(table):
        bound, call = source.bound, source.call
        assert call is not None
        if getattr(bound, "learned", None) is not None:
            files = source.name, bound.files, repr(call.options.get("key"))
            alike.setdefault(files, []).append(source)
    named: dict[str, list[Planned]] = {}
    for (name, *_), sources in alike.items():
        number = sum(other.partition("#")[0] == name for other in named)
        named[f"{name}#{number + 1}" if number else name] = sources
    return named


def _topics(table: Planned, checkpoint: str, begun: Begun) -> OtherOptions:
    """Options of topics that start over, and of those that have another id since the table was made."""
    sources = [one for one in read_below(table) if one.connection is not None]
    stateful = not isinstance(table.node, Source)
    checked = checked_topics(table.spark, checkpoint, begun, topics_of(table), stateful=stateful)
    others: dict[Planned, Mapping[str, Any]] = {}
    for source, topic in zip(sources, checked, strict=False):  # events are not read again
        assert source.connection is not None
        if topic.start_over is not None:
            others[source] = {"again": topic.start_over}
        elif topic.topic_id != source.connection.topic_id:
            others[source] = {}
    return others
