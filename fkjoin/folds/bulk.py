"""Which column sums up what, by the type of what it is of."""

from __future__ import annotations

import pyarrow as pa

from fkjoin.errors import TopologyError
from fkjoin.folds.extremes import Extreme, sortable
from fkjoin.folds.fold import Aggregate, Kind
from fkjoin.folds.sums import Count, DecimalSum, DoubleSum, WholeSum


def bulk_column(title: str, kind: Kind, place: int | None, schema: pa.Schema, given: str) -> Aggregate:
    """The column ``title``: a ``kind`` of aggregate of the ``place``-th column of ``schema``, which the user ``given``.

    Raises ``TopologyError`` when there is no such aggregate of that column's type.
    """
    if place is None:
        return Count(title)
    of = schema.field(place).type
    if kind == "count":
        return Count(title, place)
    if kind == "min" or kind == "max":
        if not sortable(of):
            raise TopologyError(f"{kind}: {given} is {of}, which has no order here; cast it, or take a part of it")
        return Extreme(title, place, kind, of)
    if pa.types.is_integer(of):
        return WholeSum(title, place, kind)
    if pa.types.is_floating(of):
        return DoubleSum(title, place, kind)
    if pa.types.is_decimal128(of):
        return DecimalSum(title, place, kind, of.precision, of.scale)
    raise TopologyError(f"{kind}: {given} is {of}, a number is needed; cast it, for instance to decimal(20, 2)")
