"""Each of the optimizer's rules as what it is: a function from topology to topology, here on topologies made by hand.

That results are the same with and without a rule: tests/plan/test_optimizer.py, and what is named there.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fkjoin.plan import optimizer
from fkjoin.plan.base import Node
from fkjoin.plan.nodes import Aggregate, Children, Join, Source, View, fired
from fkjoin.plan.optimizer import answers_keep_what_is_read, join_reads_answers, view_reads_answers
from tests.support.drawn import drawn_whole

ORDERS, CUSTOMERS, REGIONS = (
    Source(name, (key,), ("lsn",), None, None, (key, "n"), f"stream of {key}, n")
    for name, key in (("orders", "id"), ("customers", "customer"), ("regions", "region"))
)
JOINED = Join("joined", ORDERS, CUSTOMERS, "inner", "customer", None)
STAGED = replace(JOINED, topics=("there", "back"))
KEPT, HELD = replace(JOINED, materialized="kept"), replace(JOINED, emit="periodic 10 seconds")
SEEN = View("seen", JOINED, (("filter", "left.n > 1"),))
WITH_REGION = Join("with-region", JOINED, REGIONS, "inner", "right.region", "left.left.n, right.n")
STAR = optimizer.joins_share_stages(Join("star", JOINED, REGIONS, "left", "left.region", None), {})
BOOK = Children("book", JOINED, CUSTOMERS, "left.customer", "orders")
TOTALS = Aggregate("totals", JOINED, ("region",), ("right.region",), ("left.n",), (("n", "sum(left.n)"),), "on-change")
LARGE = View("large", ORDERS, (("filter", "n > 1"),))

ANSWERED = join_reads_answers(WITH_REGION, {})

Rule = Callable[..., Any]
FOR_JOINS: list[tuple[Rule, Callable[[Node], Node]]] = [
    (optimizer.joins_share_stages, lambda below: replace(WITH_REGION, left=below)),
    (join_reads_answers, lambda below: replace(WITH_REGION, left=below)),
    (join_reads_answers, lambda below: replace(BOOK, left=below)),
    (optimizer.aggregate_reads_answers, lambda below: replace(TOTALS, table=below)),
    (view_reads_answers, lambda below: replace(SEEN, table=below)),
]


def name_of(rule: Rule) -> str:
    return str(rule.__name__).replace("_", "-")


def changed(before: Node, after: Node) -> list[str]:
    """The lines of ``describe()`` that a rule has changed, one space for many; which stages run is for the plans' texts."""
    lines = difflib.ndiff(drawn_whole(before).splitlines(), drawn_whole(after).splitlines())
    return [" ".join(line.split()) for line in lines if line[0] in "-+"]


@pytest.mark.parametrize(
    ("rule", "before"),
    [
        (optimizer.joins_share_stages, WITH_REGION),
        (join_reads_answers, WITH_REGION),
        (join_reads_answers, BOOK),
        (optimizer.aggregate_reads_answers, TOTALS),
        (view_reads_answers, SEEN),
        (optimizer.join_keeps_what_it_needs, WITH_REGION),
        (answers_keep_what_is_read, ANSWERED),
        (answers_keep_what_is_read, replace(TOTALS, table=STAR)),
        (optimizer.resolve_makes_rows, WITH_REGION),
        (optimizer.resolve_makes_rows, view_reads_answers(SEEN, {})),
        (optimizer.workers_evaluate_steps, LARGE),
        (optimizer.filter_goes_below_join, view_reads_answers(SEEN, {})),
        (optimizer.stages_share_an_operator, JOINED),
    ],
)
def test_a_rule_fires_or_says_why_not(rule: Rule, before: Node) -> None:
    """The stages that run then: tests/plan/test_golden_plans.py."""
    after = rule(before, {})
    assert f"+ rule {name_of(rule)} fired" in changed(before, after)
    assert fired(after, name_of(rule))
    assert replace(after, rules=before.rules) == before, "only verdicts are new"
    off = rule(before, {name_of(rule): "nobody wants it"}, "it cannot be done")
    assert changed(before, off) == [f"+ rule {name_of(rule)} did not fire: nobody wants it"]
    if rule not in (join_reads_answers, optimizer.aggregate_reads_answers):  # of those: below
        why = [f"+ rule {name_of(rule)} did not fire: it cannot be done"]
        assert changed(before, rule(before, {}, "it cannot be done")) == why


@pytest.mark.parametrize(("rule", "on"), FOR_JOINS)
@pytest.mark.parametrize(
    ("below", "why"),
    [
        (KEPT, "joined keeps its rows, as kept"),
        (replace(SEEN, table=KEPT), "joined keeps its rows, as kept"),
        (HELD, "joined is held back"),
        (replace(SEEN, table=HELD), "joined is held back"),
    ],
)
def test_a_join_whose_rows_are_wanted_is_resolved(rule: Rule, on: Callable[[Node], Node], below: Node, why: str) -> None:
    assert rule(on(below), {}).rules[-1].why_not == why
    assert rule(on(below), {}, "it cannot be done").rules[-1].why_not == why


@pytest.mark.parametrize(("rule", "on"), FOR_JOINS[1:])
def test_a_join_that_sends_fewer_updates_than_its_reader_is_resolved(rule: Rule, on: Callable[[Node], Node]) -> None:
    reader = replace(on(JOINED), emit="on-update")
    assert rule(reader, {}).rules[-1].why_not == "joined is on-change"
    assert fired(rule(replace(reader, **{reader.reads[0]: replace(JOINED, emit="on-update")}), {}), name_of(rule))
    of_a_star = answers_keep_what_is_read(replace(TOTALS, table=STAR, emit="on-update"), {})
    assert of_a_star.rules[-1].why_not == "star is on-change"


@pytest.mark.parametrize(("rule", "on"), FOR_JOINS)
@pytest.mark.parametrize("below", [ORDERS, LARGE, TOTALS, replace(SEEN, materialized="kept")])
def test_what_is_not_made_of_a_joins_rows_is_left_alone(rule: Rule, on: Callable[[Node], Node], below: Node) -> None:
    assert rule(on(below), {}) is not None
    assert rule(on(below), {}).rules == ()


@pytest.mark.parametrize(("rule", "on"), FOR_JOINS[1:])
def test_answers_are_read_as_rows_where_they_are_to_be_had(rule: Rule, on: Callable[[Node], Node]) -> None:
    for below in (JOINED, SEEN):
        assert rule(on(below), {}, "it is more than a field" if rule is not view_reads_answers else None).rules[-1].fired
    for below in (STAR, replace(SEEN, table=STAR)):
        assert rule(on(below), {}).rules[-1].why_not == "star is one with the join before it"


@pytest.mark.parametrize(("rule", "on"), FOR_JOINS[1:])
def test_answers_of_a_staged_join_are_taken_as_they_are_or_not_at_all(rule: Rule, on: Callable[[Node], Node]) -> None:
    assert rule(on(replace(SEEN, table=STAGED)), {}).rules[-1].why_not == "the join is staged"
    if rule is not view_reads_answers:
        assert rule(on(STAGED), {}).rules[-1].fired
        why = rule(on(STAGED), {}, "it is more than a field").rules[-1].why_not
        assert why == "the join is staged, and it is more than a field"


@pytest.mark.parametrize(
    ("rule", "node"),
    [
        (join_reads_answers, STAR),
        (optimizer.join_keeps_what_it_needs, JOINED),
        (answers_keep_what_is_read, WITH_REGION),
        (answers_keep_what_is_read, JOINED),
        (answers_keep_what_is_read, replace(TOTALS, table=replace(STAR, materialized="kept"))),
        (answers_keep_what_is_read, replace(TOTALS, table=replace(STAR, emit="periodic"))),
        (answers_keep_what_is_read, replace(TOTALS, table=replace(SEEN, table=STAR))),
        (answers_keep_what_is_read, join_reads_answers(replace(WITH_REGION, left=STAGED), {})),
        (optimizer.resolve_makes_rows, JOINED),
        (optimizer.resolve_makes_rows, SEEN),
        (optimizer.resolve_makes_rows, replace(STAR, joiner="left.n")),
    ],
)
def test_a_rule_leaves_alone_what_it_is_not_for(rule: Rule, node: Node) -> None:
    assert rule(node, {}) is node
    assert rule(node, {name_of(rule): "nobody wants it"}) is node
