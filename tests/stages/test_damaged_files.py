"""Operators of each kind whose local files are damaged in any way, between any two calls of a store: no row is wrong."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from fkjoin.spark import specs
from fkjoin.spark.specs import StageSpec
from fkjoin.state import StateError
from tests.support.damage import HARMS, Damaging, another_process, damaged_stores, small_files
from tests.support.operators import OPERATORS, Join, Operator
from tests.support.sampling import EVERY, sampled

HISTORIES, BATCHES = (150, 15) if EVERY else (1, 3)
"""The number of histories of each operator, and of the batches of one at most."""


@pytest.mark.faults
@pytest.mark.parametrize("kind", sampled(OPERATORS, [Join]), ids=lambda kind: kind.__name__)
def test_a_table_is_right_whatever_happens_to_files(kind: type[Operator], tmp_path: Path) -> None:
    seen = Counter[str]()
    for seed in range(HISTORIES):
        history(kind, tmp_path / str(seed), random.Random(seed), seen)
    assert seen["rebuilt"] > HISTORIES, "once at the end of each, and where a file was damaged"
    assert seen["failed"] == 0, "an attempt fails where its index is being written to"
    if EVERY:
        assert all(seen[harm.__name__] > HISTORIES for harm in HARMS)


def test_every_kind_of_stage_is_among_them(tmp_path: Path) -> None:
    made = [operator(tmp_path, random.Random(0)) for operator in OPERATORS]
    tried = {type(spec) for operator in made for engine in operator.engines for spec in engine.specs.values()}
    assert tried == {kind for kind in vars(specs).values() if is_stage(kind)}


def is_stage(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, StageSpec) and kind is not StageSpec


def history(kind: type[Operator], folder: Path, rng: random.Random, seen: Counter[str]) -> None:
    """Batches of an operator, each compared with those of one that nothing happens to; ``seen`` counts what happened."""
    damage, seed = Damaging(folder, rng, rng.choice([0.02, 0.1, 0.3]), seen), rng.random()
    operator, plain = (kind(place, random.Random(seed)) for place in (folder, folder.with_name(f"{folder.name}-plain")))
    version, size = 0, rng.choice([1, 5, 30])

    def step() -> list[str]:
        for tries in range(4):  # as often as Spark tries a task
            damage()
            try:
                results = operator.attempt(batch)
            except StateError:
                seen["failed"] += 1
                assert tries < 3
                continue
            if rng.random() < 0.9:  # else it is repeated all the same
                break
        operator.commit()
        return results

    batches = rng.randint(3, BATCHES)
    for number in range(batches + 1):
        batch = [operator.change(rng, version + at) for at in range(rng.randint(1, size))]
        version += len(batch)
        with pytest.MonkeyPatch.context() as patched:
            small_files(patched, rng)
            patched.setattr("fkjoin.spark.bucket_run.BucketStore", damaged_stores(damage))
            if number == batches:
                shutil.rmtree(folder, ignore_errors=True)  # what follows is of what the logs have, alone
            elif rng.random() < 0.3:
                another_process()
            results = step()
        assert results == plain.attempt(batch)
        plain.commit()
