"""Physical plans of planned tables."""

from __future__ import annotations

from collections.abc import Callable

from fkjoin.analysis.aggregates import AggregateBound
from fkjoin.analysis.enrich import EnrichBound, EventsBound
from fkjoin.analysis.flat_maps import FlatMapBound
from fkjoin.analysis.joins import ChildrenBound, JoinBound
from fkjoin.analysis.key_joins import KeyJoinBound
from fkjoin.analysis.planned import Planned, SourceBound
from fkjoin.analysis.unions import CogroupBound, MergeBound
from fkjoin.analysis.views import CompleteBound, ViewBound
from fkjoin.lowering.aggregates import plan_aggregate
from fkjoin.lowering.children import plan_children
from fkjoin.lowering.enrich import plan_enrich
from fkjoin.lowering.flat_maps import plan_flat_map
from fkjoin.lowering.joins import plan_join
from fkjoin.lowering.key_joins import plan_key_join
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.lowering.unions import plan_cogroup, plan_merge
from fkjoin.lowering.views import plan_complete, plan_view


def plan(planned: Planned) -> TablePlan:
    """The table's part of a physical plan, and so all that it is made of; each is planned once, whatever reads it.

    Else a query on the changes of two tables that stand on it would observe it under the same
    names twice, which Spark refuses.
    """
    if "plan" not in planned.cache:
        inputs = map(plan, planned.inputs)
        planned.cache["plan"] = _PLAN[type(planned.bound)](planned, *inputs)
    made: TablePlan = planned.cache["plan"]
    return made


def _plan_source(planned: Planned) -> TablePlan:
    source: SourceBound = planned.bound
    return TablePlan(planned, planned.node, source.rows, source.dead, undecoded=source.undecoded)


def _plan_events(planned: Planned) -> TablePlan:
    events: EventsBound = planned.bound
    return TablePlan(planned, planned.node, events.rows)


_PLAN: dict[type, Callable[..., TablePlan]] = {
    SourceBound: _plan_source,
    ViewBound: plan_view,
    CompleteBound: plan_complete,
    JoinBound: plan_join,
    KeyJoinBound: plan_key_join,
    ChildrenBound: plan_children,
    AggregateBound: plan_aggregate,
    MergeBound: plan_merge,
    CogroupBound: plan_cogroup,
    FlatMapBound: plan_flat_map,
    EventsBound: _plan_events,
    EnrichBound: plan_enrich,
}
