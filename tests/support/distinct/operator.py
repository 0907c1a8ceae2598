"""``distinct``, bound and planned: regroup by row, then distinct by the columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pyspark.sql import functions as F

from fkjoin.analysis.attempt import Attempt, attempt
from fkjoin.analysis.bound import Projection
from fkjoin.analysis.checks import as_emitted
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.planned import Planned, Settings, made_of
from fkjoin.lowering.stage import counted, let_through, packing_columns, state_spec
from fkjoin.lowering.table_plan import TablePlan, paced, pack_rows, table_of
from fkjoin.plan.base import Node
from fkjoin.plan.nodes import generated_name, read_from
from fkjoin.plan.physical import Counted, InWorkers, MessagesOnly, Stage, by_spark
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.frame import DELETED
from fkjoin.spark.schemas import Expressions, arrow_schema, column_texts, require_plain_keys
from fkjoin.spark.specs import RegroupSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults
from tests.support.distinct.stage import DistinctSpec


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


def distinct(
    table: Planned,
    *,
    by: Expressions,
    name: str | None = None,
    emit: Emit = "on-change",
    settings: Settings,
) -> Planned:
    """The rows of a table by these columns, each once.  Raises ``TopologyError``."""
    projection = Projection.of("by", by, table.scope)
    require_plain_keys("by", projection.schema)
    label = name or f"{table.name}-distinct-{generated_name(table.name, *projection.texts)}"
    kind = as_emitted("by", projection.schema)
    tried = attempt("distinct", table.name, projection.bound, table.on_error)
    node = Distinct(label, table.node, tuple(kind.names), emit)
    bound = DistinctBound(projection, tried, Emission.of(emit), settings)
    return made_of((table,), node, kind, kind, bound)


def plan_distinct(planned: Planned, table: TablePlan) -> TablePlan:
    """The table of these rows."""
    bound: DistinctBound = planned.bound
    settings, tried, label = bound.settings, bound.tried, planned.name
    assert isinstance(planned.node, Distinct)
    node = replace(planned.node, table=table.node)
    key = arrow_schema("key", planned.key_type)
    about = {
        "key": planned.key_type,
        "row_key": table.key_type,
        "value": planned.row_type,
        "result": planned.row_type,
        "versions": [["version", 1]],
    }

    def state(kind: type[StageSpec], **more: Any) -> StateSpec:
        facts: Mapping[str, Any] = {"by": list(bound.by.texts), "key": column_texts(key), **more}
        return state_spec(settings, kind, planned.node, bound_to=facts, about=about)

    columns = bound.by.struct_of(tried.columns)
    chosen = packing_columns(problem=tried.problems, row=F.when(~F.col(DELETED), columns), group=columns)
    evaluated = by_spark(lambda frame: tried.on(frame).select(*chosen), table.visible)
    pack = pack_rows(table, key, settings, key)
    regroup = RegroupSpec(
        state(RegroupSpec),
        as_read=read_from(table.node) is not None,
        in_order=let_through(table.node),
    )
    stage = Stage(InWorkers(evaluated, pack, ENVELOPE), regroup)
    regrouped = MessagesOnly(Counted(stage, f"{label}-regroup", ("regroup",)))
    spec = DistinctSpec(state(DistinctSpec, materialized=node.materialized or label))
    results = paced(planned, counted(regrouped, spec), about)
    unpack = UnpackResults(key, (key,), node.versions)
    dead = (*table.dead, *table.dead_of(tried, label))
    return table_of(planned, node, results, unpack, table, dead=dead)
