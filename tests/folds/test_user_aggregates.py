"""Aggregates by a user's own initializer, adder and subtractor."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fkjoin.errors import FkJoinError
from fkjoin.folds.calls import Called, Starting
from fkjoin.folds.fold import Fold
from tests.support.grouping import Change, Grouping, recomputed_sums
from tests.support.laws import law

ANIMAL = pa.schema([("animal", pa.string())])


def called(of: pa.DataType, initializer: Any, adder: Any, subtractor: Any, value: pa.Schema = ANIMAL) -> Fold:
    key = pa.schema([("zoo", pa.string())])
    column = Called("value", of, key, value, len(value) == 1, initializer, adder, subtractor)
    return Fold(value, (column,), nullable=True, ordered=True)


def test_a_set_never_loses_what_is_still_there() -> None:
    """KIP-904's zoo: adder and subtractor do not commute, so they must come in this order."""
    zoo = Grouping(ANIMAL, every=True)
    zoo.fold = called(
        pa.list_(pa.string()),
        set,
        lambda _zoo, animal, animals: animals | {animal},
        lambda _zoo, animal, animals: animals - {animal},
    )
    zoo.batch([Change("cage", 8, "zoo1", ("tiger",), 8)])
    zoo.batch([Change("cage", 9, "zoo1", ("tiger",), 9)])
    assert zoo.sent == [("zoo1", (["tiger"],), 8), ("zoo1", (["tiger"],), 9)]
    zoo.batch([Change("den", 10, "zoo1", ("lion",)), Change("cage", 11, "zoo2", ("tiger",))])
    assert zoo.table == {"zoo1": (["lion"],), "zoo2": (["tiger"],)}


@law(60, changes=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["g", "h", None]), st.integers(0, 9)), max_size=30))
def test_in_a_group_a_users_functions_see_changes_in_the_order_of_their_versions(changes: list[Any]) -> None:
    """A change that stays in its group makes two calls, subtractor first, with nothing between them."""
    calls: list[tuple[str, str, int]] = []

    def note(what: str) -> Any:
        def noted(key: str, value: int, aggregate: int) -> int:
            calls.append((what, key, value))
            return aggregate + (value if what == "add" else -value)

        return noted

    grouping = Grouping(pa.schema([("n", pa.int64())]))
    grouping.fold = called(pa.int64(), Starting(0), note("add"), note("subtract"), pa.schema([("n", pa.int64())]))
    rows = [Change(key, version, group, (n,)) for version, (key, group, n) in enumerate(changes)]
    live: dict[str, Change] = {}
    for row in rows:
        calls.clear()
        grouping.batch([row])
        before = live.get(row.key)
        wanted = []
        if before is not None and before.group is not None and before[2:4] != row[2:4]:
            wanted.append(("subtract", before.group, before.values[0]))
        if row.group is not None and (before is None or before[2:4] != row[2:4]):
            wanted.append(("add", row.group, row.values[0]))
        assert sorted(calls) == sorted(wanted)
        if before is not None and before.group == row.group:
            assert calls == wanted
        live[row.key] = row
    assert grouping.table == {group: (row[2],) for group, row in recomputed_sums(rows).items()}


def test_changes_of_several_rows_in_a_batch_count_in_the_order_of_their_versions() -> None:
    grouping = Grouping(ANIMAL)
    grouping.fold = called(
        pa.string(), Starting(""), lambda _, animal, one: one + animal, lambda _, animal, one: f"{one}-{animal}"
    )
    grouping.batch([Change(key, version, "zoo", (key,)) for key, version in (("c", 3), ("a", 4), ("d", 1), ("b", 2))])
    assert grouping.table == {"zoo": ("dbca",)}
    grouping.batch([Change("b", 9, None), Change("d", 8, None), Change("a", 10, "zoo", ("A",))])
    assert grouping.table == {"zoo": ("dbca-d-b-aA",)}


def test_what_is_not_of_the_aggregates_type_is_named_with_its_group() -> None:
    grouping = Grouping(ANIMAL)
    grouping.fold = called(pa.int64(), Starting(0), lambda _, animal, n: n + 1 if animal != "bad" else "many", lambda *_: 0)
    with pytest.raises(
        FkJoinError, match="value of group h: adder or subtractor returned 'many', which is not of type int64; let the"
    ):
        grouping.batch([Change("a", 1, "g", ("tiger",)), Change("b", 2, "h", ("bad",))])
    grouping = Grouping(ANIMAL)
    grouping.fold = called(
        pa.string(), Starting("0"), lambda _, animal, n: n + "1" if animal != "bad" else "many", lambda *_: "0"
    )
    grouping.batch([Change("a", 1, "g", ("tiger",)), Change("b", 2, "h", ("bad",))])
    assert grouping.table == {"g": ("01",), "h": ("many",)}


def test_an_aggregate_of_none_is_no_result_and_the_next_begins_anew() -> None:
    grouping = Grouping(ANIMAL)
    grouping.fold = called(
        pa.string(),
        Starting(""),
        lambda _, animal, one: None if animal == "nothing" else one + animal,
        lambda _, _animal, one: one,
    )
    grouping.batch([Change("a", 1, "g", ("tiger",))])
    grouping.batch([Change("b", 2, "g", ("nothing",))])
    assert grouping.table == {}
    grouping.batch([Change("c", 3, "g", ("lion",))])
    assert grouping.table == {"g": ("lion",)}
    grouping.batch([Change("d", 4, "h", ("nothing",))])
    assert [group for group, _, _ in grouping.sent] == ["g", "g", "g"]
