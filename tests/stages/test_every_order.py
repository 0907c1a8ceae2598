"""All small histories, in every order in which their messages can be delivered: they end as the final tables say.

``make test`` walks small histories of all operators, and ``make proof`` larger ones.  ``tests/support/exploring.py`` says what
is walked, and why that is all.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tests.support import pairing
from tests.support.exploring import History, WrongEndError
from tests.support.sampling import sampled
from tests.support.small_histories import (
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

ENDS = 400
"""The least number of ends: with fewer, the test would walk next to nothing."""
HOWS = ("inner", "left")
PAIRS = [("inner", "left"), ("left", "inner"), ("left", "left"), ("inner", "inner")]


LARGE = [(3, 2, 1), (3, 2, 3), (4, 1, 2)]
SMALL = [(2, 2, 1, "inner"), (2, 2, 1, "left")]


@pytest.mark.parametrize(("lefts", "rights", "at_once", "how"), sampled([(*one, how) for how in HOWS for one in LARGE], SMALL))
def test_a_join_ends_as_the_batch_join_in_every_order(lefts: int, rights: int, at_once: int, how: str) -> None:
    """One left row over two foreign keys, null and deletion; right rows, there or not, the same as before, and deleted."""
    assert join(how, at_once=at_once).check(join_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize("how", sampled(PAIRS, PAIRS[:1]))
@pytest.mark.parametrize(("lefts", "rights", "at_once"), sampled([(2, (2, 1), 1), (2, (1, 1), 2)], [(2, (1, 0), 1)]))
def test_a_multi_way_join_ends_as_the_batch_join_in_every_order(
    lefts: int, rights: tuple[int, int], at_once: int, how: tuple[str, str]
) -> None:
    assert joins(how, at_once=at_once).check(joins_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize(("first", "second", "at_once"), sampled([(3, 3, 2), (4, 2, 1)], [(2, 2, 3)]))
def test_an_aggregate_ends_as_a_recomputation_in_every_order(first: int, second: int, at_once: int) -> None:
    assert aggregates(at_once=at_once).check(aggregates_cases(first, second)) > ENDS


@pytest.mark.parametrize("how", pairing.HOWS)
@pytest.mark.parametrize(("lefts", "rights", "at_once"), sampled([(4, 3, 2)], [(2, 2, 2)]))
def test_a_join_by_primary_key_is_the_batch_join_after_every_batch(lefts: int, rights: int, at_once: int, how: str) -> None:
    assert joins_by_key(how, at_once=at_once).lockstep(joins_by_key_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize("how", sampled(HOWS, HOWS[1:]))
@pytest.mark.parametrize(("lefts", "rights", "at_once"), sampled([(3, 2, 1), (3, 1, 2)], [(2, 1, 2)]))
def test_in_one_query_a_join_is_the_batch_join_after_every_batch(lefts: int, rights: int, at_once: int, how: str) -> None:
    """Sources have any order, batches are cut anywhere, and any records come again."""
    assert join(how, at_once=at_once, in_order=True).lockstep(join_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize("how", sampled(PAIRS, PAIRS[1:2]))
@pytest.mark.parametrize(("rights", "at_once"), sampled([((1, 1), 2)], [((1, 0), 1)]))
def test_in_one_query_a_multi_way_join_is_the_batch_join_after_every_batch(
    rights: tuple[int, int], at_once: int, how: tuple[str, str]
) -> None:
    assert joins(how, at_once=at_once, in_order=True).lockstep(joins_cases(2, rights, how)) > ENDS


@pytest.mark.parametrize(("first", "second"), sampled([(3, 2)], [(2, 2)]))
def test_in_one_query_an_aggregate_is_a_recomputation_after_every_batch(first: int, second: int) -> None:
    assert aggregates(at_once=2, guarded=False).lockstep(aggregates_cases(first, second)) > ENDS


@pytest.mark.parametrize(("first", "second", "at_once"), sampled([(2, 2, 2), (3, 1, 1)], [(2, 1, 1)]))
def test_a_flat_map_is_a_recomputation_after_every_batch(first: int, second: int, at_once: int) -> None:
    """Two rows, each with or without an output under each of two keys, so that both make one, hide it, and take it back."""
    assert flat_map(at_once=at_once).lockstep(flat_map_cases(first, second)) > ENDS


def taking_all(name: str, monkeypatch: pytest.MonkeyPatch, **only: bool) -> None:
    """Make a stage take stale messages as new, where it compares them with the arguments ``only``."""
    module: Any = import_module(f"fkjoin.stages.{name}")
    newest_only = module.newest_only

    def all_of_them(*columns: Any, **how: Any) -> Any:
        return newest_only(*columns, **(how | {"in_order": True} if only.items() <= how.items() else how))

    monkeypatch.setattr(module, "newest_only", all_of_them)


def test_a_broken_rule_is_found_and_the_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taking_all("resolve", monkeypatch)
    with pytest.raises(WrongEndError) as found:
        join("left").check(join_cases(2, 1, "left"))
    *_, last = told = str(found.value).strip().splitlines()
    assert "('x', None), and the final tables to ('x', 'p')" in last
    assert len(told) < 15


def test_what_a_broken_rule_does_in_one_query_is_found_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taking_all("sides", monkeypatch, as_read=True)
    with pytest.raises(WrongEndError) as found:
        join("left", in_order=True).lockstep(join_cases(1, 2, "left"))
    *batches, end = str(found.value).strip().splitlines()
    assert len(batches) == 3
    assert "('x', 'p'), and the final tables to ('x', 'q')" in end


@pytest.mark.parametrize("broken", [False, True])
def test_one_stage_after_the_other_comes_to_the_ends_of_all_interleavings(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways come to the same wrong ends of a broken rule, too."""
    if broken:
        taking_all("resolve", monkeypatch)
    monkeypatch.setattr(History, "wrong", lambda *_: "")
    system = join("left")
    for case in join_cases(2, 1, "left"):
        assert system.stage_by_stage(case) == system.every_run(case)
