"""A table as the query of a checkpoint reads it: its document says how the query was begun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from fkjoin.analysis.planned import Planned
from fkjoin.analysis.snapshots import with_snapshot
from fkjoin.analysis.written import require_what_was_read
from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.begun import Begun
from fkjoin.files.kept_schemas import keep
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.new_topics import checked_topics
from fkjoin.lowering.enrich import topics_of_events
from fkjoin.plan.base import in_order
from fkjoin.plan.nodes import Source

OtherOptions = Mapping[Planned, Mapping[str, Any]]
"""Options in the place of the options in tables' calls; empty ones repeat a call, too."""


def as_begun(table: Planned, checkpoint: str) -> tuple[Planned, Begun]:
    """The table as the checkpoint knows it, and what the query was begun with.

    The checkpoint knows columns of files, topics that have started over, and snapshots that were
    read.  Columns and topics that are new come with what the query was begun with, to be written
    when it is about to start.

    Raises ``FkJoinError`` for a topic that was created again and is not to start over, and for a
    folder of ``to_parquet`` whose batches, which the query has read, were set aside;
    ``TopologyError`` for a snapshot that is to be read and does not fit.
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
    """The table without the rows of snapshots that the query of the checkpoint has read.

    Other snapshots must fit.
    """
    table = bound_again(table, _snapshots(table, checkpoint))
    table.require_fitting()
    return table


def topics_of(table: Planned) -> list[Connection]:
    """The topics that a query of the table reads, but for internal ones."""
    read = [source.connection for source in read_below(table)]
    return [*(topic for topic in read if topic is not None), *topics_of_events(table)]


def read_below(table: Planned) -> list[Planned]:
    """The tables that calls have read, of which the table is made, each once."""
    return [
        source for source in _calls(table) if source.call is not None and not source.call.tables
    ]


def bound_again(table: Planned, others: OtherOptions) -> Planned:
    """The table with some of its calls repeated with other options.

    So are all calls that were given such tables: a call may keep anything of a table that it is
    given, such as types, timestamps, or columns of an aggregate.
    """

    @cache
    def again(planned: Planned) -> Planned:
        call = planned.call
        if call is None:
            return planned
        tables = tuple(map(again, call.tables))
        if planned not in others and tables == call.tables:
            return planned
        options = {**call.options, **others.get(planned, {})}
        repeat = replace(call, tables=tables, options=options)
        return replace(call.bind(*tables, **options), call=repeat)

    return again(table)


def _calls(table: Planned) -> Iterator[Planned]:
    """The table and those that its calls were given, each once."""
    return in_order(table, inputs=lambda called: called.call.tables if called.call else ())


def _snapshots(table: Planned, checkpoint: str) -> OtherOptions:
    """Options of snapshots that the query has read, which its first batch does as a whole."""
    snapshots = [
        called
        for called in _calls(table)
        if called.call is not None and called.call.bind is with_snapshot
    ]
    if not snapshots or BatchLog(table.spark, checkpoint.rstrip("/")).done < 0:
        return {}
    return {snapshot: {"was_read": True} for snapshot in snapshots}


def _columns(table: Planned, begun: Begun) -> OtherOptions:
    """The columns of files as the query was begun with them, if it was."""
    others: dict[Planned, Mapping[str, Any]] = {}
    for name, sources in _learned(table).items():
        source = sources[0].bound
        columns = keep(begun.columns, name, source.learned, source.folders)
        if columns.schema != source.learned:
            options: dict[str, Any] = {"schema": columns.schema}
            if columns.folders:
                options["begun_folders"] = columns.folders
            others |= dict.fromkeys(sources, options)
    return others


def _learned(table: Planned) -> dict[str, list[Planned]]:
    """The sources whose columns were learned, by name; sources of the same files are together."""
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
    """Options of topics that start over, or have another id since the table was made."""
    sources = [source for source in read_below(table) if source.connection is not None]
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
