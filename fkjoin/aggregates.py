"""Aggregate functions for ``Table.group_by(…).agg(…)``.

Each takes a column: a name, SQL text or Column over the grouped table's rows.  Nulls in it are left
out, as in SQL.

Examples
--------
>>> from fkjoin import aggregates as agg
>>> totals = joined.group_by("region").agg(orders=agg.count(), revenue=agg.sum("amount"))
"""

from __future__ import annotations

from fkjoin.analysis.wanted import Wanted
from fkjoin.errors import TopologyError
from fkjoin.spark.schemas import Expression, Expressions, listed

__all__ = [
    "Wanted",
    "avg",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "max",
    "max_by",
    "min",
    "min_by",
    "string_agg",
    "sum",
]

_MOST = 100_000
"""The greatest ``k``, as Spark has it."""


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
        Of whole numbers ``bigint``, of floats and doubles ``double``, of ``decimal(p, s)``
        ``decimal(p + 10, s)``.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(total=agg.sum("amount"))
    """
    return Wanted("sum", column)


def avg(column: Expression) -> Wanted:
    """Compute the exact mean of a column, rounded once.

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
    """Find the least value of a column; when its row leaves the group, the next one follows.

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


def count_distinct(column: Expression) -> Wanted:
    """Count the different values of a column.

    Parameters
    ----------
    column : str or Column
        A column of any type without maps; 0.0 equals -0.0, and not-a-number itself.

    Returns
    -------
    Wanted
        A ``bigint``.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(amounts=agg.count_distinct("amount"))
    """
    return Wanted("count_distinct", column)


def collect_list(
    column: Expression, *, order_by: Expressions | None = None, descending: bool = False
) -> Wanted:
    """List the values of a column, in an order that depends on nothing but the rows.

    Parameters
    ----------
    column : str or Column
        A column of any type.
    order_by : str, Column, or list of them, optional
        Columns that order the list, nulls first; where they are equal, the values do.  By default,
        the key of the rows.
    descending : bool, default False
        Order from the greatest down, nulls last.

    Returns
    -------
    Wanted
        An array of the column's type; without values an empty one.

    Examples
    --------
    >>> amounts = agg.collect_list("amount", order_by="order_id")
    >>> table = orders.group_by("customer_id").agg(amounts=amounts)
    """
    return Wanted("collect_list", column, _order(order_by), descending)


def collect_set(column: Expression) -> Wanted:
    """List the different values of a column, the least first.

    Parameters
    ----------
    column : str or Column
        See ``count_distinct``.

    Returns
    -------
    Wanted
        An array of the column's type; without values an empty one.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(amounts=agg.collect_set("amount"))
    """
    return Wanted("collect_set", column)


def string_agg(
    column: Expression,
    delimiter: str = "",
    *,
    order_by: Expressions | None = None,
    descending: bool = False,
) -> Wanted:
    """Put the texts of a column one behind the other.

    Parameters
    ----------
    column : str or Column
        A column of text, or of bytes.
    delimiter : str, default ""
        The text between them.
    order_by, descending
        See ``collect_list``.

    Returns
    -------
    Wanted
        Of the column's type; null without values.

    Raises
    ------
    TopologyError
        If the delimiter is no text.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(orders=agg.string_agg("order_id", ", "))
    """
    if not isinstance(delimiter, str):
        raise TopologyError(f"delimiter: a text is needed, such as ', ', not {delimiter!r}")
    return Wanted("string_agg", column, _order(order_by), descending, delimiter=delimiter)


def min_by(column: Expression, ord: Expression, k: int | None = None) -> Wanted:
    """Find the value of a column in the row in which another one is least.

    Parameters
    ----------
    column : str or Column
        A column of any type; ``struct(*)`` is the whole row.  Of rows with equal ``ord``, the one
        with the least value counts.
    ord : str or Column
        A column of numbers, text, truth, dates or times.  Rows in which it is null do not count.
    k : int, optional
        Make an array of so many values, those of the least ``ord`` first.

    Returns
    -------
    Wanted
        Of the column's type, or an array of it.

    Raises
    ------
    TopologyError
        If ``k`` is not a whole number from 1 to 100000.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(cheapest=agg.min_by("order_id", "amount"))
    """
    return Wanted("min_by", column, (ord,), k=_number(k))


def max_by(column: Expression, ord: Expression, k: int | None = None) -> Wanted:
    """Find a column's value in the row where another one is greatest; with ``k``, of so many.

    Parameters
    ----------
    column, ord, k
        See ``min_by``; the greatest ``ord`` comes first.

    Returns
    -------
    Wanted
        Of the column's type, or an array of it.

    Raises
    ------
    TopologyError
        If ``k`` is not a whole number from 1 to 100000.

    Examples
    --------
    >>> largest = agg.max_by("struct(order_id, amount)", "amount", 3)
    >>> table = orders.group_by("customer_id").agg(largest=largest)
    """
    return Wanted("max_by", column, (ord,), k=_number(k))


def _order(order_by: Expressions | None) -> tuple[Expression, ...]:
    return () if order_by is None else tuple(listed(order_by))


def _number(k: int | None) -> int | None:
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= _MOST):
        raise TopologyError(f"k: a whole number from 1 to {_MOST} is needed, not {k!r}")
    return k


def __dir__() -> list[str]:
    return __all__
