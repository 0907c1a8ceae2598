"""Counters of sinks in this process, by place: rows that a place cannot have, and work on it that was repeated."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

LEFT_OUT = "dead_letters"
REPEATED = "retries"

_KEPT = 10


@dataclass(frozen=True)
class Occurrence:
    """Something that was counted, with its reason in a line."""

    at_ms: int
    place: str
    what: str
    words: str


_counts: Counter[tuple[str, str]] = Counter()
_events: dict[str, deque[Occurrence]] = {what: deque(maxlen=_KEPT) for what in (LEFT_OUT, REPEATED)}
_lock = threading.Lock()


def count(place: str, what: str, number: int = 1, reasons: Sequence[str] = ()) -> None:
    """Add to a count; ``reasons``: those of the last ones that are counted."""
    at = round(1000 * time.time())
    with _lock:
        _counts[what, place] += number
        _events[what].extend(Occurrence(at, place, what, reason) for reason in reasons)


def counted() -> dict[tuple[str, str], int]:
    """The counts since the process began, by what they are and place."""
    with _lock:
        return dict(_counts)


def last_events() -> list[Occurrence]:
    """The last ten rows left out and the last ten repetitions, oldest first."""
    with _lock:
        return sorted((event for some in _events.values() for event in some), key=lambda event: event.at_ms)
