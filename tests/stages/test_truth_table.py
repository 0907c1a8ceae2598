"""Every change of a left row × inner/left × right row present or not (docs/semantics.md, table of rekey)."""

from __future__ import annotations

import pytest

from fkjoin.codec import versions
from fkjoin.codec.messages import Operation
from fkjoin.stages import Counters, counters, rekey, subscription
from fkjoin.state import Bytes, MemoryStore
from tests.support.oracle import Change, apply, batch_join, messages
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
RIGHTS: dict[str, list[Change]] = {
    "no right row": [],
    "a is there": [Change(False, A, b"A", 1)],
    "b is there": [Change(False, B, b"B", 1)],
    "both are there": [Change(False, A, b"A", 1), Change(False, B, b"B", 2)],
    "a was there": [Change(False, A, b"A", 1), Change(False, A, None, 2)],
}


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("changes", [changes for changes, *_ in CHANGES.values()], ids=CHANGES)
@pytest.mark.parametrize("rights", RIGHTS.values(), ids=RIGHTS)
@pytest.mark.parametrize("arrive", ["rights first", "lefts first", "one batch"])
def test_the_joined_table_is_the_batch_join(how: str, changes: list[Change], rights: list[Change], arrive: str) -> None:
    join = MemoryJoin(how)  # type: ignore[arg-type]
    joined: dict[bytes, tuple[bytes, bytes | None]] = {}
    order = [*rights, *changes] if arrive == "rights first" else [*changes, *rights]
    batches = [order] if arrive == "one batch" else [[change] for change in order]
    done: list[Change] = []
    for batch in batches:
        apply(join.process(messages(batch, left=True), messages(batch, left=False)), joined)
        done += batch
        assert joined == batch_join(done, how)


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
    right = Change(False, A, b"A", 1)
    join.process(messages([left(1, b"v1", A)], left=True), messages([right], left=False), now_ms=0)
    join.process(messages([left(2, None)], left=True), messages([Change(False, A, None, 2)], left=False), now_ms=1)
    assert [len(store) for store in join.stores] == [2, 2, 0]
    join.process(now_ms=11)
    other = messages([Change(True, b"other", b"v", 1, A)], left=True)
    join.process(other, now_ms=12)
    assert [name for store in join.stores for name, _ in store.items() if b"k" in name] == []


def test_the_largest_fan_out_is_known_and_a_hot_key_by_name() -> None:
    """The count is right even if a right row's subscribers come in several pages."""
    join = MemoryJoin("inner", stores=(MemoryStore(), MemoryStore(page_entries=400), MemoryStore()))
    lefts = [Change(True, f"k{number}".encode(), b"v", number, A if number % 6 else B) for number in range(1200)]
    join.process(messages(lefts, left=True))
    assert counters.FAN_OUT not in join.count
    join.process(right=messages([Change(False, B, b"B", 1)], left=False))
    assert join.count[counters.FAN_OUT] == 200
    assert not any(name.startswith(counters.HOT_KEY) for name in join.count)
    join.process(right=messages([Change(False, A, b"A", 1), Change(False, B, b"B2", 2)], left=False))
    assert (join.count[counters.FAN_OUT], join.count[counters.HOT_KEY + A.hex()]) == (1000, 1000)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_right_change_that_leaves_the_row_as_it_was_answers_nobody(how: str) -> None:
    """KIP-557; the row's version moves on, so that what is older than it stays stale."""
    join = MemoryJoin(how)  # type: ignore[arg-type]
    right = [Change(False, A, b"A", 1), Change(False, A, b"A", 2), Change(False, A, b"A", 2), Change(False, A, b"B", 1)]
    join.process(messages([left(1, b"v", A)], left=True), messages(right[:1], left=False))
    before = join.count[counters.ANSWERS]
    for change in right[1:]:
        assert not len(join.process(right=messages([change], left=False)))
    assert join.count[counters.ANSWERS] == before
    assert join.count[counters.IDEMPOTENT] == 1
    assert join.count[counters.STALE] == 2
    there_and_back = [Change(False, A, value, version) for version, value in ((4, None), (5, b"A"))]
    assert not len(join.process(right=messages(there_and_back, left=False))), "in one batch: nothing in between is seen"
    (gone,) = join.process(right=messages([Change(False, A, None, 6)], left=False)).to_pylist()
    assert gone["operation"] == (Operation.DELETE if how == "inner" else Operation.UPDATE)
    assert [numbers for _, numbers in versions.decode(gone["version"])] == [(1,), (6,)]


def test_a_right_change_that_leaves_the_row_as_it_was_answers_all_if_every_update_is_wanted() -> None:
    join = MemoryJoin("inner")
    rows = [Change(False, A, b"A", version) for version in (1, 2)]
    join.process(messages([left(1, b"v", A)], left=True), messages(rows[:1], left=False))
    nothing = rekey(messages([], left=True), MemoryStore(), Counters(), now_ms=0, retention_ms=1).subscriptions
    pages = subscription(
        nothing, messages(rows[1:], left=False), join.stores[1], join.count, now_ms=0, retention_ms=1, every=True
    )
    assert sum(map(len, pages)) == 1


def test_right_rows_are_read_for_those_who_are_answered_alone() -> None:
    asked = list[bytes]()

    class Asked(MemoryStore):
        def get_many(self, keys: Bytes) -> Bytes:
            asked.extend(keys.to_pylist())
            return super().get_many(keys)

    joined = dict[bytes, tuple[bytes, bytes | None]]()
    join = MemoryJoin("inner", stores=(MemoryStore(), Asked(), MemoryStore()))
    history = [*RIGHTS["both are there"], left(3, b"v1", A)]
    apply(join.process(messages(history, left=True), messages(history, left=False)), joined)
    for move, read in ((left(4, b"v2", B), {b"rb"}), (left(5, None), set())):
        asked.clear()
        apply(join.process(messages([move], left=True), messages([], left=False)), joined)
        history.append(move)
        assert joined == batch_join(history, "inner")
        assert {key for key in asked if key.startswith(b"r")} == read
