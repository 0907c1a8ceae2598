"""Work of a sink that is repeated through outages, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fkjoin.errors import first_line
from fkjoin.sinks.counts import REPEATED, count
from fkjoin.spark import repetition

_T = TypeVar("_T")


def repeated(
    place: str,
    work: Callable[[], _T],
    mends: Callable[[BaseException], bool],
    seconds: float,
    told: Callable[[BaseException], str] = first_line,
) -> _T:
    """Return what ``work`` returns, see ``repetition.repeated``; each repetition is counted."""
    return repetition.repeated(
        place, work, mends, seconds, told=told, heard=lambda reason: count(place, REPEATED, reasons=[reason])
    )
