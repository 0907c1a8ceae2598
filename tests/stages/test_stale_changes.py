"""Changes that come to the stages after a mark has ended, with clocks that go back, jump and differ.

*Law*: what is shown is the join of the rows that the first stages hold, after every batch.  A stale change that comes after the
retention time may bring its row back; then every stage has it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkjoin.codec import records, versions
from fkjoin.codec.arrays import BYTES, valid
from fkjoin.codec.messages import ANSWER, CHANGE, GROUPED, JOINED, LEFT, NUMBERED, SUBSCRIPTION, column, table
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.fold import Fold
from fkjoin.folds.sums import Count
from fkjoin.lowering.stage import let_through
from fkjoin.plan import nodes as topology
from fkjoin.stages import (
    Counters,
    aggregate,
    answered,
    gather,
    join_rows,
    merge,
    regroup,
    rekey,
    resolve,
    scatter,
    subscription,
)
from fkjoin.stages.children import children
from fkjoin.stages.invariants import GuardedStore
from fkjoin.stages.merge import slots_of
from fkjoin.stages.regroup import contributions
from fkjoin.stages.retention import GONE
from fkjoin.state import MemoryStore
from tests.support import child_rows, multi_join
from tests.support.oracle import Change, Joined, apply, messages
from tests.support.sampling import examples

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


def times(now_ms: int) -> dict[str, int]:
    return {"now_ms": now_ms, "retention_ms": RETENTION}


def live(store: MemoryStore, tag: bytes) -> dict[bytes, tuple[int, ...]]:
    """The last version of each row that a store holds as there."""
    entries = [entry for entry in store.items() if entry[0].startswith(tag)]
    held = records.decode(pa.array([value for _, value in entries], BYTES))
    parts = [versions.decode(version)[0][1] for version in held.version.to_pylist()]
    there = (held.flags & GONE == 0).tolist()
    return {key[1:]: part for (key, _), part, here in zip(entries, parts, there, strict=True) if here}


class Join:
    """The stages of a fused join; ``made``: whether an operator makes the left table, and the right one."""

    def __init__(self, how: str, made: tuple[bool, bool] = (False, False)) -> None:
        self.how, self.made, self.count = how, made, Counters()
        self.stores = [MemoryStore() for _ in range(3)]
        self.joined: Joined = {}

    def batch(self, lefts: pa.Table, rights: pa.Table, clocks: Iterable[int]) -> pa.Table:
        first, second, third = map(times, clocks)
        rekeyed = rekey(lefts, self.stores[0], self.count, in_order=self.made[0], **first)
        sides = rekeyed.subscriptions, rights
        pages = subscription(*sides, self.stores[1], self.count, in_order=True, rights_in_order=self.made[1], **second)
        answers = join_rows(pa.concat_tables([rekeyed.answers, *pages]), self.how)  # type: ignore[arg-type]
        results = resolve(answers, self.stores[2], self.count, in_order=True, **third)
        apply(results, self.joined)
        return results

    def wanted(self) -> Joined:
        """The join of the rows held by the stages that read the tables."""
        rights = {key: event(False, key, version[0]).value for key, version in live(self.stores[1], b"r").items()}
        found: Joined = {}
        for key, (version,) in live(self.stores[0], b"d").items():
            row = event(True, key, version)
            assert row.value is not None
            right = rights.get(row.foreign_key) if row.foreign_key is not None else None
            if right is not None or self.how == "left":
                found[key] = row.value, right
        return found


def sides(events: list[Change]) -> tuple[pa.Table, pa.Table]:
    return messages(events, left=True), messages(events, left=False)


@given(history=HISTORIES, how=st.sampled_from(["inner", "left"]))
@settings(max_examples=examples(60))
def test_a_join_is_that_of_the_rows_its_first_stages_hold(history: list[tuple[list[Change], list[int]]], how: str) -> None:
    join = Join(how)
    for events, clocks in history:
        join.batch(*sides(events), clocks[:3])
        assert join.joined == join.wanted()
        subscribed = set(live(join.stores[1], b"s"))
        assert len(subscribed) == sum(
            event(True, key, version).foreign_key is not None for key, (version,) in live(join.stores[0], b"d").items()
        )
        kept = {key for key, _ in join.stores[2].items()}
        assert kept == {b"d" + key for key in live(join.stores[0], b"d")}, "a stage that is told keeps no marks of its own"


def test_a_change_later_than_its_mark_brings_the_row_back_in_all_stages_together() -> None:
    join = Join("left")
    for events, now in (
        ([event(True, b"k", 10), event(False, b"b", 1)], 0),
        ([event(True, b"k", 18)], 0),
        ([event(True, b"k", 11)], RETENTION - 1),
    ):
        join.batch(*sides(events), (now, now, now + 100))
    assert join.joined == {}, "its mark is there"
    join.batch(*sides([event(True, b"k", 11)]), (RETENTION, 0, 0))
    assert join.joined == {b"k": (b"k4", None)}, "rekey's clock alone decides"
    (subscribed,) = live(join.stores[1], b"s")
    assert subscribed.endswith(b"ak")
    join.batch(*sides([event(False, b"a", 1)]), (0, 0, 0))
    assert join.joined == {b"k": (b"k4", b"a1")}
    join.batch(*sides([event(True, b"k", 18)]), (0, 0, 0))
    assert join.joined == {}, "as of the newest change that is known"


def test_a_right_row_that_left_rows_name_does_not_come_back() -> None:
    """Answers to the left rows know its last version for good; its mark is kept until no left row names it."""
    join = Join("left")
    join.batch(*sides([event(True, b"k", 10), event(False, b"a", 10)]), (0, 0, 0))
    assert join.joined == {b"k": (b"k3", b"a3")}
    join.batch(*sides([event(False, b"a", 15)]), (0, 0, 0))
    for now in (RETENTION, 2 * RETENTION, 5 * RETENTION):
        join.batch(*sides([event(False, b"a", 11)]), (now, now, now))
        assert join.joined == {b"k": (b"k3", None)}
    join.batch(*sides([event(True, b"k", 12)]), (5 * RETENTION,) * 3)
    join.batch(*sides([event(False, b"a", 11)]), (6 * RETENTION,) * 3)
    assert live(join.stores[1], b"r") == {b"a": (11,)}


def changes_of(results: pa.Table, named: Callable[[bytes], bytes | None]) -> pa.Table:
    """A join's results as another operator reads them; ``named``: a row's foreign key."""
    rows = column(results, "value")
    names = pa.array([None if row is None else named(row) for row in rows.to_pylist()], BYTES)
    return table(CHANGE, column(results, "key"), names, rows, column(results, "version"), column(results, "ts"))


def second_name(row: bytes) -> bytes | None:
    return (*NAMES, None)[row[-1] % 3]


@given(history=HISTORIES, more=st.lists(EVENTS, min_size=12, max_size=12), how=st.sampled_from(["inner", "left"]))
@settings(max_examples=examples(60))
def test_joins_in_a_row_are_joins_of_what_the_first_one_shows(
    history: list[tuple[list[Change], list[int]]], more: list[list[Change]], how: str
) -> None:
    """A join as the left table of another, and as the right one: also where its rows' versions go back."""
    first, as_left, as_right = Join(how), Join("left", (True, False)), Join("left", (False, True))
    for (events, clocks), others in zip(history, more, strict=False):
        results = first.batch(*sides(events), clocks[:3])
        as_left.batch(changes_of(results, second_name), messages(others, left=False), clocks[3:])
        rows = {key: _both(*row) for key, row in first.joined.items()}
        rights = {key: event(False, key, at[0]).value for key, at in live(as_left.stores[1], b"r").items()}
        wanted = {key: (row, rights.get(second_name(row) or b"")) for key, row in rows.items()}
        assert as_left.joined == wanted

        lefts = [change._replace(foreign_key=change.foreign_key and KEYS[change.version % 2]) for change in others]
        as_right.batch(messages(lefts, left=True), changes_of(results, lambda _: None), clocks[3:])
        held = {key: event(True, key, at[0]) for key, at in live(as_right.stores[0], b"d").items()}
        named = {key: KEYS[one.version % 2] if one.foreign_key else b"" for key, one in held.items()}
        assert as_right.joined == {key: (one.value, rows.get(named[key])) for key, one in held.items()}


def test_a_row_of_a_join_that_comes_back_with_an_older_version_is_shown_by_the_joins_behind_it() -> None:
    """They show a left row that stays, whose versions go back with those of the right row."""
    first, second, third = Join("left"), Join("left", (False, True)), Join("left", (True, False))
    name = b"a"

    def batch(events: list[Change], others: list[Change], now: int) -> None:
        results = changes_of(first.batch(*sides(events), (now,) * 3), lambda _: None)
        named = [change._replace(foreign_key=change.foreign_key and b"k") for change in others if change.left]
        shown = changes_of(second.batch(messages(named, left=True), results, (now,) * 3), lambda _: name)
        third.batch(shown, messages(others, left=False), (now,) * 3)

    batch([event(True, b"k", 11)], [event(True, b"j", 10), event(False, name, 1)], 0)
    assert third.joined[b"j"] == (_both(b"j3", _both(b"k4", None)), b"a1")
    batch([event(True, b"k", 12)], [], 0)
    assert third.joined[b"j"] == (_both(b"j3", None), b"a1")
    batch([event(True, b"k", 10)], [event(False, name, 2)], RETENTION)
    assert second.joined[b"j"] == (b"j3", _both(b"k3", None))
    assert third.joined[b"j"] == (_both(b"j3", _both(b"k3", None)), b"a2")


def _both(left: bytes, right: bytes | None) -> bytes:
    answer = table(ANSWER, *(pa.array([one], BYTES) for one in (b"", b"", left, right)), np.zeros(1, np.int64))
    (both,) = column(join_rows(answer, "left"), "value").to_pylist()
    return both


TEXT = pa.schema([("text", pa.string())])
GROUP = pa.schema([("group", pa.string())])


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


@given(history=HISTORIES)
@settings(max_examples=examples(60))
def test_an_aggregate_is_of_the_rows_that_regroup_holds(history: list[tuple[list[Change], list[int]]]) -> None:
    stores, count, fold, shown = (MemoryStore(), MemoryStore()), Counters(), Fold(TEXT, (Count("rows"),)), dict[bytes, int]()
    for events, clocks in history:
        grouped = regroup(rows_of(events), stores[0], count, as_read=True, **times(clocks[0]))
        made = aggregate(grouped, stores[1], count, fold, source=b"a-groups", **times(clocks[1]))
        (numbers,) = RowCodec(fold.schema).decode(column(made, "value"))
        for key, number in zip(column(made, "key").to_pylist(), numbers.to_pylist(), strict=True):
            shown.pop(key, None)
            if number is not None:
                shown[key] = number
        named = [event(True, key, at[0]).foreign_key for key, at in live(stores[0], b"d").items()]
        assert sorted(shown.values()) == sorted(named.count(name) for name in set(named) - {None})


@given(history=HISTORIES, how=st.sampled_from([("inner", "left"), ("left", "left")]))
@settings(max_examples=examples(60))
def test_a_multi_way_join_is_that_of_the_rows_its_first_stages_hold(
    history: list[tuple[list[Change], list[int]]], how: tuple[str, str]
) -> None:
    def row(change: Change) -> list[multi_join.Change]:
        text = None if change.value is None else change.value.decode()
        foreign = tuple((None, "a", "b")[(change.version // by) % 3] for by in (3, 9))
        if change.left:
            return [multi_join.Change(LEFT, change.key.decode(), change.version, text, foreign)]  # type: ignore[arg-type]
        return [multi_join.Change(at, change.key.decode(), change.version, text) for at in (0, 1)]

    stores, count, joined = [MemoryStore() for _ in range(3)], Counters(), multi_join.Joined(multi_join.of_rights(*how))
    for events, clocks in history:
        changes = [one for change in events for one in row(change)]
        first, second, third = map(times, clocks[:3])
        sent = scatter(multi_join.messages(changes, LEFT), stores[0], count, 2, **first)
        rights = multi_join.right_messages(changes)
        pages = answered(sent.subscriptions, rights, stores[1], count, (1, 1), **second)
        joined.take(gather(pa.concat_tables([sent.rows, *pages]), stores[2], count, joined.of, in_order=True, **third))
        held = [row(event(True, key, at[0]))[0] for key, at in live(stores[0], b"d").items()]
        for key, at in live(stores[1], b"r").items():
            held.append(row(event(False, key[1:], at[0]))[key[0]])
        assert joined == multi_join.batch_join(held, how)
        assert {key for key, _ in stores[2].items()} == {b"d" + key for key in live(stores[0], b"d")}


@given(history=HISTORIES)
@settings(max_examples=examples(60))
def test_each_right_row_has_the_left_rows_that_rekey_holds(history: list[tuple[list[Change], list[int]]]) -> None:
    maps = child_rows.Maps()
    for events, clocks in history:
        coded = [change._replace(value=_coded(change.value)) for change in events]
        rekeyed = rekey(messages(coded, left=True), maps.stores[0], maps.count, **times(clocks[0]))
        right = messages(coded, left=False)
        how: Any = {"source": b"children", **times(clocks[1])}
        for page in children(rekeyed.subscriptions, right, maps.stores[1], maps.count, child_rows.FAMILY, **how):
            maps.apply(page)
        held = [event(True, key, at[0]) for key, at in live(maps.stores[0], b"d").items()]
        held += [event(False, key, at[0]) for key, at in live(maps.stores[1], b"r").items()]
        assert maps.table == child_rows.wanted(held)


def _coded(value: bytes | None) -> bytes | None:
    return None if value is None else RowCodec(child_rows.ROW).encode([pa.array([value])], 1)[0].as_py()


@given(history=HISTORIES, others=st.lists(EVENTS, min_size=12, max_size=12))
@settings(max_examples=examples(60))
def test_a_merge_is_of_the_rows_that_it_holds_and_of_those_a_join_shows(
    history: list[tuple[list[Change], list[int]]], others: list[list[Change]]
) -> None:
    """A mark in the merge knows nothing of a join's row that comes back."""
    join, store, shown = Join("left"), MemoryStore(), dict[bytes, bytes]()
    for (events, clocks), more in zip(history, others, strict=False):
        results, own = join.batch(*sides(events), clocks[:3]), messages(more, left=True)
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
        wanted = {key: _both(*row) for key, row in join.joined.items()}
        assert shown == wanted | {key: row for key, row in first.items() if row is not None}


class Flight(NamedTuple):
    """Messages between stages, and by when all of them arrive."""

    messages: pa.Table
    until: int


APART = RETENTION // 16
"""The most by which clocks are wrong, and by which messages between the stages are delayed."""


class Staged:
    """The stages with topics between them: messages overtake each other, come twice, and stages look at clocks of their own."""

    def __init__(self, stores: int, noise: np.random.Generator) -> None:
        self.stores, self.count, self.noise, self.now = [MemoryStore() for _ in range(stores)], Counters(), noise, RETENTION
        self._flights: dict[str, list[Flight]] = {}

    @property
    def clock(self) -> dict[str, int]:
        return times(self.now + int(self.noise.integers(-APART, APART)))

    def send(self, to: str, sent: pa.Table) -> None:
        again = sent.filter(pa.array(self.noise.random(len(sent)) < 0.2))
        self._flights.setdefault(to, []).append(Flight(pa.concat_tables([sent, again]), self.now + APART))

    def arrive(self, to: str, schema: pa.Schema) -> pa.Table:
        """Messages that arrive now: all that have to, and some of the rest, in any order."""
        found, left = [schema.empty_table()], []
        for flight in self._flights.pop(to, []):
            now = self.noise.random(len(flight.messages)) < (1 if self.now >= flight.until else 0.4)
            found.append(flight.messages.filter(pa.array(now)))
            left.append(flight._replace(messages=flight.messages.filter(pa.array(~now))))
        self._flights[to] = [flight for flight in left if len(flight.messages)]
        arrived = pa.concat_tables(found).combine_chunks()
        return arrived.take(pa.array(self.noise.permutation(len(arrived))))

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
        while any(self._flights.values()):
            self.now += APART // 2
            round_of([])


STEPS = st.lists(st.tuples(EVENTS, st.sampled_from([0, 10, APART, RETENTION // 2, RETENTION, 3 * RETENTION])), max_size=12)
"""Changes, and how much time passes after them; what is under way arrives before long."""


@given(steps=STEPS, seed=st.integers(0, 1000), how=st.sampled_from(["inner", "left"]))
@settings(max_examples=examples(60))
def test_a_staged_join_is_that_of_the_rows_its_first_stages_hold(
    steps: list[tuple[list[Change], int]], seed: int, how: str
) -> None:
    staged, joined = Staged(3, np.random.default_rng(seed)), Joined()

    def round_of(events: list[Change]) -> None:
        lefts, rights = sides(events)
        rekeyed = rekey(lefts, staged.guarded(0), staged.count, **staged.clock)
        staged.send("subscription", rekeyed.subscriptions)
        staged.send("resolve", rekeyed.answers)
        asked = staged.arrive("subscription", SUBSCRIPTION)
        for page in subscription(asked, rights, staged.guarded(1), staged.count, **staged.clock):
            staged.send("resolve", page)
        answers = join_rows(staged.arrive("resolve", ANSWER), how)  # type: ignore[arg-type]
        apply(resolve(answers, staged.guarded(2), staged.count, **staged.clock), joined)

    staged.drive(steps, round_of)
    join = Join(how)
    join.stores = staged.stores
    assert joined == join.wanted()


def test_marks_of_stages_behind_a_topic_end_before_those_of_the_first() -> None:
    stores, count, joined = [MemoryStore() for _ in range(3)], Counters(), Joined()
    for events, now in (
        ([event(True, b"k", 10), event(False, b"a", 1)], 0),
        ([event(True, b"k", 12)], 0),
        ([event(True, b"k", 11)], RETENTION),
    ):
        lefts, rights = sides(events)
        rekeyed = rekey(lefts, stores[0], count, **times(now))
        pages = subscription(rekeyed.subscriptions, rights, stores[1], count, **times(now + APART))
        answers = join_rows(pa.concat_tables([rekeyed.answers, *pages]), "left")
        apply(resolve(answers, stores[2], count, **times(now + (2 * APART if now == 0 else 0))), joined)
    assert joined == {b"k": (b"k4", b"a1")}


def test_in_a_staged_join_a_right_row_that_left_rows_name_does_not_come_back() -> None:
    stores, count, joined = [MemoryStore() for _ in range(3)], Counters(), Joined()
    for events, now in (
        ([event(True, b"k", 10), event(False, b"a", 10)], 0),
        ([event(False, b"a", 15)], 0),
        ([event(False, b"a", 11)], RETENTION),
        ([event(True, b"k", 14)], RETENTION),
    ):
        lefts, rights = sides(events)
        rekeyed = rekey(lefts, stores[0], count, **times(now))
        pages = subscription(rekeyed.subscriptions, rights, stores[1], count, **times(now))
        answers = join_rows(pa.concat_tables([rekeyed.answers, *pages]), "left")
        apply(resolve(answers, stores[2], count, **times(now)), joined)
        if now == RETENTION:
            assert {right for _, right in joined.values()} == {None}, "of all left rows, whoever names it first"


@given(steps=STEPS, seed=st.integers(0, 1000))
@settings(max_examples=examples(60))
def test_a_staged_aggregate_is_of_the_rows_that_regroup_holds(steps: list[tuple[list[Change], int]], seed: int) -> None:
    staged, fold, shown = Staged(2, np.random.default_rng(seed)), Fold(TEXT, (Count("rows"),)), dict[bytes, int]()

    def round_of(events: list[Change]) -> None:
        staged.send("groups", regroup(rows_of(events), staged.guarded(0), staged.count, as_read=True, **staged.clock))
        how: Any = {"source": b"a-groups", "guarded": True, **staged.clock}
        made = aggregate(staged.arrive("groups", GROUPED), staged.guarded(1), staged.count, fold, **how)
        (numbers,) = RowCodec(fold.schema).decode(column(made, "value"))
        for key, number in zip(column(made, "key").to_pylist(), numbers.to_pylist(), strict=True):
            shown.pop(key, None)
            if number is not None:
                shown[key] = number

    staged.drive(steps, round_of)
    named = [event(True, key, at[0]).foreign_key for key, at in live(staged.stores[0], b"d").items()]
    assert sorted(shown.values()) == sorted(named.count(name) for name in set(named) - {None})


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
    join = Join("left")
    join.batch(*sides([event(True, b"k", 10)]), (0, 0, 0))
    join.batch(*sides([event(True, b"k", 12)]), (deleted_at, 0, 0))
    join.batch(*sides([event(False, b"a", 1)]), (0, 0, 0))
    join.batch(*sides([event(True, b"k", 11)]), (clock, -clock, 7))
    assert (join.joined == {b"k": (b"k4", b"a1")}) is comes_back
    join.batch(*sides([event(True, b"k", 13)]), (0, clock, -1))
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
