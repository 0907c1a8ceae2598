"""A topic that was made anew: after it has been read to its end, tables are what the new topic says."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import CHANGE, NUMBERED, table
from fkjoin.stages.counters import Counters
from fkjoin.stages.merge import merge
from fkjoin.stages.start_over import PASSED, StartOver, reached
from fkjoin.state import MemoryStore, Store
from tests.support.laws import law
from tests.support.oracle import Change, apply
from tests.support.replay.memory_join import MemoryJoin
from tests.support.specs import PLAIN
from tests.support.topic_changes import OLDEST, Kept, Place, Sent
from tests.support.versions import message_table, version

BEFORE, ANEW = (versions.topic_identity("orders", "id", generation) for generation in (0, 1))
TOPIC = StartOver(ANEW, ((0, 7), (2, 3)))
OTHER = versions.topic_identity("customers", "id")
TIMES: Any = {"now_ms": 0, "retention_ms": 1}
NOTHING = CHANGE.empty_table()
FIRST = Place(1, 0, 1)
OF = {spec.stage: spec for spec, *_ in reversed(PLAIN)}

Row = tuple[str, str | None, str | None]
"""Key, value and foreign key."""


def changes(rows: list[Row], source: bytes, first: int = 0, *, user: bool = False) -> pa.Table:
    messages = []
    for number, (key, value, by) in enumerate(rows, first):
        numbers = [number] * user + [number, number % 2, number // 2]
        mark = version(*numbers, source=source, placed=True)
        messages.append((key, None if value is None else by, value, mark, number))
    return message_table(CHANGE, messages)


class Join(MemoryJoin):
    """A join whose first stages handle the end of a topic as buckets do."""

    def read(self, left: pa.Table = NOTHING, right: pa.Table = NOTHING, *, ended: str = "", topic: StartOver = TOPIC) -> None:
        """Work on a batch; ``ended``: the stage whose topic has been read to its end with it."""
        answers = [self.answers(left, right)]
        if ended == "rekey":
            answers += map(self.answers, OF[ended].left_behind(self.stores[0], topic))
        elif ended == "subscription":
            answers += [self.answers(None, gone) for gone in OF[ended].left_behind(self.stores[1], topic)]
        apply(self.resolved(pa.concat_tables(answers)), self.joined)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("user", [False, True])
def test_rows_that_the_new_topic_lacks_go_when_its_end_has_passed(seed: int, user: bool) -> None:
    rng = random.Random(seed)

    def orders() -> list[Row]:
        count = rng.randrange(1, 12)
        return [(f"o{rng.randrange(5)}", rng.choice(("x", "y", None)), rng.choice(("a", "b", None))) for _ in range(count)]

    join, old, new = Join("left", in_order=False), orders(), orders()
    join.read(changes(old, BEFORE, user=user), changes([("a", "A", None)], OTHER))
    cut = rng.randrange(len(new) + 1)
    join.read(changes(new[:cut], ANEW, user=user))
    join.read(changes(new[cut:], ANEW, cut, user=user), ended="rekey")
    final = {key: (value, by) for key, value, by in new}
    wanted = {
        key.encode(): (value.encode(), b"A" if by == "a" else None) for key, (value, by) in final.items() if value is not None
    }
    assert join.joined == wanted
    join.read(changes([("o1", "again", None)], ANEW, len(new), user=user))
    assert join.joined == wanted | {b"o1": (b"again", None)}, "later records are newer than what made rows go"


def test_right_rows_go_and_their_subscribers_hear_of_it() -> None:
    join = Join("left", in_order=False)
    join.read(changes([("o1", "x", "a"), ("o2", "y", "b")], OTHER), changes([("a", "A", None), ("b", "B", None)], BEFORE))
    join.read(right=changes([("b", "new B", None)], ANEW), ended="subscription")
    assert join.joined == {b"o1": (b"x", None), b"o2": (b"y", b"new B")}


def row(key: bytes, place: Place = FIRST) -> list[Sent]:
    return [Sent(place, Change(False, key, b"row", 0))]


@pytest.mark.parametrize("stage", ["resolve", "regroup", "spread", "merge", "pair", "enrich", "scatter"])
def test_every_stage_that_reads_a_source_knows_which_rows_are_left_behind(stage: str) -> None:
    kept = Kept(stage)
    kept.batch(row(b"snapshot", OLDEST), BEFORE)
    kept.batch(row(b"a") + row(b"b"), BEFORE)
    kept.batch(row(b"other"), OTHER, 1)
    kept.batch(row(b"b"), ANEW)
    assert kept.count["source-restarts"] == 1, "the row that comes from the new topic starts over"
    topic = replace(TOPIC, slot=0 if stage in {"merge", "pair"} else None)
    for tombstones in OF[stage].left_behind(kept.store, topic):
        kept.take(tombstones)
    assert kept.live.keys() == {b"b", b"other"}
    assert sum(map(len, OF[stage].left_behind(kept.store, topic))) == 0


def test_a_merged_table_of_files_that_is_called_as_the_topic_keeps_its_rows() -> None:
    store, key = MemoryStore(), pa.array([b"a"], BYTES)
    one_number = versions.encode(versions.identity("orders"), [np.array([5])])
    files = table(NUMBERED, key, one_number, key, np.array([False]), np.array([0]), np.array([1], np.int8))
    merge(files, store, Counters(), 2, source=b"merged..", **TIMES)
    for slot in (0, 1):
        assert [len(one) for one in OF["merge"].left_behind(store, replace(TOPIC, slot=slot))] == [0]


def test_a_multi_way_joins_right_rows_of_another_table_stay() -> None:
    join = MemoryJoin("left")
    join.answers(None, changes([("\x00a", "A", None), ("\x01a", "B", None)], BEFORE))
    (gone,) = OF["subscription"].left_behind(join.stores[1], replace(TOPIC, slot=1))
    assert gone.column("key").to_pylist() == [b"\x01a"]


@law(60, st.text(), st.text(), st.text(), st.booleans())
def test_what_the_new_topic_says_is_last_also_where_right_rows_change_in_the_batch(
    topic: str, old_id: str, new_id: str, ends: bool
) -> None:
    """Answers of both topics meet in resolve then, and are sorted by the bytes of their versions."""
    before, first, second = (versions.topic_identity(topic, name, at) for at, name in enumerate((old_id, new_id, new_id)))
    rights = versions.topic_identity("customers", "id")
    for was, now in ((before, first), (first, second)):
        join = Join("left", in_order=False)
        join.read(changes([("o1", "x", "a"), ("o2", "y", "a")], was), changes([("a", "A", None)], rights))
        came, again = changes([("o1", "new", None)], now), changes([("a", "again", None)], rights, 1)
        join.read(came, again, ended="rekey" * ends, topic=StartOver(now, ()))
        assert join.joined == {b"o1": (b"new", None)} | ({} if ends else {b"o2": (b"y", b"again")})


def test_ends_are_remembered_until_all_have_passed() -> None:
    def version(*places: tuple[int, int]) -> pa.StructArray:
        columns = [pa.array(column, pa.int64()) for column in ([0] * len(places), *zip(*places, strict=True))]
        return pa.StructArray.from_arrays(columns, list(versions.PLACE))

    assert TOPIC.passed(version((0, 6), (2, 2), (1, 99))) == []
    (first,) = TOPIC.passed(version((0, 7)))
    (second,) = TOPIC.passed(version((0, 6), (2, 9)))
    assert first.startswith(PASSED)
    store: Store = MemoryStore()
    assert reached([first], store) == []
    assert reached([first], store) == []
    assert reached([second], store) == [TOPIC]
    assert reached(TOPIC.passed(version((0, 8), (2, 3))), MemoryStore()) == [TOPIC], "in one batch"
    assert reached([second], store) == [], "it is named once: later records pass the ends, too"
    later = StartOver(ANEW, ((0, 8), (2, 3)))
    assert reached(later.passed(version((2, 3))), store) == [], "partition 0 has grown since"
    assert reached(later.passed(version((0, 8))), store) == [later]
