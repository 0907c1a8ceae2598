"""What the rows of a group come to, for ``Table.group_by(…).agg(…)``.

>>> from fkjoin import aggregates as agg
>>> totals = joined.group_by("region").agg(orders=agg.count(), revenue=agg.sum("amount"))

Each takes a column: a name, SQL text or Column over the grouped table's rows.  Nulls in it are left out, as in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fkjoin.errors import TopologyError
from fkjoin.folds.bulk import bulk_column, collected_column, first_column, require_orders
from fkjoin.folds.fold import Aggregate, Kind
from fkjoin.spark.schemas import Expression, Expressions, listed, text

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


@dataclass(frozen=True)
class Wanted:
    """An aggregate and the column that it is of.

    Parameters
    ----------
    kind : str
        The aggregate: the name of one of this module's functions.
    column : str or Column, optional
        The column; if left out, the aggregate is of whole rows.
    order : tuple of str or Column, default ()
        The columns that order what is collected, or the one whose extreme counts.
    descending : bool, default False
        Order from the greatest down.
    k : int, optional
        The number of values that ``min_by`` and ``max_by`` list.
    delimiter : str, default ""
        The text between those of ``string_agg``.
    """

    kind: Kind
    column: Expression | None = None
    order: tuple[Expression, ...] = ()
    descending: bool = False
    k: int | None = None
    delimiter: str = ""

    @property
    def by_key(self) -> bool:
        """Tell whether what is collected is ordered by the key of the rows."""
        return self.kind in ("collect_list", "string_agg") and not self.order

    def __str__(self) -> str:
        """Write the aggregate as a job file has it."""
        given = "" if self.column is None else text(self.column)
        if self.kind in ("min_by", "max_by"):
            given = ", ".join([given, *map(text, self.order), *([] if self.k is None else [str(self.k)])])
        if self.delimiter:
            given += f", {self.delimiter!r}"
        call = f"{self.kind}({given})"
        if self.kind not in ("collect_list", "string_agg") or not self.order:
            return call
        way = " desc" if self.descending else ""
        return f"{call} within group (order by {', '.join(map(text, self.order))}{way})"


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
    >>> table = orders.group_by("customer_id").agg(products=agg.count_distinct("sku"))
    """
    return Wanted("count_distinct", column)


def collect_list(column: Expression, *, order_by: Expressions | None = None, descending: bool = False) -> Wanted:
    """List the values of a column, in an order that depends on nothing but the rows.

    Parameters
    ----------
    column : str or Column
        A column of any type.
    order_by : str, Column, or list of them, optional
        Columns that order the list, nulls first; where they are equal, the values do.  By default, the key of the rows.
    descending : bool, default False
        Order from the greatest down, nulls last.

    Returns
    -------
    Wanted
        An array of the column's type; without values an empty one.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(products=agg.collect_list("sku", order_by="ordered_at"))
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
    >>> table = orders.group_by("customer_id").agg(products=agg.collect_set("sku"))
    """
    return Wanted("collect_set", column)


def string_agg(
    column: Expression, delimiter: str = "", *, order_by: Expressions | None = None, descending: bool = False
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
    >>> table = orders.group_by("customer_id").agg(products=agg.string_agg("sku", ", "))
    """
    if not isinstance(delimiter, str):
        raise TopologyError(f"delimiter: a text is needed, such as ', ', not {delimiter!r}")
    return Wanted("string_agg", column, _order(order_by), descending, delimiter=delimiter)


def min_by(column: Expression, ord: Expression, k: int | None = None) -> Wanted:
    """Find the value of a column in the row in which another one is least.

    Parameters
    ----------
    column : str or Column
        A column of any type; ``struct(*)`` is the whole row.  Of rows with equal ``ord``, the one with the least value counts.
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
        If ``k`` is no whole number from 1 to 100000.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(first=agg.min_by("sku", "ordered_at"))
    """
    return Wanted("min_by", column, (ord,), k=_number(k))


def max_by(column: Expression, ord: Expression, k: int | None = None) -> Wanted:
    """Find the value of a column in the row in which another one is greatest; with ``k``, the values of so many rows.

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
        If ``k`` is no whole number from 1 to 100000.

    Examples
    --------
    >>> table = orders.group_by("customer_id").agg(largest=agg.max_by("struct(order_id, amount)", "amount", 3))
    """
    return Wanted("max_by", column, (ord,), k=_number(k))


def _order(given: Expressions | None) -> tuple[Expression, ...]:
    return () if given is None else tuple(listed(given))


def _number(k: int | None) -> int | None:
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= _MOST):
        raise TopologyError(f"k: a whole number from 1 to {_MOST} is needed, not {k!r}")
    return k


def column_of(title: str, wanted: Wanted, places: Mapping[str, int], key: Sequence[int], schema: pa.Schema) -> Aggregate:
    """Make the column of a result.

    Parameters
    ----------
    title : str
        Its name.
    wanted : Wanted
        The aggregate.
    places : mapping of str to int
        The places in ``schema`` of columns, by what the user calls them.
    key : sequence of int
        The places of the columns of the rows' key.
    schema : pyarrow.Schema
        The columns that rows contribute.

    Returns
    -------
    Aggregate

    Raises
    ------
    TopologyError
        If there is no such aggregate of the columns' types.

    Examples
    --------
    >>> made = column_of("n", count_distinct("sku"), {"sku": 0}, (), pa.schema([("v0", pa.string())]))
    """
    kind, given = wanted.kind, "" if wanted.column is None else text(wanted.column)
    place, order = places.get(str(wanted.column)), tuple(places[str(one)] for one in wanted.order)
    if place is None or kind not in ("collect_list", "collect_set", "string_agg", "min_by", "max_by"):
        return bulk_column(title, kind, place, schema, given)
    if kind in ("min_by", "max_by"):
        return first_column(title, kind, place, order[0], schema, text(wanted.order[0]), most=wanted.k)
    require_orders(kind, [text(one) for one in wanted.order], order, schema)
    how: Any = {"descending": wanted.descending, "delimiter": wanted.delimiter}
    return collected_column(title, kind, place, key if wanted.by_key else (*order, place), schema, given, **how)


def __dir__() -> list[str]:
    return __all__
