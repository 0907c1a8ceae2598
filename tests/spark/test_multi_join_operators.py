"""A multi-way join through its operators and stores: the parts of its rows, and hot keys.

That attempts that fail leave no trace: tests/stages/test_task_retries.py.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructType

from fkjoin.codec.messages import LEFT
from fkjoin.spark.identity import identity_text
from fkjoin.spark.specs import StateSpec
from fkjoin.stages import counters
from tests.support.engine import Engine
from tests.support.multi_join import Change
from tests.support.operators import MultiJoined


def test_parts_at_a_time_make_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A left key's parts are never torn apart."""
    rng, folders = random.Random(4), (tmp_path / "whole", tmp_path / "some")
    whole, some = (MultiJoined(folder, random.Random(4)) for folder in folders)
    for number in range(2):
        changes = [whole.change(rng, 25 * number + at) for at in range(25)]
        wanted = whole.attempt(changes)
        with monkeypatch.context() as limited:
            limited.setattr("fkjoin.spark.specs.GatherSpec.part_bytes", 300)
            assert some.attempt(changes) == wanted
        assert wanted
        whole.commit()
        some.commit()


def test_a_hot_key_is_named_by_its_key(tmp_path: Path) -> None:
    key = json.loads(StructType().add("id", StringType()).json())
    identity = identity_text({"stage": "subscription"}, {"foreign_key0": key, "foreign_key1": key})
    star = MultiJoined(tmp_path, random.Random(4))
    state = StateSpec("star", 1, 60_000, str(tmp_path), identity)
    star.engine = Engine(star.specs(state, random.Random(4)))
    star.attempt([Change(LEFT, str(number), 1, "x", ("a", "b")) for number in range(counters.HOT)])
    star.commit()
    star.attempt([Change(1, "b", 2, "changed")])
    assert star.engine.count[f'{counters.HOT_KEY}"b"'] == counters.HOT
