"""Attempts that fail, are repeated or come second; input that comes twice or in another order: nothing lost, nothing twice.

Through the real operators and stores, every batch validated; the processes are killed for real in ``integration``.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fkjoin import InvariantError
from fkjoin.codec.messages import SUBSCRIPTION, column
from fkjoin.stages.invariants import GuardedStore, expected_subscriptions, live_subscriptions
from fkjoin.stages.subscription import subscription
from fkjoin.state import BucketStore, MemoryStore
from tests.support.engine import LocalEngine
from tests.support.laws import law
from tests.support.operators import OPERATORS, Operator
from tests.support.oracle import Change, batch_join, histories, messages, rows
from tests.support.replay.memory_join import MemoryJoin
from tests.support.sampling import EVERY


@st.composite
def batches(draw: Any) -> list[list[Change]]:
    """A history, cut anywhere."""
    history = draw(histories())
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(history) - 1)), max_size=4)))
    return [history[first:last] for first, last in zip([0, *cuts], [*cuts, len(history)], strict=True) if first < last]


class StoppedError(Exception):
    """An attempt that ends in its midst."""


def stopping(patched: pytest.MonkeyPatch, after: int) -> None:
    """Have an attempt end when that many stores have been committed."""
    commit, left = BucketStore.commit, iter(range(after, 0, -1))

    def committed(store: BucketStore) -> None:
        commit(store)
        if next(left, 1) == 1:
            raise StoppedError

    patched.setattr(BucketStore, "commit", committed)


@pytest.mark.faults
@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
def test_a_repeated_attempt_sends_what_the_failed_one_would_have_sent(
    kind: type[Operator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKA-12508: state that was written by an attempt whose output was lost must not silence the next attempt."""
    for seed in range(20 if EVERY else 1):
        rng, version, stopped = random.Random(seed), 0, 0
        retried, plain = (kind(tmp_path / f"{seed}-{name}", random.Random(seed)) for name in ("retried", "plain"))
        for number in range(6 if EVERY else 2):
            batch = [retried.change(rng, version + at) for at in range(rng.randint(1, 12))]
            version += len(batch)
            with monkeypatch.context() as patched:
                stopping(patched, (1, 3, 6)[number % 3])  # an attempt of a join commits six stores
                try:
                    retried.attempt(batch)
                except StoppedError:
                    stopped += 1
            assert retried.attempt(batch) == retried.attempt(batch) == plain.attempt(batch)
            retried.commit()
            plain.commit()
        assert stopped, "no attempt failed: the test tests nothing"


class Validated(MemoryJoin):
    """The join in memory, its marks guarded and its subscriptions compared after every batch."""

    def process(self, *changes: Any) -> pa.Table:
        plain = self.stores
        marks = b"d", b"r", b""  # of the stages that read the tables
        guarded = tuple(GuardedStore(store, "memory", tags) for store, tags in zip(plain, marks, strict=True))
        self.stores = guarded  # type: ignore[assignment]
        results = super().process(*changes)
        self.stores = plain
        wanted, found = (
            sorted(key for keys in side for key in keys.to_pylist())
            for side in (expected_subscriptions(plain[0]), live_subscriptions(plain[1]))
        )
        assert wanted == found
        return results


@law(60, cut=batches(), data=st.data(), how=st.sampled_from(["inner", "left"]))
def test_whole_batches_suffixes_and_records_that_come_again_change_nothing(cut: Any, data: Any, how: Any) -> None:
    join, seen = Validated(how), list[Change]()
    for changes in cut:
        join.batch(changes)
        seen += changes
        suffix = seen[data.draw(st.integers(0, len(seen))) :]
        for again in (changes, suffix, [data.draw(st.sampled_from(seen))]):
            assert rows(join.batch(again)) == []
    assert join.joined == batch_join(seen, how)
    assert rows(join.batch(data.draw(st.permutations(seen)))) == []


@law(
    100,
    history=histories(),
    paces=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))),
    how=st.sampled_from(["inner", "left"]),
)
def test_a_producers_retries_and_partitions_interleaved_at_will_end_in_the_same_table(
    history: list[Change], paces: list[tuple[int, int]], how: Any
) -> None:
    """Each key's changes are in one partition; the partitions are read at paces of their own, with stretches read twice."""
    partitions = [[change for change in history if change.key[-1] % 2 == number] for number in (0, 1)]
    join = Validated(how)
    for pace in [*paces, (len(history), len(history))]:
        batch: list[Change] = []
        for partition, taken in zip(partitions, pace, strict=True):
            read, partition[:taken] = partition[:taken], []
            batch += read + read[taken // 2 :]
        join.batch(batch)
    assert join.joined == batch_join(history, how)


@pytest.fixture
def engine(tmp_path: Path) -> LocalEngine:
    """An engine with two orders of one customer."""
    made = LocalEngine(tmp_path, "left")
    made.batch([Change(True, b"1", b"x", 1, b"a"), Change(True, b"2", b"y", 2, b"a"), Change(False, b"a", b"A", 3)])
    return made


def test_a_subscription_that_is_forgotten_is_noticed(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(subscriptions: pa.Table, *rest: Any, **more: Any) -> Iterator[pa.Table]:
        return subscription(subscriptions.slice(1), *rest, **more)

    monkeypatch.setattr("fkjoin.spark.specs.joins.subscription", forgetful)
    with pytest.raises(InvariantError, match="live left rows have their foreign key here, but there are 2 subscriptions"):
        engine.batch([Change(True, b"3", b"z", 4, b"a")])


def test_a_mark_that_goes_back_is_noticed(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(changes: pa.Table, code: Any, *rest: Any, **more: Any) -> Any:
        return np.arange(len(code)), code, column(changes, "version")

    monkeypatch.setattr(importlib.import_module("fkjoin.stages.rekey"), "newest_changes", careless)
    with pytest.raises(InvariantError, match=r"store join-rekey, bucket \d: the record b'd1' would go back from version"):
        engine.batch([Change(True, b"1", b"old", 0, b"a")])


def test_an_index_other_than_the_log_is_noticed(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketStore, "scan", lambda *_: iter(()))
    with pytest.raises(InvariantError, match="the index lacks . entries of the log, first"):
        engine.batch([Change(True, b"1", b"new", 9, b"a")])


def test_a_huge_fan_out_is_paged_on_its_way_and_worked_on_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are those of one go, also for keys that come in several parts' payloads."""
    orders = [Change(True, b"o%03d" % number, b"x", number, b"a") for number in range(300)]
    batch = [*orders, Change(False, b"a", b"A", 300), *(row._replace(version=301, value=b"y") for row in orders[::3])]
    whole, parts = (LocalEngine(tmp_path / name) for name in ("whole", "parts"))
    wanted = [rows(whole.batch(batch)), rows(whole.batch([Change(False, b"a", b"B", 302)]))]
    sizes: list[int] = []
    resolve = importlib.import_module("fkjoin.stages.resolve").resolve

    def sized(joined: pa.Table, *rest: Any, **more: Any) -> pa.Table:
        sizes.append(len(joined))
        return resolve(joined, *rest, **more)

    monkeypatch.setattr("fkjoin.spark.specs.ResolveSpec.part_bytes", 2000)
    monkeypatch.setattr("fkjoin.spark.specs.joins.resolve", sized)
    assert [rows(parts.batch(batch)), rows(parts.batch([Change(False, b"a", b"B", 302)]))] == wanted
    assert len(sizes) > 4
    assert max(sizes) < 200

    join = MemoryJoin("inner", stores=(MemoryStore(), MemoryStore(10), MemoryStore()))
    join.batch(orders)
    nothing, right = SUBSCRIPTION.empty_table(), messages([Change(False, b"a", b"C", 400)], left=False)
    answers = subscription(nothing, right, join.stores[1], join.count, now_ms=0, retention_ms=1)
    assert [len(page) for page in answers if len(page)] == [10] * 30
