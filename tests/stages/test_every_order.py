"""All small histories, in every order in which their messages can be delivered: they end as the final tables say.

An inner join of one left row with three versions over two foreign keys, and right rows with two versions, is walked whole in
``make test``.  So are smaller histories of the others.  ``make proof`` walks that size of left joins, too, and larger ones of
all.  ``tests/support/exploring.py`` says what is walked, and why that is all.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fkjoin.codec.arrays import BYTES
from fkjoin.stages.gather import Parts
from fkjoin.stages.guard import Guarded
from tests.support import pairing
from tests.support.exploring import System, WrongEndError
from tests.support.sampling import sampled
from tests.support.small_histories import (
    History,
    aggregates,
    aggregates_cases,
    flat_map,
    flat_map_cases,
    join,
    join_cases,
    joins,
    joins_by_key,
    joins_by_key_cases,
    joins_cases,
)

ENDS = 1_000
"""The least number of ends: with fewer, the test would walk next to nothing."""
HOWS = ("inner", "left")
PAIRS = [("inner", "left"), ("left", "inner"), ("left", "left"), ("inner", "inner")]


LARGE = [(3, 2, 1), (3, 2, 3), (4, 1, 2)]
SMALL = [(3, 2, 1, "inner"), (2, 2, 1, "left"), (3, 1, 2, "inner"), (3, 1, 2, "left")]


@pytest.mark.parametrize(("lefts", "rights", "at_once", "how"), sampled([(*one, how) for how in HOWS for one in LARGE], SMALL))
def test_a_join_ends_as_the_batch_join_in_every_order(lefts: int, rights: int, at_once: int, how: str) -> None:
    """One left row over two foreign keys, null and deletion; right rows, there or not, the same as before, and deleted."""
    assert join(how, at_once=at_once).check(join_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize("how", sampled(PAIRS, PAIRS[:1]))
@pytest.mark.parametrize(("lefts", "rights", "at_once"), sampled([(2, (2, 1), 1), (2, (1, 1), 2)], [(2, (1, 1), 1)]))
def test_a_multi_way_join_ends_as_the_batch_join_in_every_order(
    lefts: int, rights: tuple[int, int], at_once: int, how: tuple[str, str]
) -> None:
    assert joins(how, at_once=at_once).check(joins_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize(("first", "second", "at_once"), sampled([(3, 3, 2), (4, 2, 1)], [(3, 2, 1), (2, 2, 3)]))
def test_an_aggregate_ends_as_a_recomputation_in_every_order(first: int, second: int, at_once: int) -> None:
    assert aggregates(at_once=at_once).check(aggregates_cases(first, second)) > ENDS


@pytest.mark.parametrize("how", pairing.HOWS)
@pytest.mark.parametrize(("lefts", "rights", "at_once"), sampled([(4, 3, 2)], [(3, 2, 2)]))
def test_a_join_by_primary_key_is_the_batch_join_after_every_batch(lefts: int, rights: int, at_once: int, how: str) -> None:
    assert joins_by_key(how, at_once=at_once).lockstep(joins_by_key_cases(lefts, rights, how)) > ENDS


def test_a_pair_that_takes_late_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    taking_all("slots", monkeypatch)
    with pytest.raises(WrongEndError, match="and the final tables to"):
        joins_by_key("outer").lockstep(joins_by_key_cases(2, 1, "outer"))


@pytest.mark.parametrize("how", sampled(HOWS, HOWS[1:]))
@pytest.mark.parametrize(("lefts", "rights", "at_once"), sampled([(3, 2, 1), (3, 1, 2)], [(2, 2, 2)]))
def test_in_one_query_a_join_is_the_batch_join_after_every_batch(lefts: int, rights: int, at_once: int, how: str) -> None:
    """Sources have any order, batches are cut anywhere, and any records come again."""
    assert join(how, at_once=at_once, in_order=True).lockstep(join_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize("how", sampled(PAIRS, PAIRS[1:2]))
@pytest.mark.parametrize("at_once", sampled([2], [1]))
def test_in_one_query_a_multi_way_join_is_the_batch_join_after_every_batch(at_once: int, how: tuple[str, str]) -> None:
    assert joins(how, at_once=at_once, in_order=True).lockstep(joins_cases(2, (1, 1), how)) > ENDS


@pytest.mark.parametrize(("first", "second"), sampled([(3, 2)], [(2, 2)]))
def test_in_one_query_an_aggregate_is_a_recomputation_after_every_batch(first: int, second: int) -> None:
    assert aggregates(at_once=2, guarded=False).lockstep(aggregates_cases(first, second)) > ENDS


@pytest.mark.parametrize(("first", "second", "at_once"), sampled([(2, 2, 2), (3, 1, 1)], [(2, 1, 1), (2, 1, 2)]))
def test_a_flat_map_is_a_recomputation_after_every_batch(first: int, second: int, at_once: int) -> None:
    """Two rows, each with or without an output under each of two keys, so that both make one, hide it, and take it back."""
    assert flat_map(at_once=at_once).lockstep(flat_map_cases(first, second)) > ENDS


def keeping_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_module("fkjoin.stages.spread")
    changed = module._changed

    def only_new_ones(*how: Any) -> Any:
        of, key, new = changed(*how)
        there = pc.is_valid(new)
        return of[there.to_numpy(zero_copy_only=False)], key.filter(there), new.filter(there)

    monkeypatch.setattr(module, "_changed", only_new_ones)


def showing_the_last_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_module("fkjoin.stages.owners")
    monkeypatch.setattr(module, "changes_from_previous", lambda of: np.append(of[1:] != of[:-1], True))


@pytest.mark.parametrize(
    ("break_it", "second", "end"),
    [(keeping_outputs, 0, "comes to x, and the final tables to None"), (showing_the_last_owner, 1, "comes to y, .* to x")],
)
def test_a_broken_rule_of_a_flat_map_is_found(break_it: Any, second: int, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    with pytest.raises(WrongEndError, match=end):
        flat_map().lockstep(flat_map_cases(2, second))


def taking_all(name: str, monkeypatch: pytest.MonkeyPatch, **only: bool) -> None:
    """Make a stage take stale messages as new, where it compares them with the arguments ``only``."""
    module: Any = import_module(f"fkjoin.stages.{name}")
    newest_only = module.newest_only

    def all_of_them(*columns: Any, **how: Any) -> Any:
        return newest_only(*columns, **(how | {"in_order": True} if only.items() <= how.items() else how))

    monkeypatch.setattr(module, "newest_only", all_of_them)


def answering_only_with_right_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_module("fkjoin.stages.subscription")
    answer = module._answer_on_subscribe

    def if_there(*how: Any) -> pa.Table:
        answers = answer(*how)
        return answers.filter(pc.is_valid(answers.column("right")))

    monkeypatch.setattr(module, "_answer_on_subscribe", if_there)


def without_highwater_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    taking_all("resolve", monkeypatch)


def letting_late_tombstones_through(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_module("fkjoin.stages.resolve")
    settle = module.settle

    def tombstones_count(joined: pa.Table, *stores: Any, in_order: bool, **how: Any) -> Any:
        tombstone = joined.column("value").null_count == len(joined)
        return settle(joined, *stores, in_order=in_order or tombstone, **how)

    monkeypatch.setattr(module, "settle", tombstones_count)


def taking_late_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    taking_all("sides", monkeypatch, or_equal=True)


def taking_late_right_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    taking_all("sides", monkeypatch, as_read=True)


def forgetting_answers_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parts, "ahead", lambda parts, _: [np.zeros(len(parts.left), bool) for _ in parts.since])


def taking_late_contributions(monkeypatch: pytest.MonkeyPatch) -> None:
    taking_all("guard", monkeypatch)


def without_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = pa.array([], BYTES)
    monkeypatch.setattr(
        import_module("fkjoin.stages.aggregate"), "guard", lambda grouped, *_: Guarded(grouped, (nothing, nothing))
    )


@pytest.mark.parametrize(
    ("break_it", "system", "cases", "end"),
    [
        (answering_only_with_right_rows, join("inner"), join_cases(2, 1, "inner"), "('x', 'p'), and the final tables to None"),
        (without_highwater_marks, join("left"), join_cases(2, 1, "left"), "('x', None), and the final tables to ('x', 'p')"),
        (letting_late_tombstones_through, join("inner"), join_cases(2, 1, "inner"), "and the final tables to"),
        (taking_late_subscriptions, join("left"), join_cases(2, 1, "left"), "and the final tables to"),
        (taking_late_right_rows, join("left"), join_cases(1, 2, "left"), "('x', 'p'), and the final tables to ('x', 'q')"),
        (forgetting_answers_ahead, joins(PAIRS[2]), joins_cases(2, (1, 1), PAIRS[2]), "('x', None, None)"),
        (without_guard, aggregates(), aggregates_cases(2, 0), "(2, 2, 1), and the final tables to (1, 1, 1)"),
        (taking_late_contributions, aggregates(), aggregates_cases(2, 0), "and the final tables to"),
    ],
)
def test_a_broken_rule_is_found_and_the_run_is_told(
    break_it: Any, system: System, cases: Iterable[History], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises(WrongEndError) as found:
        system.check(cases)
    *_, last = told = str(found.value).strip().splitlines()
    assert end in last
    assert len(told) < 15


def test_what_a_broken_rule_does_in_one_query_is_found_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taking_late_right_rows(monkeypatch)
    with pytest.raises(WrongEndError) as found:
        join("left", in_order=True).lockstep(join_cases(1, 2, "left"))
    *batches, end = str(found.value).strip().splitlines()
    assert len(batches) == 3
    assert "('x', 'p'), and the final tables to ('x', 'q')" in end


@pytest.mark.parametrize("break_it", [lambda _: None, without_highwater_marks], ids=["intact", "broken"])
@pytest.mark.parametrize(
    ("made", "cases"),
    [
        (lambda: join("left"), lambda: join_cases(2, 1, "left")),
        (lambda: joins(PAIRS[0]), lambda: joins_cases(1, (1, 1), PAIRS[0])),
        (aggregates, lambda: aggregates_cases(2, 1)),
    ],
    ids=["join", "multi-way", "aggregate"],
)
def test_one_stage_after_the_other_comes_to_the_ends_of_all_interleavings(
    made: Any, cases: Any, break_it: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways come to the same wrong ends of a broken rule, too."""
    break_it(monkeypatch)
    monkeypatch.setattr(History, "wrong", lambda *_: "")
    system: System = made()
    for case in cases():
        assert system.stage_by_stage(case) == system.every_run(case)
