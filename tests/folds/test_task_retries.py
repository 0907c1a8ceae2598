"""Aggregates whose attempts fail, are repeated or come second: exact, nothing twice, through the real operators and stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkjoin.folds.fold import Fold
from tests.support.engine import LocalAggregate
from tests.support.grouping import COLUMNS, VALUE, Change, Grouping


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
