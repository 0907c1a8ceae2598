"""Counts of sinks, which a process has one of, for one test alone."""

from __future__ import annotations

import sys
from collections import Counter, deque

import pytest


@pytest.fixture(autouse=True)
def own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks of other tests have counted in this process, too, if it has imported them: that takes more than a second."""
    counts = sys.modules.get("fkjoin.sinks.counts")
    if counts is not None:
        events = {item: deque(maxlen=kept.maxlen) for item, kept in counts._events.items()}
        monkeypatch.setattr(counts, "_counts", Counter())
        monkeypatch.setattr(counts, "_events", events)
