"""All operators: how each is bound and planned, and what job files call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fkjoin.analysis.planned import Planned
from fkjoin.lowering.aggregates import plan_aggregate
from fkjoin.lowering.children import plan_children
from fkjoin.lowering.enrich import plan_enrich
from fkjoin.lowering.flat_maps import plan_flat_map
from fkjoin.lowering.joins import plan_join
from fkjoin.lowering.key_joins import plan_key_join
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.lowering.unions import plan_cogroup, plan_merge
from fkjoin.lowering.views import plan_complete, plan_view


@dataclass(frozen=True)
class Operator:
    """An operator: all that is known of its kind."""

    plan: Callable[..., TablePlan]
    """Function from a planned table, and the plans of its inputs, to the table's own."""
    bind: Callable[..., Planned] | None = None
    """Function from tables and what the user wrote to a planned table, see ``called``.

    Raises ``TopologyError``.  Only a section of job files asks for it.
    """
    section: str | None = None
    """The section of job files whose settings are the arguments of ``bind``.

    None for operators of fkjoin: their sections call the methods of ``Table``.
    """


def plan(planned: Planned) -> TablePlan:
    """The table's part of a physical plan, and so all that it is made of.

    Each is planned once, whatever reads it.  Else a query on the changes of two tables that stand
    on it would observe it under the same names twice, which Spark refuses.
    """
    if "plan" not in planned.cache:
        inputs = map(plan, planned.inputs)
        planned.cache["plan"] = OPERATORS[planned.bound.operator].plan(planned, *inputs)
    return planned.cache["plan"]


def _plan_source(planned: Planned) -> TablePlan:
    bound = planned.bound
    return TablePlan(planned, planned.node, bound.rows, bound.dead, undecoded=bound.undecoded)


def _plan_events(planned: Planned) -> TablePlan:
    return TablePlan(planned, planned.node, planned.bound.rows)


OPERATORS: dict[str, Operator] = {
    "source": Operator(_plan_source),
    "view": Operator(plan_view),
    "complete": Operator(plan_complete),
    "join": Operator(plan_join),
    "key_join": Operator(plan_key_join),
    "children": Operator(plan_children),
    "aggregate": Operator(plan_aggregate),
    "merge": Operator(plan_merge),
    "cogroup": Operator(plan_cogroup),
    "flat_map": Operator(plan_flat_map),
    "events": Operator(_plan_events),
    "enrich": Operator(plan_enrich),
}
"""All operators, by what ``planned.bound`` calls them."""
