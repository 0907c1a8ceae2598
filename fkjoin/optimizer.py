"""Rules that change what runs and not what comes out; each can be switched off, and ``describe()`` says what became of it.

``spark.fkjoin.optimize=false`` switches all of them off, ``spark.fkjoin.optimizer.excludedRules`` those that it names, with
commas between them.  A checkpoint is of one choice: a rule moves state from one operator to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fkjoin.errors import SessionError, nearest
from fkjoin.spark.settings import EXCLUDED, optimized
from fkjoin.topology import Join, Node, Verdict, periodic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


AGGREGATE_READS_ANSWERS = "aggregate-reads-answers"
"""An aggregate of fields of a join's rows reads the join's answers: regroup in place of resolve."""
VIEW_READS_ANSWERS = "view-reads-answers"
"""What ``filter`` and ``map_values`` make of a join goes to a sink through one resolve in place of two."""
RULES = (AGGREGATE_READS_ANSWERS, VIEW_READS_ANSWERS)


def decide(spark: SparkSession, rule: str, table: Node, obstacle: str | None) -> Verdict | None:
    """Whether the rule fires for what is made of ``table``, and why not; None if it is not for such tables.

    ``obstacle``: what else is in the way.
    """
    if not isinstance(table, Join):
        return None
    if not optimized(spark):
        why: str | None = "spark.fkjoin.optimize is false"
    elif rule in _excluded(spark):
        why = f"{EXCLUDED} names it"
    elif table.materialized is not None:
        why = f"{table.name} keeps its rows, as {table.materialized}"
    elif periodic(table):
        why = f"{table.name} is held back"
    else:
        why = obstacle
    return Verdict(rule, why)


def _excluded(spark: SparkSession) -> list[str]:
    names = [name.strip() for name in (spark.conf.get(EXCLUDED, "") or "").split(",") if name.strip()]
    for name in names:
        if name not in RULES:
            raise SessionError(f"{EXCLUDED}: there is no rule {name!r}; {nearest(name, RULES)}")
    return names
