"""The time for which work on a place outside is repeated."""

from __future__ import annotations

import math

from fkjoin.errors import TopologyError

RETRY_S = 60.0
"""Seconds for which sinks and registries of schemas are tried again, if none are set."""


def require_retry_s(seconds: float) -> None:
    """``TopologyError`` if it is not a number of seconds."""
    if not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0):
        raise TopologyError(
            f"retry_s: {seconds!r} is not a number of seconds; 0 tries once, "
            f"and the default is {RETRY_S:g}"
        )
