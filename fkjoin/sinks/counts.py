"""Counters of sinks in this process: rows that a target cannot store, and repeated work."""

from __future__ import annotations

import itertools
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
    target: str
    item: str
    words: str


_counts: Counter[tuple[str, str]] = Counter()
_events: dict[str, deque[Occurrence]] = {item: deque(maxlen=_KEPT) for item in (LEFT_OUT, REPEATED)}
_lock = threading.Lock()


def count(target: str, item: str, number: int = 1, reasons: Sequence[str] = ()) -> None:
    """Add to a count; ``reasons``: of the last ones that are counted."""
    now_ms = round(1000 * time.time())
    with _lock:
        _counts[item, target] += number
        _events[item].extend(Occurrence(now_ms, target, item, reason) for reason in reasons)


def counted() -> dict[tuple[str, str], int]:
    """The counts since the process began, by item and target."""
    with _lock:
        return dict(_counts)


def last_events() -> list[Occurrence]:
    """The last ten rows left out and the last ten repetitions, oldest first."""
    with _lock:
        events = itertools.chain.from_iterable(_events.values())
        return sorted(events, key=lambda event: event.at_ms)
