"""The optimizer: rules that change what runs and not what comes out.

A rule is a function from topology to topology.  It is given the operator that a topology ends in,
whose inputs have been through the rules, and returns it with a verdict.  The verdict decides which
stages the operator is made of, and ``describe()`` shows it.  An operator that the rule is not for
comes back unchanged.  Besides the topology a rule knows two things:

- ``off``: the rules that the session does not want, and why (``spark.settings.switched_off``);
- ``obstacle``: what stands in the way in the operator's expressions, which only Spark's analyzer
  can tell; else None.

``rules`` says what each rule is for.  A checkpoint is of one choice of those in ``rules.MOVING``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from fkjoin.plan import rules
from fkjoin.plan.base import ON_UPDATE, Node, periodic
from fkjoin.plan.nodes import (
    Aggregate,
    Join,
    KeyJoin,
    View,
    fired,
    join_below,
    reads_answers,
    shares_stages,
)
from fkjoin.plan.rules import Verdict

Off = Mapping[str, str]
N = TypeVar("N", bound=Node)
J = TypeVar("J", Join, KeyJoin)


def joins_share_stages(join: Join, off: Off, obstacle: str | None = None) -> Join:
    """A join of a join's rows is one with it: scatter, one subscription and gather for both."""
    return _of_join(join, join.left, rules.JOINS_SHARE_STAGES, off, obstacle)


def join_reads_answers(node: N, off: Off, obstacle: str | None = None) -> N:
    """The left rows of a join, or of ``with_children``, are a join's.

    Rekey is in the place of its resolve.  ``obstacle``: why the left rows, and their foreign keys,
    are not in the answers as they are.
    """
    if shares_stages(node):
        return node
    left = node.inputs[0]
    return _of_join(node, left, rules.JOIN_READS_ANSWERS, off, _no_answers(left, obstacle))


def aggregate_reads_answers(
    aggregate: Aggregate, off: Off, obstacle: str | None = None
) -> Aggregate:
    """An aggregate of a join's rows: regroup is in the place of the join's resolve.

    ``obstacle``: why groups and values are not in the answers as they are.
    """
    table, rule = aggregate.table, rules.AGGREGATE_READS_ANSWERS
    return _of_join(aggregate, table, rule, off, _no_answers(table, obstacle))


def view_reads_answers(view: View, off: Off, obstacle: str | None = None) -> View:
    """Put the resolve of a view of a join, on its way to a sink, in the place of the join's."""
    table, rule = view.table, rules.VIEW_READS_ANSWERS
    return _of_join(view, table, rule, off, obstacle or _no_rows(table))


def filter_goes_below_join(view: View, off: Off, obstacle: str | None = None) -> View:
    """Rows that a filter of a join's rows leaves out are gone before the join.

    ``obstacle``: why the condition cannot be evaluated there.
    """
    if not fired(view, rules.VIEW_READS_ANSWERS):
        obstacle = f"{rules.VIEW_READS_ANSWERS} did not fire"
    return _with(view, rules.FILTER_GOES_BELOW_JOIN, off, obstacle)


def join_keeps_what_it_needs(join: J, off: Off, obstacle: str | None = None) -> J:
    """Columns that the joiner does not read are left out before the first repartition."""
    if join.joiner is None:
        return join
    return _with(join, rules.JOIN_KEEPS_WHAT_IT_NEEDS, off, obstacle)


def answers_keep_what_is_read(node: N, off: Off, obstacle: str | None = None) -> N:
    """Leave out of the answers of a join, or of a multi-way join, what nothing reads."""
    table = node.inputs[0]
    join = join_below(table)
    if join is None or join.topics is not None:
        return node
    is_seen = join.materialized is not None or periodic(join)
    of_many = table is join and shares_stages(join) and not is_seen
    if not of_many and not reads_answers(node):
        return node
    if of_many and node.emit == ON_UPDATE:
        obstacle = f"{join.name} is {join.emit}"
    return _with(node, rules.ANSWERS_KEEP_WHAT_IS_READ, off, obstacle)


def resolve_makes_rows(node: N, off: Off, obstacle: str | None = None) -> N:
    """Resolve makes the rows out of answers, and Spark none before it."""
    joiner = isinstance(node, Join) and node.joiner is not None and not shares_stages(node)
    if not joiner and not (isinstance(node, View) and reads_answers(node)):
        return node
    return _with(node, rules.RESOLVE_MAKES_ROWS, off, obstacle)


def workers_evaluate_steps(node: N, off: Off, obstacle: str | None = None) -> N:
    """The workers that parse a source's rows evaluate what is made of them."""
    return _with(node, rules.WORKERS_EVALUATE_STEPS, off, obstacle)


def stages_share_an_operator(node: N, off: Off, obstacle: str | None = None) -> N:
    """Stages of one bucket that read one another run in one operator of Spark."""
    return _with(node, rules.STAGES_SHARE_AN_OPERATOR, off, obstacle)


def _with(node: N, rule: str, off: Off, obstacle: str | None) -> N:
    verdicts = (*node.rules, Verdict(rule, off.get(rule, obstacle)))
    ordered = sorted(verdicts, key=lambda verdict: rules.RULES.index(verdict.rule))
    return replace(node, rules=tuple(ordered))


def _of_join(node: N, table: Node, rule: str, off: Off, obstacle: str | None) -> N:
    """Add the verdict of a rule for readers of a join, whose rows nothing else must want."""
    join = join_below(table)
    if join is None:
        return node
    if join.materialized is not None:
        obstacle = f"{join.name} keeps its rows, as {join.materialized}"
    elif periodic(join):
        obstacle = f"{join.name} is held back"
    elif obstacle is None and node.emit == ON_UPDATE != join.emit:
        # Its resolve sends no change for an answer that changes no row.
        obstacle = f"{join.name} is {join.emit}"
    return _with(node, rule, off, obstacle)


def _no_rows(table: Node) -> str | None:
    """The reason why the rows of the join that a table is made of are not there before resolve."""
    join = join_below(table)
    if join is not None and shares_stages(join):
        return f"{join.name} is one with the join before it"
    return "the join is staged" if join is not None and join.topics is not None else None


def _no_answers(table: Node, obstacle: str | None) -> str | None:
    """Say why a join's answers cannot be taken; None if they can.

    ``obstacle``: why a staged join's answers are not enough.
    """
    why, join = _no_rows(table), join_below(table)
    if why is None or join is None or shares_stages(join):
        return why
    if obstacle is not None:
        return f"{why}, and {obstacle}"
    return None if table is join else why
