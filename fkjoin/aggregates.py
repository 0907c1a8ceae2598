"""What the rows of a group come to, for ``Table.group_by(…).agg(…)``.

>>> from fkjoin import aggregates as agg
>>> joined.group_by("region").agg(orders=agg.count(), revenue=agg.sum("amount"))

Each takes a column: a name, SQL text or Column over the grouped table's rows.  Nulls in it are left out, as in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fkjoin.folds.fold import Kind

if TYPE_CHECKING:
    from fkjoin.spark.schemas import Expression


__all__ = ["Wanted", "avg", "count", "max", "min", "sum"]


@dataclass(frozen=True)
class Wanted:
    """An aggregate and the column that it is of; None: of whole rows."""

    kind: Kind
    column: Expression | None = None


def count(column: Expression | None = None) -> Wanted:
    """How many rows the group has, as with ``"*"``; with a column, in how many of them it is not null (``bigint``)."""
    return Wanted("count", None if isinstance(column, str) and column.strip() == "*" else column)


def sum(column: Expression) -> Wanted:  # noqa: A001  (as in SQL)
    """Of whole numbers ``bigint``, of floats and doubles ``double``, of ``decimal(p, s)`` ``decimal(p + 10, s)``.

    Exact: a sum of doubles is rounded once, when it is read.  A sum that does not fit its type stops the query.
    """
    return Wanted("sum", column)


def avg(column: Expression) -> Wanted:
    """The exact mean, rounded once: ``double``, of ``decimal(p, s)`` ``decimal(p + 4, s + 4)``."""
    return Wanted("avg", column)


def min(column: Expression) -> Wanted:  # noqa: A001  (as in SQL)
    """The least number, text (by its bytes), truth, date or time; it may leave again."""
    return Wanted("min", column)


def max(column: Expression) -> Wanted:  # noqa: A001  (as in SQL)
    """The greatest; not-a-number is greater than all numbers, as in Spark."""
    return Wanted("max", column)


def __dir__() -> list[str]:
    return __all__
