"""The choice of the column that sums up what is wanted, by the type of its values."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fkjoin.codec.rows import is_text
from fkjoin.errors import ColumnTypeError
from fkjoin.folds.extremes import Extreme, sortable
from fkjoin.folds.fold import AggregateColumn, AggregateKind
from fkjoin.folds.members import Collected, ColumnForm, DistinctCount, orderable
from fkjoin.folds.sums import Count, DecimalSum, DoubleSum, WholeSum


def bulk_column(
    title: str, kind: AggregateKind, index: int | None, schema: pa.Schema, text: str
) -> AggregateColumn:
    """Make the column ``title``: a ``kind`` of aggregate of the column ``index`` of ``schema``.

    ``text``: what the user calls that column.  Raises ``TopologyError`` when there is no such
    aggregate of that column's type.
    """
    if index is None:
        return Count(title)
    type_ = schema.field(index).type
    if kind == "count":
        return Count(title, index)
    if kind == "min" or kind == "max":
        _require_order(kind, text, type_, sortable(type_))
        return Extreme(title, index, kind, type_)
    if kind == "count_distinct":
        _require_equality(kind, text, type_)
        return DistinctCount(title, index, type_)
    if pa.types.is_integer(type_):
        return WholeSum(title, index, kind)  # type: ignore[arg-type]
    if pa.types.is_floating(type_):
        return DoubleSum(title, index, kind)  # type: ignore[arg-type]
    if pa.types.is_decimal128(type_):
        precision, scale = type_.precision, type_.scale
        return DecimalSum(title, index, kind, precision, scale)  # type: ignore[arg-type]
    raise ColumnTypeError(
        f"{kind}: {text} is {type_}, a number is needed; cast it, for instance to decimal(20, 2)"
    )


def collected_column(
    title: str,
    kind: AggregateKind,
    index: int,
    *,
    order: Sequence[int],
    schema: pa.Schema,
    text: str,
    descending: bool,
    delimiter: str,
) -> Collected:
    """Make the column ``title`` of a list, a set or a text of a column; see ``bulk_column``.

    ``order``: the columns by which its members are ordered; a set has an order of its own.
    """
    type_ = schema.field(index).type
    if kind == "collect_set":
        _require_equality(kind, text, type_)
        return Collected(title, index, ((index, False),), ColumnForm("set", type_), index)
    if kind == "string_agg" and not is_text(type_):
        raise ColumnTypeError(
            f"{kind}: {text} is {type_}, text or binary is needed; cast it to string"
        )
    directions = tuple((by, descending) for by in order)
    joined = ColumnForm("text", type_, delimiter)
    reading = joined if kind == "string_agg" else ColumnForm("list", type_)
    return Collected(title, index, directions, reading, index)


def first_column(
    title: str,
    kind: AggregateKind,
    index: int,
    *,
    by: int,
    schema: pa.Schema,
    text: str,
    most: int | None,
) -> Collected:
    """Make the column ``title`` of a column's values in the rows with the extremes of ``by``.

    ``most``: how many of them are listed; None: one, which is not a list.  ``text``: what the user
    calls ``by``.
    """
    _require_order(kind, text, schema.field(by).type, orderable(schema.field(by).type))
    type_ = schema.field(index).type
    single = ColumnForm("first", type_, most=1)
    reading = single if most is None else ColumnForm("list", type_, most=most)
    # Of rows with the same extreme the least value comes first: any fixed choice would do, but the
    # order of arrival is none.
    return Collected(title, index, ((by, kind == "max_by"), (index, False)), reading, by)


def require_orders(
    kind: AggregateKind, texts: Sequence[str], indexes: Sequence[int], schema: pa.Schema
) -> None:
    """Raise ``TopologyError`` if one of these columns cannot be an order.

    ``texts``: what the user calls them.
    """
    for text, index in zip(texts, indexes, strict=True):
        _require_order(kind, text, schema.field(index).type, orderable(schema.field(index).type))


def _require_order(kind: str, text: str, type_: pa.DataType, has_one: bool) -> None:
    if not has_one:
        raise ColumnTypeError(
            f"{kind}: {text} is {type_}, which has no order here; cast it, or take a part of it"
        )


def _require_equality(kind: str, text: str, type_: pa.DataType) -> None:
    if _has_map(type_):
        raise ColumnTypeError(
            f"{kind}: {text} is {type_}, and maps cannot be compared; write "
            "array_sort(map_entries(…))"
        )


def _has_map(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_has_map(field.type) for field in type_)
    return pa.types.is_map(type_) or (pa.types.is_list(type_) and _has_map(type_.value_type))
