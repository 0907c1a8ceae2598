"""Spark's operations on Python's values, for expressions that are evaluated row by row."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa


class RowPart(Protocol):
    """A part of an expression, as these operations need it."""

    @property
    def type(self) -> pa.DataType: ...
    @property
    def children(self) -> Sequence[RowPart]: ...
    @property
    def argument(self) -> Any: ...
    def of_row(self, row: Mapping[str, Any]) -> Any: ...


_INTEGERS = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}
_BITS = {kind.id: (kind.bit_width, name) for kind, name in _INTEGERS.items()}
_FLOAT, _DECIMAL = pa.float32().id, pa.decimal128(1).id
_EXACT = Context(prec=80, rounding=ROUND_HALF_UP)


def fitting(value: Any, type_: pa.DataType) -> Any:
    """The value as its type has it; raises where Spark does."""
    if value is None:
        return None
    if (integer := _BITS.get(type_.id)) is not None:
        bits, name = integer
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ArithmeticError(f"{value} does not fit into {name}")
        return value
    if type_.id == _FLOAT:
        return float(np.float32(value))
    if type_.id == _DECIMAL:
        rounded = Decimal(value).quantize(Decimal(1).scaleb(-type_.scale), context=_EXACT)
        if abs(rounded) >= Decimal(10) ** (type_.precision - type_.scale):
            raise ArithmeticError(
                f"{value} does not fit into decimal({type_.precision},{type_.scale})"
            )
        return rounded
    return value


def field(part: RowPart, value: Any) -> Any:
    if isinstance(value, Mapping):
        return value[part.argument]
    return value[part.children[0].type.get_field_index(part.argument)]


def cast(part: RowPart, value: Any) -> Any:
    after = part.type
    if pa.types.is_boolean(after):
        return bool(value)
    if pa.types.is_integer(after):
        if isinstance(value, float) and not math.isfinite(value):
            raise ArithmeticError(f"{value} does not fit into {_INTEGERS[after]}")
        return int(value)
    if pa.types.is_floating(after):
        return float(value)
    if isinstance(value, Decimal):
        return value
    return Decimal(str(value)) if isinstance(value, float) else Decimal(int(value))


def _exactly(
    plain: Callable[[Any, Any], Any], exact: Callable[[Any, Any], Any]
) -> Callable[..., Any]:
    """Make a calculation; ``exact``: for decimals."""
    return lambda _, left, right: (
        exact(left, right) if isinstance(left, Decimal) else plain(left, right)
    )


added = _exactly(operator.add, _EXACT.add)
subtracted = _exactly(operator.sub, _EXACT.subtract)
multiplied = _exactly(operator.mul, _EXACT.multiply)


def negated(_: RowPart, value: Any) -> Any:
    # ``-value`` would round to the 28 digits of Python's own context.
    return _EXACT.minus(value) if isinstance(value, Decimal) else -value


def absolute(_: RowPart, value: Any) -> Any:
    return _EXACT.abs(value) if isinstance(value, Decimal) else abs(value)


def _require_divisor(value: Any) -> None:
    if value == 0:
        raise ZeroDivisionError("division by zero; write if(divisor = 0, null, …)")


def divided(part: RowPart, left: Any, right: Any) -> Any:
    _require_divisor(right)
    return _EXACT.divide(left, right) if isinstance(left, Decimal) else left / right


def whole_quotient(part: RowPart, left: Any, right: Any) -> int:
    _require_divisor(right)
    if isinstance(left, Decimal):
        return int(_EXACT.divide_int(left, right))
    quotient = abs(int(left)) // abs(int(right))
    return quotient if (left < 0) == (right < 0) else -quotient


def remainder(part: RowPart, left: Any, right: Any) -> Any:
    _require_divisor(right)
    if isinstance(left, Decimal):
        return _EXACT.remainder(left, right)
    # Spark's remainder has the sign of the dividend, Python's ``%`` the divisor's.
    if isinstance(left, float):
        return math.fmod(left, right)
    return left - right * whole_quotient(part, left, right)


def _order(value: Any) -> Any:
    """The order of values: not-a-number is greatest, and equal to itself; text by its bytes.

    Arrays and structs are compared item by item; there a null is less than all values, and equal to
    itself.
    """
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return [(item is not None, _order(item)) for item in value]
    return value.encode() if isinstance(value, str) else value


def compared(test: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    return lambda _, left, right: test(_order(left), _order(right))


def decided(by: bool) -> Callable[..., bool | None]:
    """Make ``and`` or ``or``; ``by``: the truth that decides alone; a null leaves it open."""

    def decide(part: RowPart, row: Mapping[str, Any]) -> bool | None:
        left, right = part.children
        first = left.of_row(row)
        if first is by or (second := right.of_row(row)) is by:
            return by
        return None if first is None or second is None else not by

    return decide


def by_case(part: RowPart, row: Mapping[str, Any]) -> Any:
    children = part.children
    for index in range(0, len(children) - 1, 2):
        if children[index].of_row(row) is True:
            return children[index + 1].of_row(row)
    return children[-1].of_row(row) if len(children) % 2 else None


def first_not_null(part: RowPart, row: Mapping[str, Any]) -> Any:
    values = (child.of_row(row) for child in part.children)
    return next((value for value in values if value is not None), None)


def extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *values: pick(
        (value for value in values if value is not None), key=_order, default=None
    )


def distinct(items: Iterable[Any]) -> list[Any]:
    """The items, each once; they need not be hashable."""
    different: list[Any] = []
    for item in items:
        if not among(item, different):
            different.append(item)
    return different


def among(item: Any, items: Iterable[Any]) -> bool:
    """Tell whether one of the items is equal to that one; a null is to a null."""
    wanted = _order(item)
    return any(_order(other) == wanted for other in items)


def contains(_: RowPart, items: list[Any], item: Any) -> bool | None:
    if among(item, items):
        return True
    return None if None in items else False
