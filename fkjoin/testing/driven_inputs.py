"""Inputs of a driven table: what the caller feeds stands in the place of its sources, and of the events that it enriches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from fkjoin.analysis.planned import Planned, SourceBound
from fkjoin.codec import versions
from fkjoin.errors import TopologyError
from fkjoin.lowering.enrich import EventsBound
from fkjoin.lowering.operators import plan
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.nodes import Events, Source
from fkjoin.plan.physical import Fed, Physical, by_spark
from fkjoin.spark.frame import CHAINS, DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.spark.on_spark import columns_of
from fkjoin.spark.schemas import as_arrow

_PARTITION = versions.PLACE[1]


class FedChange(NamedTuple):
    """A change of a source's row, or an event."""

    key: dict[str, Any] | None
    """None where the row cannot be used, which has a ``problem``, and of an event."""
    row: dict[str, Any] | None
    version: int
    ts: int | None = None
    problem: str | None = None
    raw: tuple[bytes | None, bytes | None] = (None, None)
    """Key and value of the dead letter that the row would be."""


@dataclass(frozen=True, eq=False)
class Input:
    """A source, or a stream of events, that the caller feeds."""

    planned: Planned
    rows: Physical
    """The plan in its place: of events, the user's own stream."""
    columns: StructType
    """Columns of these rows."""

    @property
    def of_events(self) -> bool:
        return isinstance(self.planned.node, Events)

    @property
    def node(self) -> Source:
        assert isinstance(self.planned.node, Source)
        return self.planned.node

    @cached_property
    def schema(self) -> pa.Schema:
        return as_arrow(self.columns)

    def batch(self, fed: Sequence[FedChange]) -> pa.RecordBatch:
        """Fed rows and events, as rows of the frame."""
        columns = self._events(fed) if self.of_events else self._changes(fed)
        made = [columns[field.name] for field in self.schema]
        return pa.record_batch([pa.array(one, field.type) for one, field in zip(made, self.schema, strict=True)], self.schema)

    def _events(self, fed: Sequence[FedChange]) -> dict[str, Any]:
        rows = [event.row or {} for event in fed]
        return {name: [row.get(name) for row in rows] for name in self.schema.names}

    def _changes(self, fed: Sequence[FedChange]) -> dict[str, Any]:
        node = self.node
        identity = versions.identity(node.log or node.topic or node.name)
        return {
            KEY: [change.key for change in fed],
            ROW: [change.row for change in fed],
            DELETED: [change.row is None for change in fed],
            VERSION: self._versions(identity, [change.version for change in fed]),
            SOURCE: [identity] * len(fed),
            TS: [change.ts for change in fed],
            PROBLEM: [change.problem for change in fed],
            RAW: [{"table": node.name, "key": change.raw[0], "value": change.raw[1]} for change in fed],
        }

    def _versions(self, identity: bytes, numbers: list[int]) -> Any:
        """The versions that numbers are; where each root of a row has a part of it, all parts are alike."""
        kind = self.schema.field(VERSION).type
        if pa.types.is_struct(kind):
            titles = [field.name for field in kind]
            return [{title: 0 if title == _PARTITION else number for title in titles} for number in numbers]
        number = np.array(numbers, np.int64)
        place = [number * 0 if title == _PARTITION else number for title in versions.PLACE]
        part = versions.encode(identity, place, placed=True).to_pylist()
        return [one * self.node.parts for one in part]


def fed(table: Planned) -> tuple[TablePlan, dict[str, Input]]:
    """The plan of the table over inputs that the caller feeds, and these by their names.

    Raises ``TopologyError`` for two sources of one name.
    """
    inputs: dict[str, Input] = {}
    return plan(_fed(table, inputs, {})), inputs


def _fed(table: Planned, inputs: dict[str, Input], done: dict[int, Planned]) -> Planned:
    """The table over inputs; what stands in it twice stays one."""
    if id(table) not in done:
        if isinstance(table.bound, SourceBound | EventsBound):
            if table.name in inputs:
                raise TopologyError(f"table: two of its sources are called {table.name}, and inputs go by their names")
            inputs[table.name] = _input(table)
            done[id(table)] = inputs[table.name].planned
        else:
            below = tuple(_fed(one, inputs, done) for one in table.inputs)
            done[id(table)] = replace(table, inputs=below)
    return done[id(table)]


def _input(table: Planned) -> Input:
    bound = table.bound
    columns = columns_of(table.spark, bound.rows)
    if isinstance(bound, EventsBound):
        # The user's expressions may be over columns of that stream.
        return Input(table, bound.rows, columns)
    columns = StructType([field for field in columns if field.name != CHAINS])
    rows = Fed(table.name, columns)
    letters: tuple[Physical, ...] = ()
    if bound.dead and RAW in columns.names:
        letters = (by_spark(lambda frame: frame.select(PROBLEM, RAW), rows),)
    return Input(replace(table, bound=SourceBound(rows, letters)), rows, columns)
