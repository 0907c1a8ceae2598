"""The time for which work on a place outside is repeated."""

from __future__ import annotations

import math

from fkjoin.errors import TopologyError

RETRY_S = 60.0
"""Seconds for which sinks and registries of schemas are tried again, unless they are told otherwise."""


def require_retry_s(given: float) -> None:
    """``TopologyError`` if it is no number of seconds."""
    if not (isinstance(given, int | float) and math.isfinite(given) and given >= 0):
        raise TopologyError(
            f"retry_s: {given!r} is no number of seconds; 0 tries once, and the default is {RETRY_S:g}"
        )
