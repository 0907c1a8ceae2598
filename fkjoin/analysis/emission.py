"""Emission of a table's changes: as they come, once an interval, or when a window closes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fkjoin.errors import TopologyError
from fkjoin.plan.base import ON_CHANGE, ON_CLOSE, ON_UPDATE, PERIODIC

Emit: TypeAlias = str
"""``"on-change"``: a result that differs from what was sent last.

``"on-update"``: one whenever what it is made of was updated.  ``"periodic 10 seconds"``, or
``"periodic"`` (1 minute): a row's last result once in that time, if it differs.  ``"on-close"``, of
windows: a window's row once, when the window closes.
"""

_INTERVAL = "1 minute"
_SHORTEST_MS = 100


@dataclass(frozen=True)
class Emission:
    """An ``Emit``, understood."""

    every: bool = False
    """Also unchanged results."""
    interval_ms: int | None = None

    @staticmethod
    def of(emit: Emit, *, windows: bool = False) -> Emission:
        """Raises ``TopologyError``.  ``windows``: the operator can be of windows."""
        how, _, interval = str(emit).partition(" ")
        if how == PERIODIC:
            return Emission(interval_ms=_milliseconds(interval or _INTERVAL))
        if emit == ON_CLOSE:
            if not windows:
                raise TopologyError(
                    f'emit: "{ON_CLOSE}" is for windows; give it to group_by, with '
                    "fkjoin.window(…) in its key"
                )
            return Emission()
        if emit not in (ON_CHANGE, ON_UPDATE):
            raise TopologyError(
                f'emit: {emit!r} is not one of "{ON_CHANGE}", "{ON_UPDATE}", "{PERIODIC}", for '
                f'instance "{PERIODIC} 10 seconds", or "{ON_CLOSE}" of windows'
            )
        return Emission(every=emit == ON_UPDATE)


def interval_us(argument: str, interval: str) -> int:
    """An interval such as "10 seconds", in microseconds.

    Raises ``TopologyError`` about the argument.
    """
    # Not with this module, which sinks import, too: pandas takes half a second.
    import pandas as pd

    try:
        return int(pd.Timedelta(interval) / pd.Timedelta(microseconds=1))
    except (ValueError, TypeError) as error:
        raise TopologyError(
            f'{argument}: {interval!r} is not an interval such as "10 seconds" or "1 minute"'
        ) from error


def _milliseconds(interval: str) -> int:
    milliseconds = interval_us("emit", interval) // 1000
    if milliseconds < _SHORTEST_MS:
        raise TopologyError(
            f'emit: {interval} is too short, {_SHORTEST_MS} ms is the least; "on-change" does not '
            "wait at all"
        )
    return milliseconds
