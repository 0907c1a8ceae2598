"""Memory that workers hold for large batches, and memory that they give back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fkjoin.codec import messages, versions
from fkjoin.codec.arrays import concat, constant, fixed
from fkjoin.codec.messages import ANSWER, CHANGE
from fkjoin.spark import worker
from fkjoin.spark.bucket_run import BucketRun, received
from fkjoin.spark.buckets import framed, packed_by_bucket
from fkjoin.spark.packing import PackChanges, packed_changes
from fkjoin.spark.parquet import WriteFile
from fkjoin.spark.specs import RekeySpec, ResolveSpec, StageSpec, StateSpec
from fkjoin.spark.topic_values import MakeRecords
from fkjoin.spark.worker import releasing
from tests.support.stores import Log

ROWS = 20_000
ROW_BYTES = 400

STATE = StateSpec("join", 1, 1000, "", "{}")


def random(width: int, seed: int = 1) -> pa.Array:
    """Byte strings that do not get smaller when they are packed."""
    return fixed(np.random.default_rng(seed).integers(0, 256, (ROWS, width), np.uint8))


def changes() -> pa.Table:
    version = versions.encode(constant(bytes(8), ROWS), [np.arange(ROWS)])
    return messages.table(CHANGE, random(12), random(12, 2), random(ROW_BYTES), version, np.zeros(ROWS, np.int64))


def answers() -> pa.Table:
    version = versions.encode(constant(bytes(8), ROWS), [np.arange(ROWS)])
    left, right = random(ROW_BYTES // 2, 3), random(ROW_BYTES // 2, 4)
    return messages.table(ANSWER, random(12), concat(version, version), left, right, np.zeros(ROWS, np.int64))


def of_a_task(given: pa.Table) -> list[pd.DataFrame]:
    """The messages as they come to an operator of one bucket."""
    return [
        pd.DataFrame({"bucket": 0, "payload": [data for _, data in some], "counter": None, "count": 0, "batch_ms": 0})
        for some in framed(packed_by_bucket(given, "key", 1))
    ]


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """The pool that counts what Arrow allocates in a test."""
    before, counting = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(counting)
    yield counting
    pa.set_memory_pool(before)


@pytest.mark.parametrize(("spec", "given"), [(RekeySpec(STATE), changes), (ResolveSpec(STATE, in_order=True), answers)])
def test_a_stage_never_holds_more_than_a_batch_twice(
    tmp_path: Path, pool: pa.MemoryPool, spec: StageSpec, given: Callable[[], pa.Table]
) -> None:
    """A stage holds a batch as it came and in one piece, and later in one piece with what is made of it."""
    made = given()
    size = made.nbytes
    frames = of_a_task(made)
    del made
    before, sent = pool.bytes_allocated(), 0
    spec = replace(spec, state=replace(STATE, index_dir=str(tmp_path)))
    for _, payload, *_ in BucketRun(spec, 0, Log()).envelopes(*received(frames)):
        sent += len(payload or b"")
    assert sent > size / 2
    assert pool.max_memory() - before < 2.15 * size


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls that give free memory back."""
    calls: list[str] = []
    monkeypatch.setattr(pa, "default_memory_pool", lambda: SimpleNamespace(release_unused=lambda: calls.append("released")))
    return calls


def test_memory_goes_back_after_the_last_of_many_large_batches(released: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [pa.record_batch({"n": [number, number]}) for number in range(3)]
    monkeypatch.setattr(worker, "LARGE", 3 * 16)
    taken = [(batch, len(released)) for batch in releasing(iter(batches))]
    assert (taken, released) == ([(batch, 0) for batch in batches], ["released"])
    assert list(releasing(iter(batches[:2]))) == batches[:2]
    assert released == ["released"]


def test_operators_give_memory_back(released: list[str], tmp_path: Path) -> None:
    spec = ResolveSpec(replace(STATE, index_dir=str(tmp_path)), in_order=True)
    for rows, calls in ((10, []), (ROWS, ["released"])):
        list(BucketRun(spec, 0, Log()).envelopes(*received(of_a_task(answers()[:rows]))))
        assert released == calls


def test_packing_and_writing_give_memory_back(released: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LARGE", 1)
    pack = PackChanges(pa.schema([]), None, pa.schema([]), 1)
    assert len(list(packed_changes(iter([]), pack, lambda *_: CHANGE.empty_table()))) == 1
    assert released == ["released"]
    (file,) = WriteFile(str(tmp_path), None, b"{}")(iter([pa.record_batch({"n": [1]})]))
    assert (tmp_path / file["file"][0].as_py()).exists()
    assert released == 2 * ["released"]
    monkeypatch.setattr(worker, "LARGE", 0)
    nothing = SimpleNamespace(paths=())
    assert list(MakeRecords(nothing, nothing, nothing)(iter([]))) == []  # type: ignore[arg-type]
    assert released == 3 * ["released"]
