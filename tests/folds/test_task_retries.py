"""Aggregates whose attempts fail, are repeated or come second: exact, nothing twice, through the real operators and stores."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkjoin.folds.fold import Fold
from tests.support.engine import LocalAggregate
from tests.support.grouping import CHANGES, COLUMNS, VALUE, Change, Grouping, recomputed
from tests.support.oracle import rows


@given(
    changes=CHANGES,
    cut=st.integers(1, 9),
    stops=st.lists(st.sampled_from(["regroup", "aggregate", None]), min_size=30, max_size=30),
    every=st.booleans(),
)
@settings(max_examples=8)
def test_a_repeated_attempt_sends_what_the_failed_one_would_have_sent(
    changes: list[Change], cut: int, stops: Any, every: bool
) -> None:
    """Sums are exact after every crash, and a repeated attempt delivers what a failed one did not (KAFKA-12508)."""
    fold = Fold(VALUE, COLUMNS)
    engine = LocalAggregate(Path(tempfile.mkdtemp(prefix="fkjoin-test-")), fold, every=every)
    reader = Grouping(VALUE, *COLUMNS)
    for start, stop in zip(range(0, len(changes), cut), stops, strict=False):
        part = reader.messages(changes[start : start + cut])
        engine.attempt(part, stop_after=stop)
        first, again = engine.attempt(part), engine.attempt(part)
        engine.commit()
        assert rows(first) == rows(again)
        reader.apply(again)
        assert reader.table == recomputed(changes[: start + cut])
        assert rows(engine.attempt(part)) == [], "whole batches that come again change nothing"
        engine.commit()


@pytest.mark.parametrize("size", [1, 7])
def test_one_change_that_reaches_many_rows_is_one_step_in_every_group(tmp_path: Path, size: int) -> None:
    """The outputs of a fan-out have one right version: a crash in their midst leaves all of them or none."""
    fold = Fold(VALUE, COLUMNS[:3])
    engine, reader = LocalAggregate(tmp_path, fold, buckets=size), Grouping(VALUE, *COLUMNS[:3])
    moved = [Change(f"k{number}", 1, "before", (1, None, None, "t", None)) for number in range(200)]
    reader.apply(engine.attempt(reader.messages(moved)))
    engine.commit()
    again = reader.messages([change._replace(version=2, group="after") for change in moved])
    for stop in ("regroup", "aggregate"):
        engine.attempt(again, stop_after=stop)  # type: ignore[arg-type]
    reader.apply(engine.attempt(again))
    engine.commit()
    assert reader.table == {"after": (200, 200, 200)}
