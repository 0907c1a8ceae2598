"""Counts of sinks, which a process has one of, for one test alone."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from fkjoin.sinks import counts


def forget_counts(patch: pytest.MonkeyPatch) -> None:
    """Begin to count anew; after the test, the counts are as they were."""
    patch.setattr(counts, "_counts", Counter())
    patch.setattr(counts, "_events", {what: deque(maxlen=events.maxlen) for what, events in counts._events.items()})
