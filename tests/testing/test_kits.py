"""The test kit for users: what it plays, and that a join goes through it unharmed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import fkjoin.testing as kit
from fkjoin import FkJoinError, TopologyError
from fkjoin import aggregates as agg
from fkjoin.testing import CRASH, DUPLICATE, REORDER, JoinTest, KeyJoinTest, change, event, left, right
from tests.support.laws import law
from tests.support.places import ROOT

NUMBER = pa.schema([("n", pa.int64())])


def members(group: Any = "fk") -> kit.MembersTest:
    return kit.MembersTest(group, NUMBER, {"n": agg.sum("n")})


def plus(key: str, row: dict[str, Any], total: int) -> int:
    return total + row["n"]


def minus(key: str, row: dict[str, Any], total: int) -> int:
    return total - row["n"]


def aggregate(group: Any, seed: int = 0) -> kit.AggregateTest:
    return kit.AggregateTest(group, 0, plus, minus, seed=seed)


KITS: dict[str, tuple[Any, str, str]] = {
    "join": (lambda: JoinTest("fk", how="left"), "left(…) or right(…)", "resolve"),
    "join by primary key": (lambda: KeyJoinTest(how="left"), "left(…) or right(…)", "pair"),
    "aggregate": (lambda: aggregate("fk"), "change(…)", "regroup"),
    "members": (members, "change(…)", "aggregate"),
    "flat map": (lambda: kit.FlatMapTest(lambda key, row: [row], "fk"), "change(…)", "owners"),
    "enrich": (lambda: kit.EnrichTest(on="fk", how="left"), "change(…) or event(…)", "enrich"),
}
"""A test of each kind, the functions that make what it takes, and the name of a stage."""


@pytest.mark.parametrize("name", KITS)
def test_what_a_test_does_not_take_is_refused_before_anything_is_processed(name: str) -> None:
    make, functions, stage = KITS[name]
    test, row = make(), {"fk": "a", "n": 1}
    other = right("a", row) if "right" not in functions else event(row)
    refused: list[tuple[Any, str]] = [
        ("CRASH", "feed: 'CRASH' is none of CRASH, DUPLICATE, REORDER"),
        (None, "feed: None is none of CRASH"),
        (
            ("o2", row),
            rf"feed: \('o2', .* is none of CRASH, DUPLICATE, REORDER, and no change: {re.escape(functions)} makes one$",
        ),
        (other, f"feed: a change of side '{other.side}' has no place here; make it with {re.escape(functions)}$"),
        (kit.Change("both", "o2", row), "feed: a change of side 'both' has no place here"),  # type: ignore[arg-type]
        (change(5, row), "feed: key 5 is of type int; here keys are texts"),  # type: ignore[arg-type]
        (change("o2", 7), "feed: the row of left 'o2' is 7, which is not a dict of columns"),  # type: ignore[arg-type]
        (change("o2", row, version="2"), "feed: version '2' of 'o2' is not a whole number"),  # type: ignore[arg-type]
        (change("o2", row, version=True), "feed: version True of 'o2' is not a whole number"),
    ]
    if "event" in functions:
        refused.append((event(None), "the row of event '' is None, which is not a dict of columns"))  # type: ignore[arg-type]
    for wrong, said in refused:
        with pytest.raises(FkJoinError, match=said):
            test.feed(change("o1", row), CRASH, wrong)
    assert (test.table, test.results, test.count) == ({}, [], {})
    makers = [getattr(kit, function.removesuffix("(…)")) for function in functions.split(" or ")]
    results = test.feed(*(maker(row) if maker is event else maker("a", row) for maker in makers), CRASH)
    assert len(results) == 1, "what it takes is taken"
    assert len(test.stored(stage)) > 0


NAMING: dict[str, tuple[Callable[[Any], Any], str, Callable[[Any], Any]]] = {
    "extractor": (JoinTest, "the row of 'o2'", lambda row: left("o2", row)),
    "group": (aggregate, "the row of 'o2'", lambda row: change("o2", row)),
    "group of members": (members, "the row of 'o2'", lambda row: change("o2", row)),
    "key": (
        lambda named: kit.FlatMapTest(lambda key, row: [row], named),
        "a row that 'o2' makes",
        lambda row: change("o2", row),
    ),
    "on": (lambda named: kit.EnrichTest(named, how="left"), "the event {.*}", event),
}
"""By an argument that names a column: the test, whose row lacks it, and what makes such a row's change."""


@pytest.mark.parametrize("name", NAMING)
def test_a_column_that_a_row_lacks_is_refused_by_name_and_nothing_is_processed(name: str) -> None:
    make, whose, changed = NAMING[name]
    argument, row = name.split()[0], {"fk": "a", "n": 1}
    test = make("fkk")
    with pytest.raises(FkJoinError, match=f"^{argument}: {whose} has no column 'fkk'; did you mean 'fk'?"):
        test.feed(change("o1", {"fkk": "a", "n": 1}), CRASH, changed(row))
    assert (test.table, test.results, test.count) == ({}, [], {})
    with pytest.raises(FkJoinError, match=f"^{argument}: {whose} has no column 'nope'; there are fk, n"):
        make("nope").feed(changed(row))
    with pytest.raises(FkJoinError, match=f"^{argument}: the key that .* names is 7; here keys are texts, or None$"):
        make("fk").feed(changed({"fk": 7, "n": 1}))
    named = make("fk")
    assert named.feed(changed({"fk": None, "n": 1})) == named.results
    says = rf"^{argument}: \['fk', 'n'\] is not a text; here a key is one text: name a"
    with pytest.raises(FkJoinError, match=says):
        make(["fk", "n"])

    def named_by_both(*arguments: Any) -> str:
        return f"{arguments[-1]['fk']}/{arguments[-1]['n']}"

    for test, key in ((make("fk"), "a"), (make(named_by_both), "a/1")):
        test.feed(right(key, {}) if name == "extractor" else DUPLICATE, changed(row))
        assert len(test.results) == 1


def test_a_value_of_another_type_than_its_column_is_refused_by_name() -> None:
    test = members()
    for value, said in (
        ("x", "Could not convert 'x'"),
        ([1], "Could not convert"),
        (True, "it is a bool"),
        (1.5, "it is a float"),
    ):
        with pytest.raises(FkJoinError, match=rf"^the row of 'o1': .* cannot be a value of column n, which is int64: {said}"):
            test.feed(change("o0", {"fk": "a", "n": 1}), CRASH, change("o1", {"fk": "a", "n": value}))
    with pytest.raises(FkJoinError, match="^schema: the row of 'o1' has no column 'n'; there are fk, m"):
        test.feed(change("o1", {"fk": "a", "m": 1}))
    assert (test.table, test.results) == ({}, [])
    with pytest.raises(FkJoinError, match="columns: it uses the column 'm', and the schema has n"):
        kit.MembersTest("zoo", NUMBER, {"it": agg.max_by("n", "m")})
    text = kit.MembersTest("fk", pa.schema([("n", pa.string())]), {"all": agg.collect_set("n")})
    with pytest.raises(FkJoinError, match="^the row of 'o1': 1 cannot be a value of column n, which is string: it is a int$"):
        text.feed(change("o1", {"fk": "a", "n": 1}))
    assert test.feed(change("o1", {"fk": "a", "n": None}), change("o2", {"fk": "b", "n": 2}))[-1] == ("b", "insert", {"n": 2})


HOWS: list[tuple[Callable[[Any], Any], dict[str, str | None]]] = [
    (lambda how: KeyJoinTest(how=how), {"LEFT": "left", "full_outer": "outer", "full": "outer", "semi": None}),
    (lambda how: JoinTest("fk", how=how), {"leftouter": "left", "right": None, "cross": None}),
    (lambda how: kit.EnrichTest("fk", how=how), {"left_outer": "left", "outer": None, "right": None}),
]
"""Kits, which check ``how`` as the library does, and by words of Spark's what is to be written."""


@pytest.mark.parametrize(("make", "words"), HOWS, ids=["primary key", "foreign key", "events"])
def test_a_word_of_sparks_for_how_is_refused_with_what_to_write(make: Any, words: Any) -> None:
    for word, meant in words.items():
        says = f'^how: \'{word}\' is not one of ("\\w+"(, |; write "{meant}"$|$))+'
        with pytest.raises(TopologyError, match=says) as caught:
            make(word)
        assert ("write" in str(caught.value)) == (meant is not None), word
        if meant is not None:
            assert make(meant).how == meant


def test_a_join_that_is_none_of_a_kit_is_refused_with_another_one() -> None:
    with pytest.raises(TopologyError, match="how: 'right' is not one of .*; swap the two tables, and write \"left\"$"):
        KeyJoinTest(how="right")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match='how: "full" is only for joins by primary key'):
        JoinTest("fk", how="full")  # type: ignore[arg-type]


def test_reordered_messages_arrive_in_another_order() -> None:
    test, keys = JoinTest("fk"), [f"o{number:02}" for number in range(30)]
    results = test.feed(right("a", {"m": 1}), *(left(key, {"fk": "a"}) for key in keys), REORDER)
    assert sorted(result.key for result in results) == keys
    assert [result.key for result in results] != keys
    assert test.count["stale-dropped"] > 0, "some come twice"
    answered = test.feed(right("a", {"m": 2}), REORDER)
    assert sorted(result.key for result in answered) == keys
    assert [result.key for result in answered] != keys, "answers overtake each other, too"


def test_a_crash_really_throws_away_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    test, seen = JoinTest("fk"), []
    run = JoinTest._run

    def counting(self: JoinTest, batch: list[kit.Change], stages: int, **how: Any) -> list[pa.Table]:
        seen.append(stages)
        return run(self, batch, stages, **how)

    monkeypatch.setattr(JoinTest, "_run", counting)
    test.feed(right("a", {"m": 1}), left("o", {"fk": "a"}), CRASH)
    assert seen[:4] == [1, 2, 3, 3]
    assert len(test.results) == 1


@pytest.mark.parametrize("document", ["docs/testing.md", "docs/aggregates.md", "docs/joins.md"])
def test_examples_in_documents_hold(document: str) -> None:
    text = (ROOT / document).read_text()
    parts = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "fkjoin.testing" in part]
    found = [part for part in parts if "Driver(" not in part]  # which needs a session: see test_driver
    assert found
    for block in found:
        exec(block, {})


def test_a_test_of_an_enrich_reads_like_this() -> None:
    test = kit.EnrichTest(on="customer", how="left")
    first = event({"customer": "c1", "n": 1})
    results = test.feed(first, change("c1", {"name": "Ada"}), CRASH, change("c1", {"name": "Eve"}), DUPLICATE, first, REORDER)
    assert results == [
        ("c1", "insert", {"customer": "c1", "n": 1, "name": "Ada"}),
        ("c1", "insert", {"customer": "c1", "n": 1, "name": "Eve"}),
    ]
    assert test.feed(event({"customer": None}), event({"customer": "c2"})) == [
        ("", "insert", {"customer": None}),
        ("c2", "insert", {"customer": "c2"}),
    ]
    assert (test.table, test.count["events-without-row"]) == ({"c1": {"name": "Eve"}}, 2)
    many = [event({"customer": "c1", "n": number}) for number in range(9)]
    assert sorted(result.value["n"] for result in test.feed(*many, REORDER)) == [*range(9)], "each comes once"


def test_rows_of_a_flat_map_with_one_key_are_refused() -> None:
    test = kit.FlatMapTest(lambda key, row: row["items"], lambda key, item: item["sku"])
    with pytest.raises(FkJoinError, match="rows of '3': two of its rows have"):
        test.feed(change("3", {"items": [{"sku": "a"}] * 2}))


def test_a_joiner_by_primary_key_gets_both_rows_and_may_hide_a_result() -> None:
    test = KeyJoinTest(how="outer", joiner=lambda one, other: None if one and one["n"] < 0 else [one, other])
    results = test.feed(left("1", {"n": 1}), right("2", {"m": 2}), CRASH)
    assert sorted(results) == [("1", "insert", [{"n": 1}, None]), ("2", "insert", [None, {"m": 2}])]
    assert test.feed(left("1", {"n": -1}), right("2", None)) == [("1", "delete", None), ("2", "delete", None)]
    assert test.table == {}


ZOOS = st.none() | st.fixed_dictionaries({"zoo": st.sampled_from(["a", "b", None]), "n": st.integers(0, 3)})
CHANGES = st.builds(left, st.sampled_from("123456"), ZOOS) | st.builds(right, st.sampled_from("ab"), ZOOS)
BATCHES = st.lists(st.tuples(st.lists(CHANGES, max_size=9), st.sampled_from([CRASH, DUPLICATE, REORDER])), max_size=6)
Zoos = dict[str, dict[str, Any]]
"""Rows by key, in the order of the keys."""


def left_join(rows: Zoos, rights: Zoos) -> dict[str, Any]:
    return {key: {"left": row, "right": rights.get(row["zoo"])} for key, row in rows.items()}


def inner_join(rows: Zoos, rights: Zoos) -> dict[str, Any]:
    return {key: row for key, row in left_join(rows, rights).items() if row["right"] is not None}


def by_zoo(rows: Zoos) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for row in rows.values():
        if row["zoo"] is not None:
            numbers.setdefault(row["zoo"], []).append(row["n"])
    return numbers


def sums(rows: Zoos, _: Zoos) -> dict[str, Any]:
    return {zoo: sum(numbers) for zoo, numbers in by_zoo(rows).items()}


def both(key: str, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The row, and one for all zoos."""
    return [row, {"zoo": "all", "n": row["n"]}]


def first_rows(rows: Zoos, _: Zoos) -> dict[str, Any]:
    """The rows by zoo, each made of the row with the least key."""
    first: dict[str, Any] = {}
    for row in reversed(rows.values()):
        first |= {one["zoo"]: one for one in both("", row) if one["zoo"] is not None}
    return first


def of_some_kinds(seed: int) -> kit.MembersTest:
    columns = {"all": agg.collect_list("n"), "most": agg.max_by("n", "n")}
    columns["kinds"] = agg.count_distinct("n")
    return kit.MembersTest("zoo", NUMBER, columns, having=lambda row: row["kinds"] > 1, seed=seed)


def some_kinds(rows: Zoos, _: Zoos) -> dict[str, Any]:
    zoos = by_zoo(rows).items()
    some = [(zoo, numbers, len(set(numbers))) for zoo, numbers in zoos if len(set(numbers)) > 1]
    return {zoo: {"all": ns, "most": max(ns), "kinds": kinds} for zoo, ns, kinds in some}


LAWS: dict[str, tuple[Callable[[int], Any], Callable[[Zoos, Zoos], dict[str, Any]]]] = {
    "join": (lambda seed: JoinTest(lambda key, row: row["zoo"], seed=seed), inner_join),
    "left join": (lambda seed: JoinTest("zoo", "left", seed=seed), left_join),
    "aggregate": (lambda seed: aggregate("zoo", seed), sums),
    "flat map": (lambda seed: kit.FlatMapTest(both, "zoo", seed=seed), first_rows),
    "members": (of_some_kinds, some_kinds),
}
"""A test with a seed, and the table that left rows and right rows come to."""


@pytest.mark.parametrize("name", LAWS)
@law(90, batches=BATCHES, seed=st.integers(0, 99))
def test_whatever_happens_the_table_is_of_the_rows(name: str, batches: Any, seed: int) -> None:
    make, wanted = LAWS[name]
    test, fed = make(seed), list[Any]()
    rows: dict[str, Zoos] = {"left": {}, "right": {}}
    for changes, sentinel in batches:
        fed += [some for some in changes if some.side == "left" or "join" in name]
        fed.append(sentinel)
    test.feed(*fed)
    fed_changes = (some for some in fed if isinstance(some, kit.Change))
    for some in sorted(fed_changes, key=lambda some: some.key):
        rows[some.side].pop(some.key, None)
        if some.row is not None:
            rows[some.side][some.key] = some.row
    assert test.table == wanted(rows["left"], rows["right"])
