"""The names of what the stages count; ``describe`` and metrics use them: they never change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

LEFT_IN = "left-in"
RIGHT_IN = "right-in"
ROWS_IN = "rows-in"
"""Changes that come to a stage of an aggregate."""
NULL_KEY = "null-key-dropped"
DEAD_LETTERS = "dead-letters"
"""Records that do not parse or have no key, and rows on which an expression or function threw."""
UNAVAILABLE_VALUES = "unavailable"
"""Changes that lack a value which no change before them had: their rows wait for it."""
STALE = "stale-dropped"
"""Changes and subscriptions not newer than remembered, answers not above the highwater mark."""
TIES = "version-ties"
"""Changes that have the version of another change of their key, and another content."""
RESTARTS = "source-restarts"
"""Changes that count as their row came from another topic or log before, whatever their offsets."""
ANSWERS = "answers"
TOMBSTONES = "tombstones-suppressed"
"""Deletions of what has no result, which are not emitted."""
IDEMPOTENT = "idempotent-update-skip"
"""Changes that are not sent since they leave something unchanged (KIP-557).

A batch has one result of a key.
"""
OUT = "out"
"""Results that are emitted."""
INDEX_REBUILT = "index-rebuilt"
"""Indexes that were rebuilt from their logs: they were missing, or not as they were closed."""

HIDDEN = "hidden-outputs"
"""Outputs of a flat map that another row's output under the key hides, in the keys of a batch."""

LATE = "late-dropped"
"""Changes of contributions to windows that were closed before the batch."""
STREAM_TIME = "stream-time"
"""The stream time of an aggregate by windows, in milliseconds since 1970: a maximum, not a sum."""
HOLDS = "holds-windows:"
"""The beginning of the name of a counter of a source that has no rows, and whose time holds windows
open; its name follows.

It counts the milliseconds by which the source is behind the one that is furthest: a maximum, not a
sum."""
EVENTS_IN = "events-in"
"""Events that come to an enrich."""
WITHOUT_ROW = "events-without-row"
"""Events for which the table has no row: an inner enrich drops them, a left one adds nulls."""

ALL = (
    LEFT_IN,
    RIGHT_IN,
    ROWS_IN,
    NULL_KEY,
    DEAD_LETTERS,
    UNAVAILABLE_VALUES,
    STALE,
    TIES,
    RESTARTS,
    ANSWERS,
    TOMBSTONES,
    IDEMPOTENT,
    OUT,
    INDEX_REBUILT,
)
BUCKET_COUNT = "buckets"
"""The number of buckets that said how large they are, in the stages that an operator has."""
STATE_ROWS = "state-rows"
STATE_BYTES = "state-bytes"
LOG_BYTES = "log-bytes"
INDEX_BYTES = "index-bytes"
SIZES = (BUCKET_COUNT, STATE_ROWS, STATE_BYTES, LOG_BYTES, INDEX_BYTES)

SKIPS = "-skips"
"""The end of a counter's name that has a stage's part of ``IDEMPOTENT``; the stage comes first."""

FAN_OUT = "fan-out-max"
"""The most answers that a batch's changes of one right row led to: a maximum, not a sum."""
HOT_KEY = "hot-key:"
"""The beginning of a counter's name that has the fan-out of a hot right row; its key follows."""
HOT = 1_000
"""The fan-out from which on a right row is a hot one."""

REASON = "dead-letter:"
"""The beginning of a counter's name that has how many dead letters have the reason that follows."""
_LONGEST = 300

Counters = Counter[str]


def commonest(reasons: Iterable[str]) -> Counters:
    """Count the dead letters of some rows, and those with the commonest reason, cut off if long."""
    counted = Counter(reasons)
    (most, number), *_ = counted.most_common(1)
    return Counter({DEAD_LETTERS: counted.total(), REASON + most[:_LONGEST]: number})


def metrics_name(operator: str) -> str:
    """The name of an operator's counters in the ``observedMetrics`` of a query's progress."""
    return f"fkjoin:{operator}"


def state_metrics_name(operator: str) -> str:
    """The name of an operator's figures: state's size, stages' time (ms of all tasks), hot keys."""
    return f"fkjoin-state:{operator}"
