"""Aggregates whose attempts fail, are repeated or come second: exact, nothing twice, through the real operators and stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkjoin.folds.fold import Fold
from fkjoin.spark.specs import AggregateSpec, RegroupSpec, StateSpec
from tests.support.engine import Engine
from tests.support.grouping import COLUMNS, VALUE, Change, Grouping


@pytest.mark.parametrize("size", [1, 7])
def test_one_change_that_reaches_many_rows_is_one_step_in_every_group(tmp_path: Path, size: int) -> None:
    """The outputs of a fan-out have one right version: a crash in their midst leaves all of them or none."""
    fold = Fold(VALUE, COLUMNS[:3])
    state, reader = StateSpec("sums", size, 60_000, str(tmp_path), "{}", True), Grouping(VALUE, *COLUMNS[:3])
    engine = Engine([RegroupSpec(state, as_read=True), AggregateSpec(state, fold=fold, in_order=True)])
    moved = [Change(f"k{number}", 1, "before", (1, None, None, "t", None)) for number in range(200)]
    reader.apply(engine.attempted({"regroup": engine.packed(reader.messages(moved))}))
    engine.commit()
    again = engine.packed(reader.messages([change._replace(version=2, group="after") for change in moved]))
    for stop in ("regroup", "aggregate"):
        engine.attempted({"regroup": again}, stop_after=stop)  # type: ignore[arg-type]
    reader.apply(engine.attempted({"regroup": again}))
    engine.commit()
    assert reader.table == {"after": (200, 200, 200)}
