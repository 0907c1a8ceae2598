"""The end of an operator: results held back for an interval, and the table that they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fkjoin.analysis.planned import Planned
from fkjoin.lowering.stage import rows_of, state_spec
from fkjoin.lowering.table_plan import Packed, TablePlan, dead_of_all, stages_of
from fkjoin.plan.base import Node
from fkjoin.plan.optimizer import stages_share_an_operator
from fkjoin.plan.physical import (
    Counted,
    MessagesOnly,
    Physical,
    Stage,
    Ticks,
    Union,
    share_an_operator,
)
from fkjoin.spark.specs import PaceSpec
from fkjoin.spark.unpacking import UnpackResults


def table_of(
    planned: Planned,
    node: Node,
    results: Physical,
    unpack: UnpackResults,
    *tables: TablePlan,
    **parts: Any,
) -> TablePlan:
    """Plan the table of the results of an operator's last stage.

    ``tables``: those that the operator reads, whose queries and dead letters come first;
    ``parts``: see ``TablePlan``.
    """
    common = {
        "rows": rows_of(results, unpack),
        "dead": dead_of_all(*tables),
        "stages": stages_of(*tables),
        "packed": Packed(results, unpack),
    }
    settings = planned.bound.settings
    if settings.buckets == 1:
        why_not = None if share_an_operator(results) else "no stage reads another one directly"
        node = stages_share_an_operator(node, settings.off, why_not)
    return TablePlan(planned, node, **{**common, **parts})


def paced(
    planned: Planned,
    results: Physical,
    about: Mapping[str, Any],
    **bound_to: Any,
) -> Physical:
    """The operator's results, held back until an interval is over.

    Results that are sent as they come stay as they are.  ``about``: the types of key and result,
    and the names of versions, for tools that read the state; ``bound_to``: see ``state_spec``.
    """
    settings, interval_ms = planned.bound.settings, planned.bound.emission.interval_ms
    if interval_ms is None:
        return results
    state = state_spec(settings, PaceSpec, planned.name, bound_to=bound_to, about=about, tables={})
    ends = Ticks(interval_ms, settings.buckets)
    held = Stage(Union((MessagesOnly(results), ends)), PaceSpec(state))
    return Counted(held, f"{planned.name}-pace", ("pace",))
