"""Stages of one bucket share an operator of Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fkjoin.plan import physical
from fkjoin.plan.physical import Counted, MessagesOnly, Physical, Stage, Union, operator_of

LEFT, RIGHT, TICKS = (physical.Fed(name, None) for name in ("left", "right", "ticks"))


def stage(name: str, *inputs: Physical, together: bool = True) -> Stage:
    spec: Any = SimpleNamespace(name=name, stage=name, state=SimpleNamespace(operator="it", together=together))
    return Stage(physical.union(*inputs), spec)


def shown(last: Stage, *apart: Physical) -> tuple[list[tuple[str, int | None, str | None]], list[tuple[int, Physical]]]:
    operator = operator_of(last, apart)
    stages = [(one.node.spec.name, one.reader, one.counted_as) for one in operator.stages]
    return stages, list(operator.entries)


def test_stages_that_read_one_another_are_one_operator() -> None:
    """Also those whose counters are summed up, or of which two are read."""
    subscription = stage("subscription", stage("rekey", LEFT), RIGHT)
    grouped = MessagesOnly(Counted(stage("regroup", LEFT), "sums-regroup", ("regroup",)))
    held = stage("pace", MessagesOnly(Counted(stage("aggregate", grouped), "sums", ("aggregate",))), TICKS)
    sides = [MessagesOnly(Counted(stage(name, rows), name, ())) for name, rows in (("a", LEFT), ("b", RIGHT))]
    joined = [("rekey", 1, None), ("subscription", 2, None), ("resolve", None, None)]
    assert shown(stage("resolve", subscription)) == (joined, [(0, LEFT), (1, RIGHT)])
    summed = [("regroup", 1, "sums-regroup"), ("aggregate", 2, "sums"), ("pace", None, None)]
    assert shown(held) == (summed, [(0, LEFT), (2, TICKS)])
    assert shown(stage("merge", *sides)) == ([("a", 2, "a"), ("b", 2, "b"), ("merge", None, None)], [(0, LEFT), (1, RIGHT)])


def test_stages_with_several_buckets_or_with_other_nodes_between_them_are_operators_of_their_own() -> None:
    apart = stage("resolve", stage("rekey", LEFT, together=False), together=False)
    between = stage("resolve", Counted(stage("rekey", LEFT), "answers", ()))
    for last in (apart, between):
        assert shown(last) == ([("resolve", None, None)], [(0, last.input)])
    both = stage("merge", MessagesOnly(Counted(stage("a", LEFT), "a", ())), Union((RIGHT, Union((TICKS, LEFT)))))
    _, (number, rows) = operator_of(both).entries
    assert (number, rows.inputs) == (1, (RIGHT, TICKS, LEFT))


def test_counters_that_are_summed_up_for_two_readers_are_of_an_operator_of_their_own() -> None:
    """Spark refuses two sums under one name, but not one frame that is read twice."""
    grouped = Counted(stage("regroup", LEFT), "sums-regroup", ("regroup",))
    aggregate = MessagesOnly(Counted(stage("aggregate", MessagesOnly(grouped)), "sums", ("aggregate",)))
    cogroup = stage("cogroup", MessagesOnly(grouped), aggregate)
    assert physical.counted_twice(cogroup) == {grouped}
    assert shown(cogroup, *physical.counted_twice(cogroup)) == (
        [("aggregate", 1, "sums"), ("cogroup", None, None)],
        [(0, cogroup.input.inputs[1].inputs[0].inputs[0].inputs[0]), (1, cogroup.input.inputs[0])],
    )
    alone = stage("aggregate", MessagesOnly(Counted(stage("regroup", LEFT, together=False), "a", ())), together=False)
    assert physical.counted_twice(Union((alone, alone))) == frozenset()


def test_stages_of_an_operator_are_told_from_stages_that_its_rows_come_from() -> None:
    rekey = stage("rekey", LEFT)
    by_others = stage("subscription", rekey, physical.InWorkers(rekey, iter, None))
    found = [(stage.stage, stage.operator_id) for stage in physical.running_in(by_others, "end")]
    assert [name for name, _ in found] == ["rekey", "rekey", "subscription"]
    inside, outside, last = (operator_id for _, operator_id in found)
    assert inside is last is not None
    assert outside is None
