"""An operator that the package does not know: the rows of a table by some columns, each once.

It is bound and planned: regroup by row, then distinct by the columns.  What rows contribute becomes a row for as long as a row
has these values.

Store: ``{'d'}{columns}`` → a counter as version, the greatest timestamp, and ``{uint32 little-endian: length of the
row}{row}{int64 little-endian: number of the rows that have it}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from fkjoin.analysis.attempt import Attempt, attempt
from fkjoin.analysis.bound import Projection
from fkjoin.analysis.checks import as_emitted
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.planned import Planned, Settings, made_of
from fkjoin.codec import records, tags, versions
from fkjoin.codec.arrays import BYTES, Bytes, Ints, as_bytes, codes, masked, paired, prefixed, take, unpaired, valid
from fkjoin.codec.messages import GROUPED, RESULT, column
from fkjoin.lowering.stage import counted, let_through, packing_columns, state_spec
from fkjoin.lowering.table_plan import TablePlan, paced, pack_rows, table_of
from fkjoin.plan.base import Node
from fkjoin.plan.nodes import read_from
from fkjoin.plan.physical import Counted, InWorkers, MessagesOnly, Stage, by_spark
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.frame import DELETED
from fkjoin.spark.schemas import Expressions, arrow_schema, column_texts, require_plain_keys
from fkjoin.spark.specs import RegroupSpec, StateSpec
from fkjoin.spark.specs.shown import result
from fkjoin.spark.specs.spec import Messages, StageSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.counters import Counters
from fkjoin.stages.emit_on_change import EmitDecision, Ending, entries
from fkjoin.stages.retention import GONE, sweep
from fkjoin.state import Store


def encoded_row(bodies: Bytes) -> Bytes:
    """The rows in the bodies of records."""
    return unpaired(bodies)[0]


@dataclass(frozen=True, kw_only=True)
class DistinctSpec(StageSpec):
    """distinct: contributions become a row of each value; regroup is always in the same query."""

    stage = "distinct"
    takes = (GROUPED,)
    highwater_tags = b""
    counts: ClassVar = {"seen-again": "Rows whose columns another row has."}
    forms: ClassVar = {tags.ROW: ("distinct", result)}
    keeps = True
    encoded = staticmethod(encoded_row)

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        sweep(store, messages.now_ms)
        grouped = messages.take(GROUPED)
        if not len(grouped):
            yield RESULT.empty_table()
            return
        code, keys = codes(as_bytes(column(grouped, "key")))
        names = prefixed(tags.ROW, keys)
        held = records.decode(store.get_many(names))
        row, number = unpaired(masked(held.body, held.flags & GONE == 0))
        before, after = _numbers(number), _numbers(number)
        old, new = column(grouped, "old"), column(grouped, "new")
        np.add.at(after, code, valid(new).astype(int) - valid(old).astype(int))
        had, has = before > 0, after > 0
        count["seen-again"] += int(np.maximum(after - np.maximum(before, 1), 0).sum())
        # Rows of one value are the same bytes: any of the new ones will do.
        newest = np.full(len(keys), -1)
        newest[code[valid(new)]] = np.flatnonzero(valid(new))
        rows = as_bytes(pa.compute.if_else(pa.array(had), row, take(new, newest, newest >= 0)))
        emission = EmitDecision.of(had, has, had & has, count)
        latest = np.where(held.exists, held.ts, np.iinfo(np.int64).min)
        np.maximum.at(latest, code, column(grouped, "ts").to_numpy())
        source = versions.identity(f"distinct {self.state.operator}")
        version = emission.own_versions(held, source, messages.now_ms)
        shown = masked(rows, has)
        yield emission.results(keys, shown, version, latest)
        body = paired(shown, pa.array([value.tobytes() for value in after.astype("<i8")], BYTES))
        due = messages.now_ms + self.state.retention_ms
        store.write(*entries(names, latest, version, body, Ending(~has, due), has=has))


def _numbers(encoded: Bytes) -> Ints:
    """Numbers of rows; 0 for null."""
    return np.array([int.from_bytes(value or b"", "little") for value in encoded.to_pylist()], np.int64)


@dataclass(frozen=True, slots=True)
class Distinct(Node):
    """The values of columns that a table's rows have, each once."""

    table: Node
    key: tuple[str, ...] = field()
    emit: str = "on-change"

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.table,)


@dataclass(frozen=True, eq=False)
class DistinctBound:
    """Needs of the planner besides the node."""

    operator: ClassVar[str] = "distinct"
    by: Projection
    tried: Attempt
    emission: Emission
    settings: Settings


def distinct(table: Planned, *, by: Expressions, name: str, emit: Emit = "on-change", settings: Settings) -> Planned:
    """The rows of a table by these columns, each once.  Raises ``TopologyError``."""
    projection = Projection.of("by", by, table.scope)
    require_plain_keys("by", projection.schema)
    kind = as_emitted("by", projection.schema)
    tried = attempt("distinct", table.name, projection.bound, table.on_error)
    node = Distinct(name, table.node, tuple(kind.names), emit)
    bound = DistinctBound(projection, tried, Emission.of(emit), settings)
    return made_of((table,), node, kind, kind, bound)


def plan_distinct(planned: Planned, table: TablePlan) -> TablePlan:
    """The table of these rows."""
    bound: DistinctBound = planned.bound
    settings, tried, label = bound.settings, bound.tried, planned.name
    assert isinstance(planned.node, Distinct)
    node = replace(planned.node, table=table.node)
    key = arrow_schema("key", planned.key_type)
    about: dict[str, Any] = dict.fromkeys(("value", "result"), planned.row_type)
    about |= {"key": planned.key_type, "row_key": table.key_type, "versions": [["version", 1]]}

    def state(kind: type[StageSpec], **more: Any) -> StateSpec:
        facts: Mapping[str, Any] = {"by": list(bound.by.texts), "key": column_texts(key), **more}
        return state_spec(settings, kind, planned.node, bound_to=facts, about=about)

    columns = bound.by.struct_of(tried.columns)
    chosen = packing_columns(problem=tried.problems, row=F.when(~F.col(DELETED), columns), group=columns)
    evaluated = by_spark(lambda frame: tried.on(frame).select(*chosen), table.visible)
    pack = pack_rows(table, key, settings, key)
    how = {"as_read": read_from(table.node) is not None, "in_order": let_through(table.node)}
    regroup = RegroupSpec(state(RegroupSpec), **how)
    stage = Stage(InWorkers(evaluated, pack, ENVELOPE), regroup)
    regrouped = MessagesOnly(Counted(stage, f"{label}-regroup", ("regroup",)))
    spec = DistinctSpec(state(DistinctSpec, materialized=node.materialized or label))
    results = paced(planned, counted(regrouped, spec), about)
    unpack = UnpackResults(key, (key,), node.versions)
    dead = (*table.dead, *table.dead_of(tried, label))
    return table_of(planned, node, results, unpack, table, dead=dead)
