"""Planned tables made into streaming DataFrames."""

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
from fkjoin.lowering.aggregates import lower_aggregate
from fkjoin.lowering.children import lower_children
from fkjoin.lowering.enrich import lower_enrich
from fkjoin.lowering.flat_maps import lower_flat_map
from fkjoin.lowering.joins import lower_join
from fkjoin.lowering.key_joins import lower_key_join
from fkjoin.lowering.lowered import Lowered
from fkjoin.lowering.unions import lower_cogroup, lower_merge
from fkjoin.lowering.views import lower_complete, lower_view


def lower(planned: Planned) -> Lowered:
    """The table as frames, and so all that it is made of; each is lowered once, whatever reads it.

    Else a query on the changes of two tables that stand on one would observe that one under the same names twice, which
    Spark refuses.
    """
    if not planned.lowered:
        planned.lowered.append(_LOWER[type(planned.bound)](planned, *map(lower, planned.inputs)))
    lowered: Lowered = planned.lowered[0]
    return lowered


def _lower_source(planned: Planned) -> Lowered:
    source: SourceBound = planned.bound
    return Lowered(planned, planned.node, source.frame, source.dead, undecoded=source.undecoded)


def _lower_events(planned: Planned) -> Lowered:
    events: EventsBound = planned.bound
    return Lowered(planned, planned.node, events.frame)


_LOWER: dict[type, Callable[..., Lowered]] = {
    SourceBound: _lower_source,
    ViewBound: lower_view,
    CompleteBound: lower_complete,
    JoinBound: lower_join,
    KeyJoinBound: lower_key_join,
    ChildrenBound: lower_children,
    AggregateBound: lower_aggregate,
    MergeBound: lower_merge,
    CogroupBound: lower_cogroup,
    FlatMapBound: lower_flat_map,
    EventsBound: _lower_events,
    EnrichBound: lower_enrich,
}
