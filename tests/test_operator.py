"""The stateful operator without Spark: what it yields, with states that are dictionaries."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from fkjoin.folds.fold import Fold
from fkjoin.folds.sums import Count
from fkjoin.spark.buckets import bucket_ids
from fkjoin.spark.operator import StageName, StageProcessor, StageSpec
from fkjoin.stages import counters
from fkjoin.stages.multi_join import MultiJoin, Nested, Right
from tests.engine import Handle


@pytest.mark.parametrize(
    "stage", ["rekey", "subscription", "resolve", "regroup", "aggregate", "merge", "pace", "scatter", "gather"]
)
def test_a_batch_without_changes_yields_no_empty_frame(tmp_path: Path, stage: StageName) -> None:
    """Spark cannot tell the types of a frame without rows: counters that are all zero must not make one."""
    fold = pickle.dumps(Fold(pa.schema([]), (Count("count"),)))
    text = pa.schema([("text", pa.string())])
    star = pickle.dumps(MultiJoin(text, text, 1, (Right("right", text, text, 1, "inner"),), Nested(())))
    spec = StageSpec(
        stage, "join", 1, 1000, str(tmp_path), "{}", fold=fold, star=star if stage in ("scatter", "gather") else b""
    )
    processor = StageProcessor(spec)
    processor.init(Handle())  # type: ignore[arg-type]
    hello = pd.DataFrame({"bucket": [0], "payload": [b""], "counter": [None], "count": [0]})
    frames = list(processor.handleInputRows((0,), iter([hello]), None))
    assert all(len(frame) for frame in frames)
    assert len(frames) == 1  # of frames each costs a millisecond, and a small batch has no more than one per bucket
    rows = pd.concat(frames)
    assert [payload for payload in rows["payload"] if payload is not None] == [b""]
    counted = {name for name in rows["counter"] if name is not None}
    assert counted <= {*counters.SIZES, f"{stage}-ms"}


@pytest.mark.parametrize("validate", [False, True])
def test_the_next_operator_wakes_up_and_all_its_buckets_if_they_are_to_be_checked(tmp_path: Path, validate: bool) -> None:
    """A rekey that reads answers has no packed rows to wake it, and each of its buckets has to say what it knows of."""
    processor = StageProcessor(StageSpec("subscription", "join", 4, 1000, str(tmp_path), "{}", validate=validate))
    processor.init(Handle())  # type: ignore[arg-type]
    hello = pd.DataFrame({"bucket": [0], "payload": [b""], "counter": [None], "count": [0]})
    rows = pd.concat(processor.handleInputRows((0,), iter([hello]), None))
    woken = [bucket for bucket, payload in zip(rows["bucket"], rows["payload"], strict=True) if payload is not None]
    assert woken == (list(bucket_ids(4)) if validate else [0])


def test_a_query_starts_without_what_only_the_work_needs() -> None:
    """Spark imports the operators' module once per operator, in a process of its own, before the first batch."""
    script = "import sys, fkjoin.spark.operator; print({'pandas', 'pyarrow', 'numpy', 'rocksdict'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
