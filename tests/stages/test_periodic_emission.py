"""Periodic emission: what has been sent by the end of an interval is the table as it is then."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.analysis.emission import Emission
from fkjoin.codec.messages import RESULT, Operation
from fkjoin.errors import TopologyError
from fkjoin.spark.clock import ClockReader
from fkjoin.stages.counters import Counters
from fkjoin.stages.pace import pace
from fkjoin.state import MemoryStore
from tests.support.changes import take
from tests.support.stores import contents
from tests.support.versions import message_table, version


class Paced:
    """The stage over memory, and the table that a reader of its results has."""

    def __init__(self) -> None:
        self.store, self.count, self.batches = MemoryStore(), Counters(), 0
        self.table: dict[bytes, bytes] = {}
        self.sent: list[tuple[bytes, str, bytes | None]] = []

    def batch(self, rows: list[tuple[bytes, bytes | None]], *, over: bool) -> None:
        self.batches += 1
        about = version(self.batches), self.batches
        changes = message_table(RESULT, [(key, 0, value, *about) for key, value in rows])
        for page in pace(changes, self.store, self.count, over=over):
            assert page.schema.equals(RESULT)
            for one in page.to_pylist():
                take(self.table, one["key"], one["operation"], one["value"])
                self.sent.append((one["key"], Operation(one["operation"]).name, one["value"]))


rows_of_a_batch = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"", b"ab"]), st.sampled_from([None, b"", b"1", b"2"])), max_size=5
)
"""The last one of several changes of a key counts."""


@given(st.lists(st.tuples(rows_of_a_batch, st.booleans()), max_size=12))
def test_by_the_end_of_an_interval_the_table_is_sent(batches: list[tuple[Any, bool]]) -> None:
    paced, held, waits = Paced(), dict[bytes, bytes](), set[bytes]()
    for rows, over in batches:
        held = {key: value for key, value in {**held, **dict(rows)}.items() if value is not None}
        before = len(paced.sent)
        paced.batch(rows, over=over)
        if over:
            assert paced.table == held
            waits = set()
        else:
            assert len(paced.sent) == before
            waits |= {key for key, _ in rows}
        kept = contents(paced.store)
        assert {key[1:] for key in kept if key.startswith(b"p")} == waits
        assert {key[1:] for key in kept if key.startswith(b"e")} == set(paced.table)


def test_what_came_and_went_in_between_is_not_sent_and_counted() -> None:
    paced = Paced()
    paced.batch([(b"stays", b"1"), (b"other", b"1")], over=True)
    assert paced.sent == [(b"other", "INSERT", b"1"), (b"stays", "INSERT", b"1")]
    paced.batch([(b"stays", b"2"), (b"flash", b"1"), (b"other", None)], over=False)
    paced.batch([(b"stays", b"1"), (b"flash", None)], over=True)
    assert paced.sent[2:] == [(b"other", "DELETE", None)]
    assert (paced.count["idempotent-update-skip"], paced.count["tombstones-suppressed"], paced.count["out"]) == (1, 1, 3)


def test_many_waiting_rows_leave_in_pages() -> None:
    paced = Paced()
    paced.batch([(b"%06d" % number, b"x") for number in range(70_000)], over=False)
    pages = list(pace(RESULT.empty_table(), paced.store, paced.count, over=True))
    assert [len(page) for page in pages] == [65_536, 70_000 - 65_536]
    assert list(pace(RESULT.empty_table(), paced.store, paced.count, over=True)) == []


def test_what_emit_may_be_and_may_not_be() -> None:
    for text, wanted in (
        ("on-change", Emission()),
        ("on-update", Emission(every=True)),
        ("periodic", Emission(interval_ms=60_000)),
        ("periodic 10 seconds", Emission(interval_ms=10_000)),
        ("periodic 1.5s", Emission(interval_ms=1_500)),
    ):
        assert Emission.of(text) == wanted
    for text, message in (
        ("on-change 5 seconds", 'is not one of "on-change", "on-update", "periodic", .*, or "on-close" of windows$'),
        ("periodic often", "emit: 'often' is not an interval such as"),
        ("periodic 5 ms", "emit: 5 ms is too short, 100 ms is the least"),
        ("periodic -1 minute", "is too short"),
    ):
        with pytest.raises(TopologyError, match=message):
            Emission.of(text)


def tick_at(wall_ms: int, reader: ClockReader, *told: Any) -> int:
    """The end of an interval that a reader tells at a time; ``told``: where a batch starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fkjoin.spark.clock.time.time", lambda: wall_ms / 1000)
        return reader.latestOffset(*told)["tick"]


@given(st.lists(st.integers(-30_000, 30_000), max_size=30), st.integers(1, 5_000))
def test_a_clock_that_is_set_holds_nothing_back_for_long(jumps: list[int], interval: int) -> None:
    """The clock goes on by a tenth of an interval at a time; now and then it is set."""
    reader, wall, real, tick, ended = ClockReader(interval), 1_000_000, 0, 0, 0
    for jump in [*jumps, 0]:
        wall += jump
        for _ in range(25):
            wall, real = wall + -(-interval // 10), real + -(-interval // 10)
            again = tick_at(wall, reader, {"tick": tick}, None)
            assert again % interval == 0
            if again != tick:
                tick, ended = again, real
            else:
                assert real - ended <= 3 * interval + 10, "results wait"


@pytest.mark.parametrize("told", [True, False], ids=["as of Spark 4.2", "before"])
def test_a_clock_that_trembles_ends_an_interval_once(told: bool) -> None:
    reader, ticks = ClockReader(1000), [0]
    for wall in (10_000, 9_999, 10_000, 10_001, 9_500, 10_999, 11_000):
        ticks.append(tick_at(wall, reader, *[{"tick": ticks[-1]}, None] * told))
    assert ticks == [0] + [10_000] * 6 + [11_000]


def test_a_clock_that_is_not_told_where_a_batch_starts_knows_it_of_the_batch_that_a_restart_repeats() -> None:
    reader = ClockReader(1000)
    reader.partitions({"tick": 9_000}, {"tick": 10_000})
    assert tick_at(9_999, reader) == 10_000
