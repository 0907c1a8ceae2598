"""The stages of aggregates, flat maps, tables put together, events, and periodic emission."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import pairs, tags, versions
from fkjoin.codec.arrays import Bytes, masked, unpaired, valid
from fkjoin.codec.key_texts import keys_as_json
from fkjoin.codec.messages import EVENT, GROUPED, JOINED, NUMBERED, RESULT
from fkjoin.codec.records import Records
from fkjoin.folds.cogrouped import CoFold, numbered
from fkjoin.folds.fold import Fold
from fkjoin.folds.members import ColumnForm
from fkjoin.spark.specs import shown
from fkjoin.spark.specs.shown import Described, Shown
from fkjoin.spark.specs.spec import PART_BYTES, ByRow, Messages, RowsOrAnswers, StageSpec
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.close import Closing, close, late
from fkjoin.stages.counters import EVENTS_IN, HIDDEN, LATE, STREAM_TIME, WITHOUT_ROW, Counters
from fkjoin.stages.emit_on_change import HAS_RESULT
from fkjoin.stages.enrich import enrich
from fkjoin.stages.join_rows import How
from fkjoin.stages.merge import merge, shown_rows, slots_of
from fkjoin.stages.owners import owners, shown_outputs
from fkjoin.stages.pace import pace
from fkjoin.stages.regroup import regroup
from fkjoin.stages.spread import spread
from fkjoin.stages.time_windows import TimeWindows
from fkjoin.state import Reads, Store


def _contribution(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    group, value = unpaired(masked(held.body, held.flags & HAS_RESULT > 0))
    row = shown.rows_as_json(description.schemas["value"], value)
    groups = keys_as_json(description.schemas["key"], group)
    return Shown(keys_as_json(description.key, keys), groups, row)


@dataclass(frozen=True, kw_only=True)
class RegroupSpec(RowsOrAnswers):
    """regroup: a table's changes become changes of what its rows contribute to groups."""

    stage = "regroup"
    part_bytes = PART_BYTES
    forms: ClassVar = {tags.ROW: ("contribution", _contribution)}
    key = "row_key"
    as_read: bool = False
    """The rows come as a source has them; no operator before this one has dropped stale ones."""
    number: int | None = None
    """Number of the cogroup's table that the rows are of; None where there is one table."""
    windows: TimeWindows | None = None
    """The windows that groups are of; None where they are not."""
    letters: bool = False
    """Pass on rows that are set aside, for dead letters."""

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        changed = regroup(
            self._rows(messages, count),
            store,
            count,
            every=self.every,
            as_read=self.as_read,
            in_order=self.in_order,
            of_answers=self.from_answers is not None,
            windows=self.windows,
            letters=self.letters,
            **self._times(messages),
        )
        yield changed if self.number is None else numbered(changed, self.number)


class ByGroup(StageSpec):
    """The common part of stages whose records are the rows of groups."""

    forms: ClassVar = {tags.ROW: ("aggregate", shown.result)}
    keeps = True

    @staticmethod
    def encoded(bodies: Bytes) -> Bytes:
        return unpaired(bodies)[0]

    @classmethod
    def decoded(
        cls, description: Described, rows: Bytes, keys: Bytes, store: Reads
    ) -> list[pa.Array]:
        if not description.collected:
            return description.result(rows)
        columns = description.result(shown.behind_digest(rows))
        schema = description.schemas["result"]
        for name, facts in description.collected.items():
            index = schema.get_field_index(name)
            form = ColumnForm.of_facts(facts, schema.field(index).type)
            members = form.read(store, facts["place"], keys)
            known = pa.array(valid(columns[index]))
            columns[index] = pc.if_else(known, members, pa.scalar(None, members.type))
        return columns


@dataclass(frozen=True, kw_only=True)
class AggregateSpec(ByGroup):
    """aggregate: contributions become changes of a row for each group."""

    stage = "aggregate"
    takes = (GROUPED,)
    fold: Fold | CoFold
    in_order: bool = False
    """regroup is in the same query, so that each change comes once."""
    every: bool = False

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield aggregate(
            messages.take(GROUPED),
            store,
            count,
            self.fold,
            source=versions.identity(f"aggregate {self.state.operator}"),
            every=self.every,
            guarded=not self.in_order,
            **self._times(messages),
        )


@dataclass(frozen=True, kw_only=True)
class CloseSpec(ByGroup):
    """close: contributions to windows become a row for each window, when it closes.

    regroup is always in the same query.
    """

    stage = "close"
    highwater_tags = b""
    takes = (GROUPED,)
    counts: ClassVar = {LATE: "Changes that came to windows that were closed."}
    greatest = (STREAM_TIME,)
    fold: Fold
    closing: Closing
    letters: bool = False
    """Pass on the changes that are late, for dead letters, and nothing else."""

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        grouped, arrivals = messages.take(GROUPED), messages.arrivals
        if self.letters:
            yield late(grouped, arrivals, store, self.closing)
            return
        yield from close(
            grouped,
            arrivals,
            store,
            count,
            self.fold,
            closing=self.closing,
            source=versions.identity(f"aggregate {self.state.operator}"),
            now_ms=messages.now_ms,
        )


def _outputs(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    """Show the outputs of rows as lists of keys and rows; null where a row makes none."""
    bodies = masked(held.body, held.flags & HAS_RESULT > 0)
    outputs = pairs.decode(bodies)
    lists: list[list[dict[str, Any]]] = [[] for _ in range(len(bodies))]
    names = keys_as_json(description.schemas["key"], outputs.first).to_pylist()
    rows = shown.rows_as_json(description.schemas["result"], outputs.second).to_pylist()
    for number, name, row in zip(outputs.row, names, rows, strict=True):
        lists[number].append({"key": json.loads(name), "row": json.loads(row)})
    return Shown(keys_as_json(description.key, keys), row=shown.texts_of(lists))


@dataclass(frozen=True, kw_only=True)
class SpreadSpec(ByRow):
    """spread: a table's changes become changes of the rows that its rows make."""

    stage = "spread"
    part_bytes = PART_BYTES
    takes = (JOINED,)
    forms: ClassVar = {tags.ROW: ("outputs", _outputs)}
    key = "row_key"
    as_read: bool = False
    """The rows come as a source has them; no operator before this one has dropped stale ones."""
    every: bool = False

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield spread(
            messages.take(JOINED),
            store,
            count,
            every=self.every,
            as_read=self.as_read,
            in_order=self.in_order,
            **self._times(messages),
        )


@dataclass(frozen=True, kw_only=True)
class OwnersSpec(StageSpec):
    """owners: the rows that rows make under one key become the table's.

    spread is always in the same query.
    """

    stage = "owners"
    takes = (GROUPED,)
    counts: ClassVar = {HIDDEN: "Rows of a flat map that another row with the same key hides."}
    forms: ClassVar = {tags.ROW: ("output", shown.result)}
    keeps = True
    encoded = staticmethod(shown_outputs)
    every: bool = False

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        source, times = versions.identity(f"flat map {self.state.operator}"), self._times(messages)
        yield owners(messages.take(GROUPED), store, count, source=source, every=self.every, **times)


@dataclass(frozen=True, kw_only=True)
class MergeSpec(StageSpec):
    """merge: changes of several tables become changes of one."""

    stage = "merge"
    takes = (NUMBERED,)
    forms: ClassVar = {tags.ROW: ("merged", shown.result)}
    keeps = True
    encoded = staticmethod(shown_rows)
    slots = staticmethod(slots_of)
    in_order: tuple[bool, ...]
    """True for each table that an operator of the query makes."""
    every: bool = False
    origins: tuple[int, ...] = ()
    """See ``merge``."""

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield merge(
            messages.take(NUMBERED),
            store,
            count,
            len(self.in_order),
            source=versions.identity(f"merge {self.state.operator}"),
            every=self.every,
            in_order=self.in_order,
            origins=self.origins,
            **self._times(messages),
        )


def _row(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    return Shown(keys_as_json(description.key, keys), row=shown.row_of(description, "row", held))


@dataclass(frozen=True, kw_only=True)
class EnrichSpec(ByRow):
    """enrich: events are joined with a table's rows, each once."""

    stage = "enrich"
    part_bytes = PART_BYTES
    takes = JOINED, EVENT
    counts: ClassVar = {
        EVENTS_IN: "Events that reached an enrichment.",
        WITHOUT_ROW: "Events for which the table has no row.",
    }
    forms: ClassVar = {tags.ROW: ("row", _row)}
    of_events = True
    how: How

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield enrich(
            messages.take(JOINED),
            messages.take(EVENT),
            store,
            count,
            how=self.how,
            in_order=self.in_order,
            **self._times(messages),
        )


@dataclass(frozen=True, kw_only=True)
class PaceSpec(StageSpec):
    """pace: changes wait until an interval is over."""

    stage = "pace"
    takes = (RESULT,)
    forms: ClassVar = {
        tags.WAITING: ("waiting", shown.result),
        tags.EMITTED: ("sent", shown.key_alone),
    }

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield from pace(
            messages.take(RESULT), store, count, over=messages.arrivals.tick_ms is not None
        )
