"""The choice of the column that sums up what is wanted, by the type of its values."""

from __future__ import annotations

import pyarrow as pa

from fkjoin.errors import ColumnTypeError
from fkjoin.folds.extremes import Extreme, sortable
from fkjoin.folds.fold import Aggregate, Kind
from fkjoin.folds.sums import Count, DecimalSum, DoubleSum, WholeSum


def bulk_column(title: str, kind: Kind, place: int | None, schema: pa.Schema, text: str) -> Aggregate:
    """Make the column ``title``: a ``kind`` of aggregate of the ``place``-th column of ``schema``.

    ``text``: what the user calls that column.  Raises ``TopologyError`` when there is no such aggregate of that column's type.
    """
    if place is None:
        return Count(title)
    type_ = schema.field(place).type
    if kind == "count":
        return Count(title, place)
    if kind == "min" or kind == "max":
        if not sortable(type_):
            raise ColumnTypeError(f"{kind}: {text} is {type_}, which has no order here; cast it, or take a part of it")
        return Extreme(title, place, kind, type_)
    if pa.types.is_integer(type_):
        return WholeSum(title, place, kind)
    if pa.types.is_floating(type_):
        return DoubleSum(title, place, kind)
    if pa.types.is_decimal128(type_):
        return DecimalSum(title, place, kind, type_.precision, type_.scale)
    raise ColumnTypeError(f"{kind}: {text} is {type_}, a number is needed; cast it, for instance to decimal(20, 2)")
