"""Rules that change what runs and not what comes out; each can be switched off, and ``describe()`` says what became of it.

``spark.fkjoin.optimize=false`` switches all of them off, ``spark.fkjoin.optimizer.excludedRules`` those that it names, with
commas between them.  A checkpoint is of one choice: a rule moves state from one operator to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fkjoin.errors import SessionError, nearest
from fkjoin.rules import RULES
from fkjoin.spark.settings import EXCLUDED, optimized
from fkjoin.topology import Node, Verdict, join_below, periodic, shares_stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def decide(spark: SparkSession, rule: str, table: Node, obstacle: str | None) -> Verdict | None:
    """Whether the rule fires for what is made of ``table``, and why not; None if that is no join and no view of one.

    ``obstacle``: what else is in the way.
    """
    if (join := join_below(table)) is None:
        return None
    if (off := allowed(spark, rule)) is not None:
        why: str | None = off
    elif join.materialized is not None:
        why = f"{join.name} keeps its rows, as {join.materialized}"
    elif periodic(join):
        why = f"{join.name} is held back"
    else:
        why = obstacle
    return Verdict(rule, why)


def no_answers(table: Node, more: str | None = None) -> str:
    """Why the operator after the join that a table is, or is made of, cannot read its answers; ``more``: if it is staged."""
    join = join_below(table)
    if join is not None and shares_stages(join):
        return f"{join.name} is one with the join before it"
    return "the join is staged" + (f", and {more}" if more else "")


def allowed(spark: SparkSession, rule: str) -> str | None:
    """Why the session does not want the rule; None if it may fire."""
    if not optimized(spark):
        return "spark.fkjoin.optimize is false"
    return f"{EXCLUDED} names it" if rule in excluded(spark) else None


def excluded(spark: SparkSession) -> list[str]:
    """The rules that the session names; raises ``SessionError`` if there is no such rule."""
    names = [name.strip() for name in (spark.conf.get(EXCLUDED, "") or "").split(",") if name.strip()]
    for name in names:
        if name not in RULES:
            raise SessionError(f"{EXCLUDED}: there is no rule {name!r}; {nearest(name, RULES)}")
    return names
