"""Counters of sinks in this process, by place: rows that a place cannot have, and work on it that was repeated."""

from __future__ import annotations

import threading
from collections import Counter

LEFT_OUT = "dead_letters"
REPEATED = "retries"

_counts: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


def count(place: str, what: str, number: int = 1) -> None:
    with _lock:
        _counts[what, place] += number


def counted() -> dict[tuple[str, str], int]:
    """The counts since the process began, by what they are and place."""
    with _lock:
        return dict(_counts)
