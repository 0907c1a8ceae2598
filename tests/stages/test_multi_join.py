"""A left table with several right tables at once: it equals joins in a row, whatever comes first, twice or delayed."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkjoin.codec import records, versions
from fkjoin.codec.arrays import BYTES, as_bytes
from fkjoin.codec.messages import LEFT, PART, SUBSCRIPTION, Operation
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.gather import gather, result_rows
from fkjoin.stages.invariants import expected_subscriptions
from fkjoin.stages.scatter import answered, scatter
from fkjoin.state import MemoryStore
from tests.support.channels import Channel
from tests.support.multi_join import Change, Joined, MemoryMultiJoin, batch_join, messages, of_rights, right_messages
from tests.support.sampling import EVERY, sampled

TIMES = {"now_ms": 0, "retention_ms": 1000}


TEXTS = st.sampled_from(["x", "y", ""])
FOREIGN = st.sampled_from([None, "a", "b"])
KIND = st.sampled_from(["inner", "left"])
LEFTS = st.builds(
    lambda key, text, one, two: (LEFT, key, text or None, (one, two)), st.sampled_from("kj"), TEXTS, FOREIGN, FOREIGN
)
RIGHTS = st.builds(lambda at, key, text: (at, key, text or None, (None, None)), st.integers(0, 1), st.sampled_from("ab"), TEXTS)


def numbered(events: list[tuple[int, str, str | None, tuple[str | None, str | None]]]) -> list[Change]:
    return [Change(number, key, at, text, foreign) for at, (number, key, text, foreign) in enumerate(events, 1)]


@given(events=st.lists(LEFTS | RIGHTS, max_size=40), cut=st.integers(1, 9), how=st.tuples(KIND, KIND))
@settings(max_examples=400 if EVERY else 12)
def test_a_multi_way_join_is_the_batch_join_after_every_batch(events: list, cut: int, how: tuple[str, str]) -> None:
    running, changes = MemoryMultiJoin(how), numbered(events)
    for start in range(0, len(changes), cut):
        running.batch(changes[start : start + cut])
        assert running.joined == batch_join(changes[: start + cut], how)
        subscribed = {key[1:] for key, _ in running.stores[1].items() if key.startswith(b"s")}
        assert subscribed == {key for page in expected_subscriptions(running.stores[0], 2) for key in page.to_pylist()}
    for history in running.joined.versions.values():
        assert history == sorted(history), "the left row's version never goes back"
    kept = [item for item in running.stores[2].items() if item[0].startswith(b"d")]
    keys = as_bytes(pa.array([key[1:] for key, _ in kept], BYTES))
    rows, _ = result_rows(keys, records.decode(pa.array([value for _, value in kept], BYTES)), running.joined.of)
    assert {key.decode() for key, row in zip(keys.to_pylist(), rows.to_pylist(), strict=True) if row is not None} == set(
        running.joined
    )


def test_values_that_change_ask_no_right_table() -> None:
    running = MemoryMultiJoin(("inner", "inner"))
    running.batch([Change(0, "a", 1, "first"), Change(1, "b", 1, "second"), Change(LEFT, "k", 1, "x", ("a", "b"))])
    before = running.stores[1].items()
    running.batch([Change(LEFT, "k", 2, "y", ("a", "b"))])
    assert running.joined == {"k": ("y", "first", "second")}
    assert running.stores[1].items() == before
    assert running.count[counters.ANSWERS] == 2, "of the two subscriptions of the first batch"


def test_what_changes_nothing_is_dropped_and_counted() -> None:
    running = MemoryMultiJoin(("left", "left"))
    running.batch([Change(LEFT, "k", 5, "x", ("a", None)), Change(LEFT, "gone", 1, None)])
    assert running.joined == {"k": ("x", None, None)}
    assert running.count[counters.TOMBSTONES] == 0, "a row that was never seen is deleted without a word"
    assert len(running.batch([Change(LEFT, "k", 6, "x", ("a", None))])) == 0
    assert running.count[counters.IDEMPOTENT] == 1
    assert len(running.batch([Change(LEFT, "k", 4, "stale", ("a", None))])) == 0
    assert running.count[counters.STALE] == 1
    running.batch([Change(0, "a", 1, "first")])
    made = running.batch([Change(LEFT, "k", 7, None)])
    assert [one["operation"] for one in made.to_pylist()] == [Operation.DELETE]
    assert versions.decode(made.column("version")[0].as_py())[1:] == [(bytes(8), ()), (bytes(8), ())]


def test_left_rows_without_timestamps_get_those_of_right_rows() -> None:
    running, keys = MemoryMultiJoin(("left", "left")), ("a", "b")
    first = [Change(LEFT, "k", 1, "x", keys), Change(0, "a", 5, "r"), Change(1, "b", 7, "s")]
    assert running.batch(first, untimed=True).column("ts").to_pylist() == [7]
    assert running.batch([Change(0, "a", 6, "t"), Change(1, "b", 9, "t")]).column("ts").to_pylist() == [9]
    assert running.batch([Change(1, "b", 8, "stale")]).column("ts").to_pylist() == []
    assert running.batch([Change(1, "b", 10, None)]).column("ts").to_pylist() == [10]
    assert running.batch([Change(LEFT, "k", 2, "y", keys)], untimed=True).column("ts").to_pylist() == [6]


@given(events=st.lists(LEFTS | RIGHTS, max_size=40), how=st.sampled_from([("inner", "left"), ("left", "left")]))
@settings(max_examples=200 if EVERY else 10)
def test_timestamps_of_single_changes(events: list, how: tuple[str, str]) -> None:
    running, rows = MemoryMultiJoin(how), dict[tuple[int, str], Change]()
    for change in numbered(events):
        before = rows.get((change.number, change.key))
        if before is None or (before.text, before.foreign) != (change.text, change.foreign):
            rows[change.number, change.key] = change  # what leaves a row as it was leaves its timestamp, too
        for one in running.batch([change]).to_pylist():
            left = rows[LEFT, one["key"].decode()]
            named = [rows.get((at, key)) for at, key in enumerate(left.foreign) if key is not None]
            there = [row for row in named if row is not None and row.text is not None and left.text is not None]
            later = [row.version for row in there if row.number > change.number]
            assert one["ts"] == max([change.version, *later])


def history(number: int, rng: random.Random) -> list[Change]:
    changes = []
    for version in range(1, 8):
        text = rng.choice("xyz") if rng.random() < 0.75 else None
        if rng.random() < 0.6:
            foreign = tuple(rng.choice((f"{number}-a", f"{number}-b", None)) for _ in range(2))
            changes.append(Change(LEFT, f"{number}-k", version, text, foreign))  # type: ignore[arg-type]
        else:
            changes.append(Change(rng.randrange(2), f"{number}-{rng.choice('ab')}", version, text))
    return changes


HOWS = [("inner", "inner"), ("left", "inner"), ("left", "left")]


@pytest.mark.faults
@pytest.mark.parametrize("how", sampled(HOWS, HOWS[1:2]))
def test_histories_of_random_delivery_end_as_the_batch_join(how: tuple[str, str]) -> None:
    """Messages between the stages overtake each other and come again, and no row is ever a mixture of two versions."""
    rng, noise = random.Random(f"{how} star"), np.random.default_rng(7)
    histories = 4_000 if EVERY else 500
    changes = [change for number in range(histories) for change in history(number, rng)]
    lefts, rights = Channel(messages(changes, LEFT), noise), Channel(right_messages(changes), noise)
    asked, parts = Channel(SUBSCRIPTION.empty_table(), noise), Channel(PART.empty_table(), noise)
    stores, count = [MemoryStore() for _ in range(3)], Counters()
    joined = Joined(of_rights(*how))
    seen = {(change.key, change.version): (change.text, change.foreign) for change in changes if change.number == LEFT}
    while lefts or rights or asked or parts:
        sent = scatter(lefts.deliver(0.3), stores[0], count, 2, **TIMES)
        asked.send(sent.subscriptions)
        parts.send(sent.rows)
        share = noise.choice((0.1, 0.3, 0.6))
        for page in answered(asked.deliver(share), rights.deliver(0.3), stores[1], count, (1, 1), in_order=False, **TIMES):
            parts.send(page)
        made = gather(parts.deliver(share), stores[2], count, joined.of, **TIMES)
        joined.take(made)
        for one in made.to_pylist():
            name, (left, *_) = one["key"].decode(), (numbers for _, numbers in versions.decode(one["version"]))
            if one["value"] is not None:
                (text, foreign), (shown, *others) = seen[name, left[0]], joined[name]
                assert shown == text
                assert all(other is None or key is not None for other, key in zip(others, foreign, strict=True))

    assert joined == batch_join(changes, how)
    assert count[counters.STALE] > histories, "nothing was out of order: the test tests nothing"
