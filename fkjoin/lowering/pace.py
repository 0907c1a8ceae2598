"""Results that are held back until an interval is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fkjoin.analysis.emission import Emission
from fkjoin.analysis.planned import Settings
from fkjoin.lowering.stage import state_spec
from fkjoin.plan.physical import Counted, MessagesOnly, Physical, Stage, Ticks, Union
from fkjoin.spark.specs import PaceSpec


def paced(
    results: Physical,
    operator: str,
    emission: Emission,
    about: Mapping[str, Any],
    settings: Settings,
    **bound_to: Any,
) -> Physical:
    """The operator's results, held back until an interval is over; as they are, if they are sent as they come.

    ``about``: the types of key and result, and the names of versions, for tools that read the
    state; ``bound_to``: see ``state_spec``.
    """
    if emission.interval_ms is None:
        return results
    state = state_spec(settings, PaceSpec, operator, bound_to=bound_to, about=about, tables={})
    ends = Ticks(emission.interval_ms, settings.buckets)
    held = Stage(Union((MessagesOnly(results), ends)), PaceSpec(state))
    return Counted(held, f"{operator}-pace", ("pace",))
