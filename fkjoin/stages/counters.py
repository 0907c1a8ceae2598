"""The names of what the stages count; ``describe``, metrics and the demo use them, so that they never change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

LEFT_IN = "left-in"
RIGHT_IN = "right-in"
ROWS_IN = "rows-in"
"""Changes that come to a stage of an aggregate."""
NULL_KEY = "null-key-dropped"
DEAD_LETTERS = "dead-letters"
"""Records that do not parse or have no key, and rows on which an expression or a function of the user's threw."""
UNAVAILABLE_VALUES = "unavailable"
"""Changes that lack a value which no change before them had: their rows wait for it."""
STALE = "stale-dropped"
"""Changes and subscriptions not newer than what is remembered, and answers not above the highwater mark."""
TIES = "version-ties"
"""Changes that have the version of another change of their key, and another content."""
RESTARTS = "source-restarts"
"""Changes that count because their row came from another topic or log before, whatever their offsets."""
ANSWERS = "answers"
TOMBSTONES = "tombstones-suppressed"
"""Deletions of what has no result, which are not emitted."""
IDEMPOTENT = "idempotent-update-skip"
"""Changes that are not sent since they leave something unchanged (KIP-557); a batch has one result of a key."""
OUT = "out"
"""Results that are emitted."""
INDEX_REBUILT = "index-rebuilt"
"""Indexes that were built anew from their logs, since they were missing, or other than when they were closed."""

HIDDEN = "hidden-outputs"
"""Outputs of a flat map that another row's output under the same key hides, of the keys that a batch touched."""

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
"""Events for which the table has no row: an inner enrich drops them, and a left one gives them nulls."""

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
"""The end of the name of a counter that has a stage's part of ``IDEMPOTENT``; the stage's name comes before it."""

FAN_OUT = "fan-out-max"
"""The most answers that a batch's changes of one right row led to: a maximum, not a sum."""
HOT_KEY = "hot-key:"
"""The beginning of the name of a counter that has the fan-out of a right row with many subscribers; its key follows."""
HOT = 1_000
"""The fan-out from which on a right row is a hot one."""

REASON = "dead-letter:"
"""The beginning of the name of a counter that has how many dead letters have a reason; the reason follows."""
_LONGEST = 300

Counters = Counter[str]


def commonest(reasons: Iterable[str]) -> Counters:
    """Count the dead letters of some rows, and those with the commonest reason, which is cut off if it is long."""
    found = Counter(reasons)
    (most, number), *_ = found.most_common(1)
    return Counter({DEAD_LETTERS: found.total(), REASON + most[:_LONGEST]: number})


def metrics_name(operator: str) -> str:
    """The name under which an operator's counters stand in a query progress' ``observedMetrics``."""
    return f"fkjoin:{operator}"


def state_metrics_name(operator: str) -> str:
    """The name under which it says how large its state is, how long its stages took (ms of all tasks), and where it is hot."""
    return f"fkjoin-state:{operator}"
