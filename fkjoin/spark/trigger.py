"""Triggers of queries, as a text or as Spark takes them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.errors import TopologyError
from fkjoin.spark.spark_api import java_query

AVAILABLE_NOW = "available-now"

Trigger: TypeAlias = str | Mapping[str, Any] | None
"""``"available-now"`` reads all that is there, and ends.

``"10 seconds"`` begins a batch once in that time.  A mapping has arguments of Spark's
``DataStreamWriter.trigger``.  None begins a batch when the one before is done.
"""

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_UNIT = rf"(?:{'|'.join(_UNITS_US)})s?"
_PART = rf"\+?[0-9]+(?:\.[0-9]+)?\s+{_UNIT}"
_INTERVAL = re.compile(rf"\s*(?:interval\s+)?{_PART}(?:\s+{_PART})*\s*", re.IGNORECASE)


def arguments_of(trigger: Trigger) -> dict[str, Any]:
    """Arguments of ``DataStreamWriter.trigger``; none where Spark's own trigger is meant.

    Raises ``TopologyError``.
    """
    if trigger is None or isinstance(trigger, Mapping):
        return dict(trigger or {})
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    if isinstance(trigger, str) and _INTERVAL.fullmatch(trigger):
        return {"processingTime": trigger}
    raise TopologyError(
        f'trigger: {trigger!r} is neither "{AVAILABLE_NOW}" nor an interval such as "10 seconds" '
        'or "1 minute"'
    )


def interval_ms(when: Mapping[str, Any]) -> float | None:
    """The milliseconds from batch to batch that the trigger asks for; None if it asks for none.

    ``when``: arguments of ``DataStreamWriter.trigger``.
    """
    interval = when.get("processingTime")
    if not isinstance(interval, str) or not _INTERVAL.fullmatch(interval):
        return None
    parts = (part.split() for part in re.findall(_PART, interval.lower()))
    return sum(float(number) * _UNITS_US[unit.removesuffix("s")] for number, unit in parts) / 1000


def interval_of(query: StreamingQuery) -> float:
    """The seconds from batch to batch that a query's trigger asks for.

    0 if it asks for none, or if the query is one of Spark Connect.
    """
    with contextlib.suppress(Exception):
        return float(java_query(query).streamingQuery().trigger().intervalMs()) / 1000
    return 0.0
