"""Stages of one operator do what they do apart: results, counters and stores, whichever attempts of a batch are lost."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from fkjoin.codec.messages import RESULT, pack, unpack
from fkjoin.spark.change_log import SparkLog
from fkjoin.spark.operator import StageProcessor
from fkjoin.spark.specs import WorkerStage
from fkjoin.stages.counters import Counters
from fkjoin.state import BucketStore
from fkjoin.state.errors import StoreMismatchError
from fkjoin.state.segments import Meta
from tests.support.engine import Handle, LocalEngine
from tests.support.operators import Join
from tests.support.oracle import Change, Joined, apply, batch_join, messages
from tests.support.sampling import sampled
from tests.support.stores import contents

NAMES = "rekey", "subscription", "resolve"


class LostError(Exception):
    """The attempt is lost."""


def losing(patched: pytest.MonkeyPatch, number: int, *, before: bool) -> None:
    """Lose an attempt before or after the commit of one of its stores."""
    commit, numbers = BucketStore.commit, itertools.count()

    def lost(store: BucketStore) -> None:
        is_last = next(numbers) == number
        if not (is_last and before):
            commit(store)
        if is_last:
            raise LostError

    patched.setattr(BucketStore, "commit", lost)


class Shared:
    """A join whose stages are one operator, of one bucket; counters of rekey are summed up under a name."""

    def __init__(self, folder: Path) -> None:
        self.apart = LocalEngine(folder, "left", 1)
        rekey, subscription, resolve = self.apart.specs.values()
        self.stages = WorkerStage(rekey, 1, "joined"), WorkerStage(subscription, 2), WorkerStage(resolve)
        self.committed, self.now_ms = Handle(), 1000

    def frames(self, changes: list[Change]) -> Iterator[pd.DataFrame]:
        for entry, left in enumerate((True, False)):
            payloads = [b"", pack(messages(changes, left=left))]
            columns: Any = {"bucket": 0, "payload": payloads, "counter": None, "count": 0, "entry": entry}
            yield pd.DataFrame(columns | {"batch_ms": self.now_ms})

    def attempt(self, changes: list[Change]) -> tuple[pa.Table, Counters, Handle]:
        handle = Handle(self.committed.meta.get(), self.committed.log)
        processor = StageProcessor(*self.stages)
        processor.init(handle)  # type: ignore[arg-type]
        results, count = [RESULT.empty_table()], Counters()
        for frame in processor.handleInputRows((0,), self.frames(changes), None):
            for _, payload, counter, number in frame.itertuples(index=False):
                if payload:
                    results.append(unpack(payload))
                elif payload is None:
                    count[counter.removeprefix("joined/")] += int(number)
        return pa.concat_tables(results), count, handle

    def commit(self, handle: Handle) -> None:
        self.committed, self.now_ms = handle, self.now_ms + 1000

    def store(self, stage: int, folder: Path) -> dict[bytes, bytes]:
        with SparkLog(self.committed.meta, self.committed.log, len(self.stages)) as state:
            return _contents(state.of(stage), folder)


def _contents(log: Any, folder: Path) -> dict[bytes, bytes]:
    shutil.rmtree(folder, ignore_errors=True)
    with BucketStore(log, folder, identity=Meta.decode(log.meta()).identity) as store:
        return contents(store)


def _counted(count: Counters) -> dict[str, int]:
    return {name: number for name, number in count.items() if not name.endswith(("-ms", "-bytes"))}


@pytest.mark.faults
@pytest.mark.parametrize("seed", sampled(range(4), range(1)))
def test_stages_do_as_apart(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seed has empty batches, and loses attempts before and after the commit of each store."""
    rng, version = random.Random(seed), 0
    for name in ("shared", "apart"):
        (tmp_path / name).mkdir(mode=0o700)
    shared, apart = Shared(tmp_path / "shared"), LocalEngine(tmp_path / "apart", "left", 1)
    history, joined, change = list[Change](), Joined(), partial(Join.change, None)
    for _ in range(6):
        changes = [change(rng, version + at) for at in range(rng.choice((0, 1, 3, 10)))]
        version += len(changes)
        history += changes
        for _ in range(rng.choice((0, 1, 2))):
            with monkeypatch.context() as patched:
                losing(patched, rng.randrange(3), before=rng.random() < 0.5)
                with pytest.raises(LostError):
                    shared.attempt(changes)
        shared.attempt(changes)  # by a task that Spark does not commit
        results, count, handle = shared.attempt(changes)
        shared.commit(handle)
        apply(results, joined)
        before = apart.count.copy()
        apart.batch(changes)
        assert joined == batch_join(history, "left")
        assert _counted(count) == _counted(apart.count - before)
        for number, name in enumerate(NAMES):
            committed = apart._committed[name, 0]
            with SparkLog(committed.meta, committed.log) as alone:
                assert shared.store(number, tmp_path / "copy") == _contents(alone.of(0), tmp_path / "other")


def test_state_of_other_stages_is_refused(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    _, _, handle = shared.attempt([Change(True, b"k", b"x", 1, b"a")])
    shared.commit(handle)
    shared.stages = shared.stages[1:]  # type: ignore[assignment]
    with pytest.raises(StoreMismatchError, match="the state has 3 stages, and the operator has 2: use the optimizer's rules"):
        shared.attempt([])
