"""A multi-way join through its operators and stores: failed attempts, parts, hot keys, and the making of its rows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin.codec.messages import LEFT
from fkjoin.spark.identity import identity_text
from fkjoin.spark.operator import StageName
from fkjoin.spark.specs import GatherSpec, MultiSubscriptionSpec, ScatterSpec, StageSpec, StateSpec
from fkjoin.stages import counters
from fkjoin.stages.multi_join import MultiJoin
from tests.support.engine import Engine
from tests.support.multi_join import Change, Joined, batch_join, messages, of_rights, right_messages
from tests.support.oracle import rows


class LocalMultiJoin(Engine):
    """The operators of a query with their stores and files; dictionaries play Spark's part."""

    def __init__(self, folder: Path, of: MultiJoin, buckets: int = 2) -> None:
        key = StructType([StructField("id", StringType())])
        about = {f"foreign_key{at}": json.loads(key.json()) for at in (0, 1)}
        self.joined = Joined(of)

        def state(kind: type[StageSpec]) -> StateSpec:
            return StateSpec("star", buckets, 60_000, str(folder), identity_text({"stage": kind.stage}, about), True)

        parts = tuple(right.parts for right in of.rights)
        super().__init__(
            [
                ScatterSpec(state(ScatterSpec), rights=len(parts)),
                MultiSubscriptionSpec(
                    state(MultiSubscriptionSpec), right_parts=parts, rights_in_order=tuple(False for _ in parts)
                ),
                GatherSpec(state(GatherSpec), multi_join=of),
            ]
        )

    def batch(self, changes: list[Change], *, fail_after: StageName | None = None) -> pa.Table:
        """Work on a batch; with ``fail_after``, after an attempt that is not committed and would have sent the same."""
        sides = {"scatter": self.packed(messages(changes, LEFT)), "subscription": self.packed(right_messages(changes))}
        failed = self.attempted(sides, stop_after=fail_after)  # type: ignore[arg-type]
        made = self.attempted(sides)  # type: ignore[arg-type]
        assert fail_after is not None or rows(failed) == rows(made)
        assert len(set(made.column("key").to_pylist())) == len(made), "in a batch a row is sent once"
        self.commit()
        self.joined.take(made)
        return made


def test_attempts_that_fail_leave_no_trace_and_parts_are_worked_on_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every invariant is checked after every batch; a left key's parts are never torn apart."""
    monkeypatch.setattr("fkjoin.spark.specs.GatherSpec.part_bytes", 300)
    rng, how = random.Random(4), ("inner", "left")
    engine, changes = LocalMultiJoin(tmp_path, of_rights(*how)), list[Change]()
    for fail_after in (None, "scatter", "subscription", "gather"):
        for _ in range(25):
            version, text = len(changes) + 1, rng.choice(("x", "y", None))
            foreign = rng.choice(("a", "b", None)), rng.choice(("a", "b"))
            left = Change(LEFT, f"k{rng.randrange(9)}", version, text, foreign)
            changes.append(left if rng.random() < 0.7 else Change(rng.randrange(2), rng.choice("ab"), version, text))
        engine.batch(changes[-25:], fail_after=fail_after)  # type: ignore[arg-type]
        assert engine.joined == batch_join(changes, how)
        assert len(engine.batch(changes[-40:])) == 0, "what comes again changes nothing"
    assert engine.joined


def test_a_hot_key_is_named_by_its_key(tmp_path: Path) -> None:
    engine = LocalMultiJoin(tmp_path, of_rights("inner", "left"), buckets=1)
    rights = [Change(0, "a", 1, "first"), Change(1, "b", 1, "second")]
    engine.batch([*rights, *(Change(LEFT, str(number), 1, "x", ("a", "b")) for number in range(counters.HOT))])
    engine.batch([Change(1, "b", 2, "changed")])
    assert engine.count[f'{counters.HOT_KEY}"b"'] == 2 * counters.HOT, "in two attempts"
    assert len(engine.joined) == counters.HOT
    assert {row[2] for row in engine.joined.values()} == {"changed"}
