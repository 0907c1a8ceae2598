"""Joins by primary key: each key's newest rows side by side, whatever comes first, twice, delayed or together."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

from fkjoin.codec.messages import Operation
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.invariants import GuardedStore
from fkjoin.stages.join_rows import join_rows
from fkjoin.stages.pair import answers_by_key, pair
from fkjoin.stages.resolve import resolve
from fkjoin.state import MemoryStore
from tests.support.laws import law
from tests.support.pairing import HOWS, Event, Result, apply, joined, messages

ROWS = (None, b"x", b"y", b"")
EVENT = st.builds(Event, st.integers(0, 1), st.sampled_from("abc"), st.integers(0, 12), st.none(), st.none()).map(
    lambda one: one._replace(row=ROWS[(one.version + one.number) % 4], ts=one.version * 7 % 5)
)
TIMES: Any = {"now_ms": 0, "retention_ms": 1000}


class Pairing:
    """The stage over memory, and the join that a reader of its changes has."""

    def __init__(self, how: str, **more: Any) -> None:
        self.memory, self.count, self.how, self.more = MemoryStore(), Counters(), how, {**TIMES, "parts": (1, 1), **more}
        self.table: dict[str, Result] = {}

    def batch(self, events: list[Event], **more: Any) -> list[dict[str, Any]]:
        given = {**self.more, **more}
        made = pair(messages(events), GuardedStore(self.memory, "pair"), self.count, self.make, **given)
        apply(made, self.table, every=given.get("every", False))
        return list(made.to_pylist())

    def make(self, answers: pa.Table) -> pa.Table:
        return join_rows(answers, self.how)  # type: ignore[arg-type]


class InTwo(Pairing):
    """The stage with another one behind it, for joiners that Spark evaluates."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.resolved = MemoryStore()

    def batch(self, events: list[Event], **more: Any) -> list[dict[str, Any]]:
        answers = answers_by_key(messages(events), GuardedStore(self.memory, "pair"), self.count, **self.more)
        made = resolve(self.make(answers), self.resolved, self.count, in_order=True, **TIMES)
        apply(made, self.table)
        return list(made.to_pylist())


def shown(results: dict[str, Result]) -> dict[str, Any]:
    return {key: one.pair for key, one in results.items()}


@pytest.mark.parametrize("kind", [Pairing, InTwo])
@law(60, events=st.lists(EVENT, min_size=8, max_size=25), cut=st.integers(1, 9), how=st.sampled_from(HOWS))
def test_after_every_batch_it_is_the_join_of_the_newest_rows(kind: Any, events: list[Event], cut: int, how: str) -> None:
    """Versions in any order, and records twice."""
    pairing = kind(how)
    for start in range(0, len(events), cut):
        pairing.batch(events[start : start + cut])
        assert shown(pairing.table) == shown(joined(events[: start + cut], how))


@law(50, events=st.lists(EVENT, max_size=20), how=st.sampled_from(HOWS), materialized=st.booleans(), cut=st.integers(1, 20))
def test_sent_whatever_changes_results_have_both_versions_and_the_later_time(
    events: list[Event], how: str, materialized: bool, cut: int
) -> None:
    """With every update sent, the table's versions and timestamps are those of the newest rows, too."""
    pairing = Pairing(how, every=True, materialized=materialized)
    for start in range(0, len(events), cut):
        pairing.batch(events[start : start + cut])
        assert pairing.table == joined(events[: start + cut], how)
    assert pairing.count[counters.RIGHT_IN] == sum(event.number for event in events)
    assert pairing.count[counters.LEFT_IN] + pairing.count[counters.RIGHT_IN] == len(events)


L, M, R = b"left", b"new left", b"right"


def test_a_side_that_is_gone_is_remembered_as_long_as_the_other_is_there() -> None:
    pairing = Pairing("outer")
    pairing.batch([Event(0, "k", 5, L), Event(1, "k", 5, R)])
    pairing.batch([Event(0, "k", 6, None)])
    assert pairing.batch([Event(0, "k", 5, L)], now_ms=9999) == []
    assert pairing.count[counters.STALE] == 1


def test_an_answer_on_which_the_joiner_throws_leaves_the_last_result() -> None:
    """The last result stays until the next change of either row."""
    pairing = Pairing("left", materialized=True)
    pairing.batch([Event(0, "k", 1, L)])
    usable: Any = lambda answers: pc.fill_null(pc.not_equal(answers.column("left"), M), fill_value=True)  # noqa: E731
    pairing.make = lambda answers: join_rows(answers.filter(usable(answers)), "left")  # type: ignore[method-assign]
    assert pairing.batch([Event(0, "k", 2, M), Event(0, "j", 1, L)])[0]["key"] == b"j"
    assert pairing.table["k"].pair == (L, None)
    assert pairing.batch([Event(1, "k", 1, R)]) == []
    (made,) = pairing.batch([Event(0, "k", 3, L)])
    assert (made["operation"], pairing.table["k"].pair) == (Operation.UPDATE, (L, R))
    assert pairing.batch([Event(0, "k", 4, None), Event(0, "j", 2, None)])[0]["operation"] == Operation.DELETE
