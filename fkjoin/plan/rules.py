"""The optimizer's rules, by name: each changes what runs and not what comes out."""

from __future__ import annotations

from dataclasses import dataclass

AGGREGATE_READS_ANSWERS = "aggregate-reads-answers"
"""An aggregate of a join's rows reads the join's answers: regroup in place of resolve."""
ANSWERS_KEEP_WHAT_IS_READ = "answers-keep-what-is-read"
"""A join whose answers are read leaves columns out that its reader does not name."""
FILTER_GOES_BELOW_JOIN = "filter-goes-below-join"
"""A filter of a join's rows that reads one table alone leaves out that table's rows."""
JOIN_KEEPS_WHAT_IT_NEEDS = "join-keeps-what-it-needs"
"""Columns that a joiner does not read are left out before the first repartition and all stores."""
JOIN_READS_ANSWERS = "join-reads-answers"
"""A join whose left rows are a join's reads their answers: rekey in place of resolve."""
JOINS_SHARE_STAGES = "joins-share-stages"
"""Joins in a row by foreign keys of the first left table become one multi-way join."""
RESOLVE_MAKES_ROWS = "resolve-makes-rows"
"""Resolve applies joiners, and steps of views: answers do not become rows of Spark's before it."""
SINKS_SHARE_A_QUERY = "sinks-share-a-query"
"""A job's sinks of one table are one query, which works a batch out once and writes it to all."""
STAGES_SHARE_AN_OPERATOR = "stages-share-an-operator"
"""Stages of one bucket that read one another run in one operator: nothing is shuffled between."""
VIEW_READS_ANSWERS = "view-reads-answers"
"""A view of a join (``filter``, ``map_values``) goes to a sink through one resolve, not two."""
WORKERS_EVALUATE_STEPS = "workers-evaluate-steps"
"""The workers that parse a source evaluate its ``filter`` and ``map_values``.

They also evaluate what its rows contribute to an aggregate.
"""

RULES = (
    JOINS_SHARE_STAGES,
    JOIN_READS_ANSWERS,
    AGGREGATE_READS_ANSWERS,
    VIEW_READS_ANSWERS,
    FILTER_GOES_BELOW_JOIN,
    ANSWERS_KEEP_WHAT_IS_READ,
    JOIN_KEEPS_WHAT_IT_NEEDS,
    RESOLVE_MAKES_ROWS,
    WORKERS_EVALUATE_STEPS,
    STAGES_SHARE_AN_OPERATOR,
    SINKS_SHARE_A_QUERY,
)
"""The rules, in the order in which ``describe()`` names them."""
_EITHER_WAY = FILTER_GOES_BELOW_JOIN, RESOLVE_MAKES_ROWS, SINKS_SHARE_A_QUERY
MOVING = tuple(rule for rule in RULES if rule not in _EITHER_WAY)
"""Rules that move state, or change what is read: a checkpoint keeps its first choice."""
READING = (AGGREGATE_READS_ANSWERS, JOIN_READS_ANSWERS, VIEW_READS_ANSWERS)
"""Rules that put another stage in the place of a join's resolve."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of an optimizer rule."""

    rule: str
    why_not: str | None = None
    """None: it fired."""

    @property
    def fired(self) -> bool:
        return self.why_not is None

    def __str__(self) -> str:
        outcome = "fired" if self.why_not is None else f"did not fire: {self.why_not}"
        return f"{self.rule} {outcome}"
