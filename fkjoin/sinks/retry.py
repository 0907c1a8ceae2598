"""Work of a sink that is repeated through outages, and counted; and what is said of what no repetition mends."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from fkjoin.errors import FkJoinError, first_line
from fkjoin.sinks.counts import REPEATED, count
from fkjoin.spark import repetition
from fkjoin.spark.query_start import unreached

_COLOR = re.compile(r"\x1b\[\d*m")
_QUERY = re.compile(r"\?\S+")
"""Query of an address: with some storages a signature is in it."""
_SHOWN = 500

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


def through_outages(
    place: str,
    work: Callable[[], _T],
    mends: Callable[[BaseException], bool],
    seconds: float,
    *,
    told: Callable[[BaseException], str],
    is_of_place: Callable[[BaseException], bool],
) -> _T:
    """Return what ``work`` returns, see ``repeated``; what the place says otherwise is its ``unreachable``."""
    try:
        return repeated(place, work, mends, seconds, told)
    except Exception as error:
        if not is_of_place(error):
            raise
        why = told(error)
    raise unreachable(place, why)  # not from the error, whose text may have secrets


def in_a_line(error: BaseException) -> str:
    """Return the text of a storage's error in a line."""
    text = " ".join(_QUERY.sub("", _COLOR.sub("", str(error))).replace("↳", ":").split()).replace(" : ", ": ")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def unreachable(place: str, why: str) -> FkJoinError:
    """The error of a place that refuses, or is not there."""
    return unreached(f"{place} cannot be reached: {why}")
