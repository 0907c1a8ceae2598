"""Aggregate functions for ``Table.group_by(…).agg(…)``.

Each takes a column: a name, SQL text or Column over the rows of the grouped table. Nulls in the
column are left out, as in SQL.

Examples
--------
>>> from fkjoin import aggregates as agg
>>> grouped = orders.group_by("customer_id")
>>> totals = grouped.agg(orders=agg.count(), revenue=agg.sum("amount"))
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
        The column; without it, or with ``"*"``, all rows count.

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
    """Add up a column, exactly: a sum of doubles is rounded once, when it is read.

    A sum that does not fit its type stops the query.

    Parameters
    ----------
    column : str or Column
        A column of numbers.

    Returns
    -------
    Wanted
        A ``bigint`` for whole numbers, a ``double`` for floats and doubles, and for
        ``decimal(p, s)`` a ``decimal(p + 10, s)``.

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
        A ``double``; for ``decimal(p, s)`` a ``decimal(p + 4, s + 4)``.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(mean=agg.avg("amount"))
    """
    return Wanted("avg", column)


def min(column: Expression) -> Wanted:  # noqa: A001  (as in SQL)
    """Find the least value of a column; when its row leaves the group, the next value follows.

    Parameters
    ----------
    column : str or Column
        A column of numbers, text (compared by its bytes), booleans, dates or timestamps.

    Returns
    -------
    Wanted
        A value of the column's type.

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
        A column of numbers, text (compared by its bytes), booleans, dates or timestamps.

    Returns
    -------
    Wanted
        A value of the column's type.

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
        A column of any type without maps. 0.0 equals -0.0, and not-a-number equals itself.

    Returns
    -------
    Wanted
        A ``bigint``.

    Examples
    --------
    >>> grouped = orders.group_by("customer_id")
    >>> table = grouped.agg(amounts=agg.count_distinct("amount"))
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
        Columns that order the values, nulls first. Where they are equal, the values decide. By
        default the key of the rows.
    descending : bool, default False
        Whether to order from the greatest value down, with nulls last.

    Returns
    -------
    Wanted
        An array of values of the column's type; empty without values.

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
        A column of any type without maps. 0.0 equals -0.0, and not-a-number equals itself.

    Returns
    -------
    Wanted
        An array of values of the column's type; empty without values.

    Examples
    --------
    >>> grouped = orders.group_by("customer_id")
    >>> table = grouped.agg(amounts=agg.collect_set("amount"))
    """
    return Wanted("collect_set", column)


def string_agg(
    column: Expression,
    delimiter: str = "",
    *,
    order_by: Expressions | None = None,
    descending: bool = False,
) -> Wanted:
    """Join the texts of a column to one text.

    Parameters
    ----------
    column : str or Column
        A column of text, or of bytes.
    delimiter : str, default ""
        The text between two values.
    order_by : str, Column, or list of them, optional
        Columns that order the values, nulls first. Where they are equal, the values decide. By
        default the key of the rows.
    descending : bool, default False
        Whether to order from the greatest value down, with nulls last.

    Returns
    -------
    Wanted
        A value of the column's type; null without values.

    Raises
    ------
    TopologyError
        If the delimiter is not a text.

    Examples
    --------
    >>> grouped = orders.group_by("customer_id")
    >>> table = grouped.agg(orders=agg.string_agg("order_id", ", "))
    """
    if not isinstance(delimiter, str):
        raise TopologyError(f"delimiter: a text is needed, such as ', ', not {delimiter!r}")
    return Wanted("string_agg", column, _order(order_by), descending, delimiter=delimiter)


def min_by(column: Expression, ord: Expression, k: int | None = None) -> Wanted:
    """Find the value of a column in the row in which another column is least.

    Parameters
    ----------
    column : str or Column
        A column of any type; ``struct(*)`` is the whole row. Of rows with equal ``ord``, the row
        with the least value counts.
    ord : str or Column
        A column of numbers, text, booleans, dates or timestamps. Rows in which it is null do not
        count.
    k : int, optional
        The number of values to return as an array, the least ``ord`` first. By default one value,
        without an array.

    Returns
    -------
    Wanted
        A value of the column's type; with ``k`` an array of such values.

    Raises
    ------
    TopologyError
        If ``k`` is not a whole number from 1 to 100000.

    Examples
    --------
    >>> grouped = orders.group_by("customer_id")
    >>> table = grouped.agg(cheapest=agg.min_by("order_id", "amount"))
    """
    return Wanted("min_by", column, (ord,), k=_number(k))


def max_by(column: Expression, ord: Expression, k: int | None = None) -> Wanted:
    """Find the value of a column in the row in which another column is greatest.

    Parameters
    ----------
    column : str or Column
        A column of any type; ``struct(*)`` is the whole row. Of rows with equal ``ord``, the row
        with the least value counts.
    ord : str or Column
        A column of numbers, text, booleans, dates or timestamps. Rows in which it is null do not
        count.
    k : int, optional
        The number of values to return as an array, the greatest ``ord`` first. By default one
        value, without an array.

    Returns
    -------
    Wanted
        A value of the column's type; with ``k`` an array of such values.

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
