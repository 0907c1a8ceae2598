"""Stages of one bucket share an operator of Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fkjoin.plan.physical import Counted, Fed, MessagesOnly, Physical, Stage, Union, operator_of, union

LEFT, RIGHT, TICKS = (Fed(name, None) for name in ("left", "right", "ticks"))


def stage(name: str, *inputs: Physical, together: bool = True) -> Stage:
    spec: Any = SimpleNamespace(name=name, state=SimpleNamespace(together=together))
    return Stage(union(*inputs), spec)


def shown(last: Stage) -> tuple[list[tuple[str, int | None, str | None]], list[tuple[int, Physical]]]:
    operator = operator_of(last)
    stages = [(spec.name, reader, counted and counted.name) for spec, reader, counted in operator.stages]
    return stages, list(operator.entries)


def test_stages_that_read_one_another_are_one_operator() -> None:
    subscription = stage("subscription", stage("rekey", LEFT), RIGHT)
    assert shown(stage("resolve", subscription)) == (
        [("rekey", 1, None), ("subscription", 2, None), ("resolve", None, None)],
        [(0, LEFT), (1, RIGHT)],
    )


def test_a_stage_whose_counters_are_summed_up_is_in_the_operator_of_its_reader() -> None:
    grouped = MessagesOnly(Counted(stage("regroup", LEFT), "sums-regroup", ("regroup",)))
    held = stage("pace", MessagesOnly(Counted(stage("aggregate", grouped), "sums", ("aggregate",))), TICKS)
    assert shown(held) == (
        [("regroup", 1, "sums-regroup"), ("aggregate", 2, "sums"), ("pace", None, None)],
        [(0, LEFT), (2, TICKS)],
    )


def test_a_stage_with_two_inputs_of_stages_has_all_of_them() -> None:
    sides = [MessagesOnly(Counted(stage(name, rows), name, ())) for name, rows in (("a", LEFT), ("b", RIGHT))]
    assert shown(stage("merge", *sides)) == ([("a", 2, "a"), ("b", 2, "b"), ("merge", None, None)], [(0, LEFT), (1, RIGHT)])


def test_stages_with_several_buckets_or_with_other_nodes_between_them_are_operators_of_their_own() -> None:
    apart = stage("resolve", stage("rekey", LEFT, together=False), together=False)
    between = stage("resolve", Counted(stage("rekey", LEFT), "answers", ()))
    for last in (apart, between):
        assert shown(last) == ([("resolve", None, None)], [(0, last.input)])
    both = stage("merge", MessagesOnly(Counted(stage("a", LEFT), "a", ())), RIGHT, TICKS)
    assert isinstance(operator_of(both).entries[1][1], Union)
