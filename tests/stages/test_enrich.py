"""Events enriched by a table: each once, with the row as it is after its batch's changes, whatever comes first or twice."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

from fkjoin.codec import tags
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.enrich import enrich
from fkjoin.stages.invariants import GuardedStore
from fkjoin.state import MemoryStore
from tests.support.enriching import Change, Event, Message, Sent, events_of, rows_of, sent, wanted
from tests.support.laws import law

ROWS = (None, b"x", b"y", b"")
TIMES: Any = {"now_ms": 0, "retention_ms": 1000}
KEYS = st.sampled_from(["", "a", "b"])
MESSAGE = st.one_of(
    st.builds(lambda key, version: Change(key, version, ROWS[version % 4]), KEYS, st.integers(0, 12)),
    st.builds(Event, st.integers(0, 99), st.one_of(st.none(), KEYS)),
)
HOWS = st.sampled_from(["inner", "left"])


class Enriching:
    """The stage over memory."""

    def __init__(self, how: Any, **more: Any) -> None:
        self.memory, self.count, self.how, self.more = MemoryStore(), Counters(), how, {**TIMES, **more}

    def batch(self, messages: list[Message]) -> list[Sent]:
        store = GuardedStore(self.memory, "enrich", b"" if "in_order" in self.more else tags.ROW)
        return sent(enrich(rows_of(messages), events_of(messages), store, self.count, how=self.how, **self.more))


@law(150, batches=st.lists(st.lists(MESSAGE, max_size=9), min_size=1, max_size=6), how=HOWS, data=st.data())
def test_each_event_is_sent_once_with_the_row_after_its_batch(batches: list[list[Message]], how: str, data: Any) -> None:
    """Changes in any order of their versions, some of them again in a later batch; each batch is lost and repeated."""
    enriching, done, changes = Enriching(how), list[list[Message]](), [Change("", 0, None)]
    for messages in batches:
        batch = data.draw(st.permutations([*messages, *data.draw(st.lists(st.sampled_from(changes), max_size=5))]))
        changes += [one for one in messages if isinstance(one, Change)]
        done.append(batch)
        lost = copy.deepcopy(enriching)
        expected = wanted(done, how)
        assert lost.batch(batch) == expected
        assert enriching.batch(batch) == expected
        assert dict(enriching.memory.items()) == dict(lost.memory.items())
    events = [[one for one in batch if isinstance(one, Event)] for batch in done]
    with_row = sum(row is not None for at in range(len(done)) for _, row in wanted(done[: at + 1], how))
    count = enriching.count
    assert count[counters.EVENTS_IN] == sum(map(len, events))
    assert count[counters.WITHOUT_ROW] == count[counters.EVENTS_IN] - with_row
    assert count[counters.OUT] == (with_row if how == "inner" else count[counters.EVENTS_IN])


def test_nothing_of_an_event_is_stored() -> None:
    enriching = Enriching("left")
    enriching.batch([Event(1, "k"), Event(2, None)])
    assert list(enriching.memory.items()) == []


def test_of_a_table_that_an_operator_makes_nothing_is_kept_of_a_row_that_is_gone() -> None:
    enriching = Enriching("inner", in_order=True)
    enriching.batch([Change("k", 5, b"x")])
    enriching.batch([Change("k", 6, None)])
    assert list(enriching.memory.items()) == []
