"""Counts of sinks, which a process has one of, for one test alone."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from fkjoin.sinks import counts


@pytest.fixture(autouse=True)
def own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks of other tests have counted in this process, too."""
    monkeypatch.setattr(counts, "_counts", Counter())
    monkeypatch.setattr(counts, "_events", {what: deque(maxlen=events.maxlen) for what, events in counts._events.items()})
