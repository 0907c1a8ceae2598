"""Aggregates as they are asked for, and the columns of a result that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from fkjoin.folds.bulk import bulk_column, collected_column, first_column, require_orders
from fkjoin.folds.fold import AggregateColumn, AggregateKind
from fkjoin.spark.schemas import Expression, text

_ORDERED: tuple[AggregateKind, ...] = ("collect_list", "string_agg")
_FIRST: tuple[AggregateKind, ...] = ("min_by", "max_by")
_COLLECTED: tuple[AggregateKind, ...] = (*_ORDERED, "collect_set")


@dataclass(frozen=True)
class Wanted:
    """An aggregate and the column that it is of.

    Parameters
    ----------
    kind : str
        The aggregate: the name of a function of ``fkjoin.aggregates``.
    column : str or Column, optional
        The column; if left out, the aggregate is of whole rows.
    order : tuple of str or Column, default ()
        The columns that order what is collected, or the one whose extreme counts.
    descending : bool, default False
        Order from the greatest down.
    k : int, optional
        The number of values that ``min_by`` and ``max_by`` list.
    delimiter : str, default ""
        The text between the values of ``string_agg``.
    """

    kind: AggregateKind
    column: Expression | None = None
    order: tuple[Expression, ...] = ()
    descending: bool = False
    k: int | None = None
    delimiter: str = ""

    def __str__(self) -> str:
        """Write the aggregate as a job file has it."""
        arguments = "" if self.column is None else text(self.column)
        if self.kind in _FIRST:
            arguments = ", ".join(
                [arguments, *map(text, self.order), *([] if self.k is None else [str(self.k)])]
            )
        if self.delimiter:
            arguments += f", {self.delimiter!r}"
        call = f"{self.kind}({arguments})"
        if self.kind not in _ORDERED or not self.order:
            return call
        way = " desc" if self.descending else ""
        return f"{call} within group (order by {', '.join(map(text, self.order))}{way})"


def ordered_by_key(wanted: Wanted) -> bool:
    """Tell whether what is collected is ordered by the key of the rows."""
    return wanted.kind in _ORDERED and not wanted.order


def aggregate_column(
    title: str, wanted: Wanted, places: Mapping[str, int], key: Sequence[int], schema: pa.Schema
) -> AggregateColumn:
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
    AggregateColumn

    Raises
    ------
    TopologyError
        If there is no such aggregate of the columns' types.

    Examples
    --------
    >>> skus = pa.schema([("v0", pa.string())])
    >>> column = aggregate_column("n", count_distinct("sku"), {"sku": 0}, (), skus)
    """
    kind, argument = wanted.kind, "" if wanted.column is None else text(wanted.column)
    index = None if wanted.column is None else places.get(str(wanted.column))
    order = tuple(places[str(column)] for column in wanted.order)
    if index is None or kind not in (*_COLLECTED, *_FIRST):
        return bulk_column(title, kind, index, schema, argument)
    if kind in _FIRST:
        return first_column(
            title,
            kind,
            index,
            by=order[0],
            schema=schema,
            text=text(wanted.order[0]),
            most=wanted.k,
        )
    require_orders(kind, [text(column) for column in wanted.order], order, schema)
    return collected_column(
        title,
        kind,
        index,
        order=key if ordered_by_key(wanted) else (*order, index),
        schema=schema,
        text=argument,
        descending=wanted.descending,
        delimiter=wanted.delimiter,
    )
