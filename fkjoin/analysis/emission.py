"""When a table's changes are sent: as they come, or once an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd

from fkjoin.errors import TopologyError
from fkjoin.plan.nodes import PERIODIC

Emit: TypeAlias = str
"""``"on-change"``: a result that differs from what was sent last.  ``"on-update"``: one whenever what it is made of was
updated.  ``"periodic 10 seconds"``, or ``"periodic"`` (1 minute): a row's last result once in that time, if it differs."""

_INTERVAL = "1 minute"
_SHORTEST_MS = 100


@dataclass(frozen=True)
class Emission:
    """An ``Emit``, understood."""

    every: bool = False
    """Also results that are as they were."""
    interval_ms: int | None = None

    @staticmethod
    def of(given: Emit) -> Emission:
        """Raises ``TopologyError``."""
        how, _, interval = str(given).partition(" ")
        if how == PERIODIC:
            return Emission(interval_ms=_milliseconds(interval or _INTERVAL))
        if given not in ("on-change", "on-update"):
            raise TopologyError(
                f'emit: {given!r} is not one of "on-change", "on-update", "periodic" or, for instance, "periodic 10 seconds"'
            )
        return Emission(every=given == "on-update")


def _milliseconds(interval: str) -> int:
    try:
        milliseconds = int(pd.Timedelta(interval) / pd.Timedelta(milliseconds=1))
    except ValueError as error:
        raise TopologyError(f'emit: {interval!r} is no interval such as "10 seconds" or "1 minute"') from error
    if milliseconds < _SHORTEST_MS:
        raise TopologyError(f'emit: {interval} is too short, {_SHORTEST_MS} ms is the least; "on-change" does not wait at all')
    return milliseconds
