"""Every change of a left row × inner/left × right row present or not (docs/semantics.md, table of rekey)."""

from __future__ import annotations

import pytest

from fkjoin.codec import versions
from fkjoin.codec.messages import Operation
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.rekey import rekey
from fkjoin.state import Bytes, MemoryStore
from tests.support.oracle import Change, batch_join, messages, sides
from tests.support.replay.memory_join import MemoryJoin

A, B, NONE = b"a", b"b", None


def left(version: int, value: bytes | None, foreign_key: bytes | None = None) -> Change:
    return Change(True, b"k", value, version, foreign_key)


CHANGES: dict[str, tuple[list[Change], list[tuple[bytes, bool]], int]] = {
    # changes: the last one's messages as (foreign key, subscribe), and its answers "no right row"
    "insert under a": ([left(1, b"v1", A)], [(A, True)], 0),
    "update under the same key": ([left(1, b"v1", A), left(2, b"v2", A)], [(A, True)], 0),
    "a to b": ([left(1, b"v1", A), left(2, b"v2", B)], [(A, False), (B, True)], 0),
    "a to b to a": ([left(1, b"v1", A), left(2, b"v2", B), left(3, b"v3", A)], [(A, True), (B, False)], 0),
    "a to none": ([left(1, b"v1", A), left(2, b"v2", NONE)], [(A, False)], 1),
    "none to a": ([left(1, b"v1", NONE), left(2, b"v2", A)], [(A, True)], 0),
    "none to none": ([left(1, b"v1", NONE), left(2, b"v2", NONE)], [], 1),
    "insert with none": ([left(1, b"v1", NONE)], [], 1),
    "delete under a": ([left(1, b"v1", A), left(2, None)], [(A, False)], 1),
    "delete with none": ([left(1, b"v1", NONE), left(2, None)], [], 1),
    "delete of a row never seen": ([left(1, None)], [], 0),
    "delete and insert under b": ([left(1, b"v1", A), left(2, None), left(3, b"v3", B)], [(B, True)], 0),
    "delete twice": ([left(1, b"v1", A), left(2, None), left(3, None)], [], 1),
}


@pytest.mark.parametrize(("changes", "sent", "answers"), CHANGES.values(), ids=CHANGES)
def test_rekey_sends_what_the_table_says(changes: list[Change], sent: list[tuple[bytes, bool]], answers: int) -> None:
    store, count = MemoryStore(), Counters()
    for change in changes:
        rekeyed = rekey(messages([change], left=True), store, count, now_ms=0, retention_ms=1)
    found = [(one["foreign_key"], one["subscribe"]) for one in rekeyed.subscriptions.to_pylist()]
    assert sorted(found) == sorted(sent)
    assert all((one["value"] is not None) == one["subscribe"] for one in rekeyed.subscriptions.to_pylist())
    assert len(rekeyed.answers) == answers


def test_marks_leave_nothing_behind_when_they_expire() -> None:
    join = MemoryJoin("inner", retention_ms=10)
    join.batch([left(1, b"v1", A), Change(False, A, b"A", 1)])
    join.batch([left(2, None), Change(False, A, None, 2)], 1, 1, 1)
    assert [len(store) for store in join.stores] == [2, 2, 0]
    join.batch([], 11, 11, 11)
    join.batch([Change(True, b"other", b"v", 1, A)], 12, 12, 12)
    assert [name for store in join.stores for name, _ in store.items() if b"k" in name] == []


def test_the_largest_fan_out_is_known_and_a_hot_key_by_name() -> None:
    """The count is right even if a right row's subscribers come in several pages."""
    join = MemoryJoin("inner", stores=(MemoryStore(), MemoryStore(page_entries=400), MemoryStore()))
    names = [B, A, A, A, A, A] * 200
    join.batch(Change(True, b"k%d" % number, b"v", number, name) for number, name in enumerate(names))
    assert counters.FAN_OUT not in join.count
    join.batch([Change(False, B, b"B", 1)])
    assert join.count[counters.FAN_OUT] == 200
    assert not any(name.startswith(counters.HOT_KEY) for name in join.count)
    join.batch([Change(False, A, b"A", 1), Change(False, B, b"B2", 2)])
    assert (join.count[counters.FAN_OUT], join.count[counters.HOT_KEY + A.hex()]) == (1000, 1000)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_right_change_that_leaves_the_row_as_it_was_answers_nobody(how: str) -> None:
    """KIP-557; the row's version moves on, so that what is older than it stays stale."""
    join = MemoryJoin(how)  # type: ignore[arg-type]
    join.batch([left(1, b"v", A), Change(False, A, b"A", 1)])
    before = join.count[counters.ANSWERS]
    for value, version in ((b"A", 2), (b"A", 2), (b"B", 1)):
        assert not len(join.batch([Change(False, A, value, version)]))
    assert join.count[counters.ANSWERS] == before
    assert join.count[counters.IDEMPOTENT] == 1
    assert join.count[counters.STALE] == 2
    there_and_back = [Change(False, A, value, version) for version, value in ((4, None), (5, b"A"))]
    assert not len(join.batch(there_and_back)), "in one batch: nothing in between is seen"
    (gone,) = join.batch([Change(False, A, None, 6)]).to_pylist()
    assert gone["operation"] == (Operation.DELETE if how == "inner" else Operation.UPDATE)
    assert [numbers for _, numbers in versions.decode(gone["version"])] == [(1,), (6,)]


def test_a_right_change_that_leaves_the_row_as_it_was_answers_all_if_every_update_is_wanted() -> None:
    join = MemoryJoin("inner", every=True)
    join.batch([left(1, b"v", A), Change(False, A, b"A", 1)])
    assert len(join.process(*sides([Change(False, A, b"A", 2)]))) == 1


def test_right_rows_are_read_for_those_who_are_answered_alone() -> None:
    asked = list[bytes]()

    class Asked(MemoryStore):
        def get_many(self, keys: Bytes) -> Bytes:
            asked.extend(keys.to_pylist())
            return super().get_many(keys)

    join = MemoryJoin("inner", stores=(MemoryStore(), Asked(), MemoryStore()))
    history = [Change(False, A, b"A", 1), Change(False, B, b"B", 2), left(3, b"v1", A)]
    join.batch(history)
    for move, read in ((left(4, b"v2", B), {b"rb"}), (left(5, None), set())):
        asked.clear()
        join.batch([move])
        history.append(move)
        assert join.joined == batch_join(history, "inner")
        assert {key for key in asked if key.startswith(b"r")} == read
