"""Planned tables made into streaming DataFrames."""

from __future__ import annotations

from collections.abc import Callable

from fkjoin.analysis.aggregates import AggregateBound
from fkjoin.analysis.joins import ChildrenBound, JoinBound
from fkjoin.analysis.planned import Planned, SourceBound
from fkjoin.analysis.unions import CogroupBound, MergeBound
from fkjoin.analysis.views import CompleteBound, ViewBound
from fkjoin.lowering.aggregates import lower_aggregate
from fkjoin.lowering.children import lower_children
from fkjoin.lowering.joins import lower_join
from fkjoin.lowering.lowered import Lowered
from fkjoin.lowering.unions import lower_cogroup, lower_merge
from fkjoin.lowering.views import lower_complete, lower_view


def lower(planned: Planned) -> Lowered:
    """The table as frames, and so all that it is made of; a table that several operators read is lowered once."""
    done: dict[int, Lowered] = {}

    def visit(table: Planned) -> Lowered:
        if id(table) not in done:
            done[id(table)] = _LOWER[type(table.bound)](table, *map(visit, table.inputs))
        return done[id(table)]

    return visit(planned)


def _lower_source(planned: Planned) -> Lowered:
    source: SourceBound = planned.bound
    return Lowered(planned, planned.node, source.frame, source.dead, undecoded=source.undecoded)


_LOWER: dict[type, Callable[..., Lowered]] = {
    SourceBound: _lower_source,
    ViewBound: lower_view,
    CompleteBound: lower_complete,
    JoinBound: lower_join,
    ChildrenBound: lower_children,
    AggregateBound: lower_aggregate,
    MergeBound: lower_merge,
    CogroupBound: lower_cogroup,
}
