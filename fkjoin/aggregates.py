"""What the rows of a group come to, for ``Table.group_by(…).agg(…)``.

>>> from fkjoin import aggregates as agg
>>> totals = joined.group_by("region").agg(orders=agg.count(), revenue=agg.sum("amount"))

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
    """An aggregate and the column that it is of.

    Parameters
    ----------
    kind : {"count", "sum", "avg", "min", "max"}
        The aggregate.
    column : str or Column, optional
        The column; if left out, the aggregate is of whole rows.
    """

    kind: Kind
    column: Expression | None = None


def count(column: Expression | None = None) -> Wanted:
    """Count the rows of a group, or those in which a column is not null.

    Parameters
    ----------
    column : str or Column, optional
        The column; if left out, or ``"*"``, all rows count.

    Returns
    -------
    Wanted
        A ``bigint``.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(orders=agg.count())
    """
    return Wanted("count", None if isinstance(column, str) and column.strip() == "*" else column)


def sum(column: Expression) -> Wanted:  # noqa: A001  (as in SQL)
    """Sum up a column, exactly: a sum of doubles is rounded once, when it is read.

    A sum that does not fit its type stops the query.

    Parameters
    ----------
    column : str or Column
        A column of numbers.

    Returns
    -------
    Wanted
        Of whole numbers ``bigint``, of floats and doubles ``double``, of ``decimal(p, s)`` ``decimal(p + 10, s)``.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(total=agg.sum("amount"))
    """
    return Wanted("sum", column)


def avg(column: Expression) -> Wanted:
    """Work out the exact mean of a column, rounded once.

    Parameters
    ----------
    column : str or Column
        A column of numbers.

    Returns
    -------
    Wanted
        A ``double``; of ``decimal(p, s)`` ``decimal(p + 4, s + 4)``.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(mean=agg.avg("amount"))
    """
    return Wanted("avg", column)


def min(column: Expression) -> Wanted:  # noqa: A001  (as in SQL)
    """Find the least value of a column; it may leave again.

    Parameters
    ----------
    column : str or Column
        A column of numbers, text (by its bytes), truth, dates or times.

    Returns
    -------
    Wanted
        Of the column's type.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(least=agg.min("amount"))
    """
    return Wanted("min", column)


def max(column: Expression) -> Wanted:  # noqa: A001  (as in SQL)
    """Find the greatest value of a column; not-a-number is greater than all numbers, as in Spark.

    Parameters
    ----------
    column : str or Column
        See ``min``.

    Returns
    -------
    Wanted
        Of the column's type.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(greatest=agg.max("amount"))
    """
    return Wanted("max", column)


def __dir__() -> list[str]:
    return __all__
