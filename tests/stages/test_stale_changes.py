"""Changes that come to the stages after a mark has ended, with clocks that go back, jump and differ.

*Law*: what is shown is the join of the rows that the first stages hold, after every batch.  A stale change that comes after the
retention time may bring its row back; then every stage has it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fkjoin.codec import records, versions
from fkjoin.codec.arrays import BYTES, valid
from fkjoin.codec.messages import ANSWER, CHANGE, GROUPED, JOINED, LEFT, NUMBERED, SUBSCRIPTION, column, table
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.fold import Fold
from fkjoin.folds.sums import Count
from fkjoin.lowering.stage import let_through
from fkjoin.plan import nodes as topology
from fkjoin.stages import counters, retention
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.counters import Counters
from fkjoin.stages.invariants import GuardedStore
from fkjoin.stages.join_rows import join_rows
from fkjoin.stages.merge import merge, slots_of
from fkjoin.stages.regroup import contributions, regroup
from fkjoin.stages.rekey import rekey
from fkjoin.stages.resolve import resolve
from fkjoin.stages.retention import GONE
from fkjoin.stages.subscription import subscription
from fkjoin.state import MemoryStore
from tests.support import child_rows, multi_join
from tests.support.channels import Channel
from tests.support.laws import law
from tests.support.oracle import Change, Joined, apply, batch_join, messages, sides
from tests.support.replay.memory_join import MemoryJoin
from tests.support.topic_changes import Kept, Place, Sent

RETENTION = 1000
KEYS, NAMES = (b"j", b"k"), (b"a", b"b")


def event(left: bool, key: bytes, version: int) -> Change:
    """The change with that version, from which all else follows, so that versions in stores tell the rows."""
    value = None if version % 3 == 0 else b"%c%d" % (key[0], version % 7)
    named = (NAMES[0], NAMES[1], None)[version // 3 % 3] if left else None
    return Change(left, key, value, version, named if value is not None else None)


EVENTS = st.lists(
    st.one_of(
        st.builds(event, st.just(True), st.sampled_from(KEYS), st.integers(1, 20)),
        st.builds(event, st.just(False), st.sampled_from(NAMES), st.integers(1, 20)),
    ),
    max_size=4,
)
CLOCKS = st.lists(st.integers(0, 6 * RETENTION), min_size=6, max_size=6)
"""The time of each stage's clock in a batch; it says nothing about the batch before, or about another stage."""
HISTORIES = st.lists(st.tuples(EVENTS, CLOCKS), max_size=12)
History = list[tuple[list[Change], list[int]]]


def times(now_ms: int) -> dict[str, int]:
    return {"now_ms": now_ms, "retention_ms": RETENTION}


def live(store: MemoryStore, tag: bytes) -> dict[bytes, tuple[int, ...]]:
    """The last version of each row that a store holds as there."""
    entries = [entry for entry in store.items() if entry[0].startswith(tag)]
    held = records.decode(pa.array([value for _, value in entries], BYTES))
    parts = [versions.decode(version)[0][1] for version in held.version.to_pylist()]
    there = (held.flags & GONE == 0).tolist()
    return {key[1:]: part for (key, _), part, here in zip(entries, parts, there, strict=True) if here}


def wanted(how: str, stores: Sequence[MemoryStore]) -> Joined:
    """The join of the rows held by the stages that read the tables."""
    return batch_join(held(*stores[:2]), how)


def held(lefts: MemoryStore, rights: MemoryStore) -> list[Change]:
    """The rows that these stages hold."""
    rows = [event(True, key, version) for key, (version,) in live(lefts, b"d").items()]
    return rows + [event(False, key, version) for key, (version, *_) in live(rights, b"r").items()]


@pytest.mark.parametrize("staged", [False, True])
def test_a_right_row_that_left_rows_name_does_not_come_back(staged: bool) -> None:
    """Answers to the left rows know its last version for good; its mark is kept until no left row names it."""
    join = MemoryJoin("left", in_order=not staged, retention_ms=RETENTION)
    join.batch([event(True, b"k", 10), event(False, b"a", 10)])
    assert join.joined == {b"k": (b"k3", b"a3")}
    join.batch([event(False, b"a", 15)])
    for now in (RETENTION, 2 * RETENTION, 5 * RETENTION):
        join.batch([event(False, b"a", 11)], now, now, now)
        assert join.joined == {b"k": (b"k3", None)}
    join.batch([event(True, b"k", 12)], now, now, now)
    for now in (6 * RETENTION, 8 * RETENTION):
        join.batch([event(False, b"a", 11)], now, now, now)
    assert live(join.stores[1], b"r") == {b"a": (11,)}


def changes_of(results: pa.Table, named: Callable[[bytes], bytes | None]) -> pa.Table:
    """A join's results as another operator reads them; ``named``: a row's foreign key."""
    rows = column(results, "value")
    names = pa.array([None if row is None else named(row) for row in rows.to_pylist()], BYTES)
    return table(CHANGE, column(results, "key"), names, rows, column(results, "version"), column(results, "ts"))


def second_name(row: bytes) -> bytes | None:
    return (*NAMES, None)[row[-1] % 3]


def require_held(join: MemoryJoin, how: str) -> None:
    """Require that a join shows the rows that its first stages hold, and keeps nothing else."""
    assert join.joined == wanted(how, join.stores)
    left = [event(True, key, version) for key, (version,) in live(join.stores[0], b"d").items()]
    names = [row.foreign_key for row in left if row.foreign_key is not None]
    assert len(live(join.stores[1], b"s")) == len(names)
    entries = {key for key, _ in join.stores[2].items()}
    assert entries == {b"d" + row.key for row in left}, "a stage that is told keeps no marks of its own"


@law(60, history=HISTORIES, more=st.lists(EVENTS, min_size=12, max_size=12), how=st.sampled_from(["inner", "left"]))
def test_a_join_is_of_the_rows_its_first_stages_hold_and_joins_in_a_row_of_what_the_one_before_shows(
    history: History, more: list[list[Change]], how: str
) -> None:
    """A join as the right table of another, and that one as the left table of a third: also where rows' versions go back."""
    first = MemoryJoin(how, retention_ms=RETENTION)
    second, third = (MemoryJoin("left", made=made, retention_ms=RETENTION) for made in ((False, True), (True, False)))
    for (events, clocks), others in zip(history, more, strict=False):
        results = changes_of(first.batch(events, *clocks[:3]), lambda _: None)
        require_held(first, how)
        lefts = [change._replace(foreign_key=change.foreign_key and KEYS[change.version % 2]) for change in others]
        results = second.process(messages(lefts, left=True), results, *clocks[3:])
        apply(results, second.joined)
        rows = {key: _both(*row) for key, row in first.joined.items()}
        held = {key: event(True, key, at[0]) for key, at in live(second.stores[0], b"d").items()}
        named = {key: KEYS[one.version % 2] if one.foreign_key else b"" for key, one in held.items()}
        assert second.joined == {key: (one.value, rows.get(named[key])) for key, one in held.items()}

        lefts = changes_of(results, second_name)
        apply(third.process(lefts, messages(others, left=False), *clocks[3:]), third.joined)
        rows = {key: _both(*row) for key, row in second.joined.items()}
        rights = {key: event(False, key, at[0]).value for key, at in live(third.stores[1], b"r").items()}
        assert third.joined == {key: (row, rights.get(second_name(row) or b"")) for key, row in rows.items()}


def _both(left: bytes, right: bytes | None) -> bytes:
    answer = table(ANSWER, *(pa.array([one], BYTES) for one in (b"", b"", left, right)), np.zeros(1, np.int64))
    (both,) = column(join_rows(answer, "left"), "value").to_pylist()
    return both


TEXT = pa.schema([("text", pa.string())])
GROUP = pa.schema([("group", pa.string())])
FOLD = Fold(TEXT, (Count("rows"),))


def rows_of(events: list[Change]) -> pa.Table:
    """Left changes as rows that contribute to the group that they name."""
    chosen = [change for change in events if change.left]
    there = np.array([change.foreign_key is not None for change in chosen], bool)
    groups = pa.array([None if change.foreign_key is None else change.foreign_key.decode() for change in chosen], pa.string())
    texts = pa.array([None if change.value is None else change.value.decode() for change in chosen], pa.string())
    changes = messages(chosen, left=True)
    key, version, ts = (column(changes, name) for name in ("key", "version", "ts"))
    gone = ~valid(column(changes, "value"))
    return table(JOINED, key, version, contributions(GROUP, [groups], TEXT, [texts], there), gone, ts)


def count_rows(made: pa.Table, shown: dict[bytes, int]) -> None:
    """Bring the numbers of groups' rows up to date."""
    (numbers,) = RowCodec(FOLD.schema).decode(column(made, "value"))
    shown |= dict(zip(column(made, "key").to_pylist(), numbers.to_pylist(), strict=True))
    for key in [key for key, number in shown.items() if number is None]:
        del shown[key]


def rows_by_group(store: MemoryStore) -> list[int]:
    """The numbers of rows that regroup holds for each group."""
    named = [event(True, key, at[0]).foreign_key for key, at in live(store, b"d").items()]
    return [named.count(name) for name in set(named) - {None}]


@law(36, history=HISTORIES)
def test_an_aggregate_is_of_the_rows_that_regroup_holds(history: History) -> None:
    stores, count, shown = (MemoryStore(), MemoryStore()), Counters(), dict[bytes, int]()
    for events, clocks in history:
        grouped = regroup(rows_of(events), stores[0], count, as_read=True, **times(clocks[0]))
        made = aggregate(grouped, stores[1], count, FOLD, source=b"a-groups", **times(clocks[1]))
        count_rows(made, shown)
        assert sorted(shown.values()) == sorted(rows_by_group(stores[0]))


@law(36, history=HISTORIES, how=st.sampled_from([("inner", "left"), ("left", "left")]))
def test_a_multi_way_join_is_that_of_the_rows_its_first_stages_hold(history: History, how: tuple[str, str]) -> None:
    def row(change: Change) -> list[multi_join.Change]:
        text = None if change.value is None else change.value.decode()
        foreign = tuple((None, "a", "b")[(change.version // by) % 3] for by in (3, 9))
        if change.left:
            return [multi_join.Change(LEFT, change.key.decode(), change.version, text, foreign)]  # type: ignore[arg-type]
        return [multi_join.Change(at, change.key.decode(), change.version, text) for at in (0, 1)]

    join = multi_join.MemoryMultiJoin(how, in_order=True)
    stores = join.stores
    for events, clocks in history:
        join.batch([one for change in events for one in row(change)], *clocks[:3])
        held = [row(event(True, key, at[0]))[0] for key, at in live(stores[0], b"d").items()]
        for key, at in live(stores[1], b"r").items():
            held.append(row(event(False, key[1:], at[0]))[key[0]])
        assert join.joined == multi_join.batch_join(held, how)
        assert {key for key, _ in stores[2].items()} == {b"d" + key for key in live(stores[0], b"d")}


@law(36, history=HISTORIES)
def test_each_right_row_has_the_left_rows_that_rekey_holds(history: History) -> None:
    maps = child_rows.Maps()
    for events, clocks in history:
        maps.batch(events, *clocks[:2], retention_ms=RETENTION)
        assert maps.table == child_rows.wanted(held(*maps.stores))


@law(36, history=HISTORIES, others=st.lists(EVENTS, min_size=12, max_size=12))
def test_a_merge_is_of_the_rows_that_it_holds_and_of_those_a_join_shows(history: History, others: list[list[Change]]) -> None:
    """A mark in the merge knows nothing of a join's row that comes back."""
    join, store, shown = MemoryJoin("left", retention_ms=RETENTION), MemoryStore(), dict[bytes, bytes]()
    for (events, clocks), more in zip(history, others, strict=False):
        results, own = join.batch(events, *clocks[:3]), messages(more, left=True)
        parts = []
        for number, one in enumerate((own, results)):
            rows = [column(one, name) for name in ("key", "version", "value")]
            mine = np.full(len(one), number, np.int8)
            parts.append(table(NUMBERED, *rows, ~valid(rows[2]), column(one, "ts"), mine))
        how: Any = {"source": b"a-merge!", "in_order": (False, True), **times(clocks[3])}
        for one in merge(pa.concat_tables(parts), store, join.count, 2, **how).to_pylist():
            shown.pop(one["key"], None)
            if one["value"] is not None:
                shown[one["key"]] = one["value"]
        entries = [entry for entry in store.items() if entry[0].startswith(b"d")]
        slots = slots_of(records.decode(pa.array([value for _, value in entries], BYTES)).body)
        keys = [key[1:] for key, _ in entries]
        first = dict(zip(keys, slots[0].row.to_pylist(), strict=True)) if slots else {}
        of_join = {key: _both(*row) for key, row in join.joined.items()}
        assert shown == of_join | {key: row for key, row in first.items() if row is not None}


APART = RETENTION // 16
"""The most by which clocks are wrong, and by which messages between the stages are delayed."""


class Staged:
    """The stages with topics between them: messages overtake each other, come twice, and stages look at clocks of their own."""

    def __init__(self, noise: np.random.Generator, **schemas: pa.Schema) -> None:
        self.stores, self.count = [MemoryStore() for _ in range(3)], Counters()
        self.noise, self.now = noise, RETENTION
        self._channels = {to: Channel(schema.empty_table(), noise) for to, schema in schemas.items()}

    @property
    def clock(self) -> dict[str, int]:
        return times(self.now + int(self.noise.integers(-APART, APART)))

    def send(self, to: str, sent: pa.Table) -> None:
        again = sent.filter(pa.array(self.noise.random(len(sent)) < 0.2))
        self._channels[to].send(pa.concat_tables([sent, again]), self.now + APART)

    def arrive(self, to: str) -> pa.Table:
        """Messages that arrive now: all that have to, and some of the rest, in any order."""
        return self._channels[to].deliver(0.4, self.now).combine_chunks()

    def guarded(self, at: int) -> GuardedStore:
        return GuardedStore(self.stores[at], str(at))

    def drive(self, steps: list[tuple[list[Change], int]], round_of: Callable[[list[Change]], None]) -> None:
        """Run a round for each step and others while time passes, until all messages have arrived."""
        for events, passes in steps:
            round_of(events)
            for _ in range(min(passes, 2 * APART) // (APART // 2)):
                self.now += APART // 2
                round_of([])
            self.now += max(0, passes - 2 * APART)
        while any(self._channels.values()):
            self.now += APART // 2
            round_of([])


Steps = list[tuple[list[Change], int]]
STEPS = st.lists(st.tuples(EVENTS, st.sampled_from([0, 10, APART, RETENTION // 2, RETENTION, 3 * RETENTION])), max_size=12)
"""Changes, and how much time passes after them; what is under way arrives before long."""


@law(36, steps=STEPS, seed=st.integers(0, 1000), how=st.sampled_from(["inner", "left"]))
def test_a_staged_join_is_that_of_the_rows_its_first_stages_hold(steps: Steps, seed: int, how: str) -> None:
    joined = Joined()
    staged = Staged(np.random.default_rng(seed), subscription=SUBSCRIPTION, resolve=ANSWER)

    def round_of(events: list[Change]) -> None:
        lefts, rights = sides(events)
        rekeyed = rekey(lefts, staged.guarded(0), staged.count, **staged.clock)
        staged.send("subscription", rekeyed.subscriptions)
        staged.send("resolve", rekeyed.answers)
        asked = staged.arrive("subscription")
        for page in subscription(asked, rights, staged.guarded(1), staged.count, **staged.clock):
            staged.send("resolve", page)
        answers = join_rows(staged.arrive("resolve"), how)  # type: ignore[arg-type]
        apply(resolve(answers, staged.guarded(2), staged.count, **staged.clock), joined)

    staged.drive(steps, round_of)
    assert joined == wanted(how, staged.stores)


@law(36, steps=STEPS, seed=st.integers(0, 1000))
def test_a_staged_aggregate_is_of_the_rows_that_regroup_holds(steps: Steps, seed: int) -> None:
    staged, shown = Staged(np.random.default_rng(seed), groups=GROUPED), dict[bytes, int]()

    def round_of(events: list[Change]) -> None:
        staged.send("groups", regroup(rows_of(events), staged.guarded(0), staged.count, as_read=True, **staged.clock))
        how: Any = {"source": b"a-groups", "guarded": True, **staged.clock}
        made = aggregate(staged.arrive("groups"), staged.guarded(1), staged.count, FOLD, **how)
        count_rows(made, shown)

    staged.drive(steps, round_of)
    assert sorted(shown.values()) == sorted(rows_by_group(staged.stores[0]))


@pytest.mark.parametrize("stage", ["resolve", "regroup", "spread", "merge", "pair", "enrich", "scatter"])
def test_a_deleted_row_is_remembered_for_the_retention_time(stage: str) -> None:
    kept = Kept(stage)
    for now_ms, key, version, value, alive in (
        (0, b"k", 5, b"row", True),
        (10, b"k", 6, None, False),
        (10, b"k", 4, b"row", False),
        (11, b"another", 1, b"row", False),
        (12, b"k", 4, b"row", True),
    ):
        kept.now_ms = now_ms
        kept.batch([Sent(Place(version, 0, version), Change(False, key, value, 0))])
        assert (b"k" in kept.live) == alive
    assert kept.count[counters.STALE] == 1


def test_a_mark_ends_also_where_its_row_had_one_of_another_topic() -> None:
    """Both ends fall due at once, and the older version is the greater one, as bytes."""
    store, count = MemoryStore(), Counters()
    for now, source in enumerate((b"z-source", b"a-source")):
        for version, value in ((1, b"v"), (2, None)):
            change = messages([Change(True, b"k", value, version)], left=True)
            at = change.schema.get_field_index("version")
            change = change.set_column(at, "version", versions.encode(source, [np.array([version])])).cast(CHANGE)
            rekey(change, store, count, **times(now))
    assert len(store) == 3
    rekey(CHANGE.empty_table(), store, count, **times(RETENTION + 1))
    assert store.items() == []


@pytest.mark.parametrize("gone", [True, False])
def test_a_mark_that_ends_takes_its_record_unless_the_row_is_back_with_the_marks_version(gone: bool) -> None:
    """Answers with the version of the result that is held count, too."""
    names, version = pa.array([b"row"], BYTES), versions.encode(versions.identity("test"), [np.array([7])])
    record = records.encode(np.array([retention.GONE * gone], np.uint8), np.array([0]), version, pa.array([b"body"], BYTES))
    store = MemoryStore()
    store.write(names, record)
    store.write(*retention.due_entries(names, version, 10))
    retention.sweep(store, 9)
    assert len(store.items()) == 2, "it is not yet due"
    retention.sweep(store, 10)
    assert store.items() == ([] if gone else [(b"row", record[0].as_py())])


@pytest.mark.parametrize(
    ("deleted_at", "clock", "comes_back"),
    [
        (0, RETENTION - 1, False),
        (0, RETENTION, True),
        (5 * RETENTION, 0, False),
        (5 * RETENTION, 5 * RETENTION + 10, False),
        (-7, RETENTION - 8, False),
        (RETENTION, 50 * RETENTION, True),
    ],
    ids=["as it should", "its end", "set back", "set back and on again", "before 1970", "jumped ahead"],
)
def test_what_the_clock_says_ends_marks_and_nothing_else(deleted_at: int, clock: int, comes_back: bool) -> None:
    join = MemoryJoin("left", retention_ms=RETENTION)
    join.batch([event(True, b"k", 10)])
    join.batch([event(True, b"k", 12)], deleted_at, 0, 0)
    join.batch([event(False, b"a", 1)])
    join.batch([event(True, b"k", 11)], clock, -clock, 7)
    assert (join.joined == {b"k": (b"k4", b"a1")}) is comes_back
    join.batch([event(True, b"k", 13)], 0, clock, -1)
    assert join.joined == {b"k": (b"k6", None)}, "what is newer counts, whatever the clock says"


def test_answers_of_a_staged_join_are_not_taken_for_what_a_stage_has_let_through() -> None:
    """A stage in the place of its resolve reads them from a topic, in which they overtake each other."""
    left, right = (topology.Source(name, ("id",), ("v",), None, None, ("id",), "o", topic=name) for name in ("l", "r"))
    fused = topology.Join("j", left, right, "left", "v", None)
    staged = replace(fused, topics=("registration", "response"))
    for node, through in ((left, False), (fused, True), (staged, False)):
        view = topology.View("view", node, ())
        assert let_through(node) == let_through(view) == through
        assert let_through(replace(view, materialized="view"))
