"""Triggers of queries, as a text or as Spark takes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from fkjoin.errors import TopologyError

AVAILABLE_NOW = "available-now"

Trigger: TypeAlias = str | Mapping[str, Any] | None
"""``"available-now"`` reads all that is there, and ends.  ``"10 seconds"`` begins a batch once in that time.  A mapping has
arguments of Spark's ``DataStreamWriter.trigger``.  None begins a batch when the one before is done."""

_UNIT = r"(?:(?:micro|milli)?second|minute|hour|day|week)s?"
_PART = rf"\+?[0-9]+(?:\.[0-9]+)?\s+{_UNIT}"
_INTERVAL = re.compile(rf"\s*(?:interval\s+)?{_PART}(?:\s+{_PART})*\s*", re.IGNORECASE)


def arguments_of(given: Trigger) -> dict[str, Any]:
    """Arguments of ``DataStreamWriter.trigger``; none where Spark's own trigger is meant.

    Raises ``TopologyError``.
    """
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    if given == AVAILABLE_NOW:
        return {"availableNow": True}
    if isinstance(given, str) and _INTERVAL.fullmatch(given):
        return {"processingTime": given}
    raise TopologyError(f'trigger: {given!r} is neither "{AVAILABLE_NOW}" nor an interval such as "10 seconds" or "1 minute"')
