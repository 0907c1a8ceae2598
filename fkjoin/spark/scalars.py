"""Spark expressions as Python functions, for folds that run where there is no JVM.

Spark parses and analyzes an expression: it finds the columns, inserts the casts, and says the type of every part.  What comes
out is a tree of known parts, each of which has a counterpart here; an expression with another part is refused by name.

*Law*: the function returns what Spark returns with ANSI mode on, nulls included; where Spark raises, it raises.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from fkjoin.errors import TopologyError

_REPLACED = ("Nvl", "Nvl2", "ArrayAppend", "ArrayPrepend", "ArraySize")
"""Kinds that Spark itself writes in terms of others."""

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_EXACT = Context(prec=80, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class Step:
    """An adder or subtractor of (key, value, aggregate) that is an expression over their columns."""

    part: Part
    key: tuple[str, ...]
    value: tuple[str, ...]
    plain: bool
    """The value is its one column."""

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        keys, values = (key,) if len(self.key) == 1 else key, (value,) if self.plain else value
        row = dict(zip(self.key, keys, strict=True)) | dict(zip(self.value, values, strict=True))
        return self.part({**row, AGGREGATE: aggregate})


AGGREGATE = "aggregate"
"""What the aggregate is called in expressions."""


@dataclass(frozen=True)
class Part:
    """A part of an expression: its kind, its type, what it is made of, and a constant, name or place."""

    kind: str
    of: DataType
    children: tuple[Part, ...] = ()
    given: Any = None

    def __call__(self, row: Mapping[str, Any]) -> Any:
        if self.kind == "Literal":
            return self.given
        if self.kind == "AttributeReference":
            return row[self.given]
        if self.kind in _LAZY:
            return _LAZY[self.kind](self, row)
        values = [child(row) for child in self.children]
        if self.kind in _WITH_NULLS:
            return _WITH_NULLS[self.kind](*values)
        if any(value is None for value in values):
            return None
        return _fitting(_STRICT[self.kind](self, *values), self.of)


def compiled(argument: str, column: Column, rows: DataFrame) -> Part:
    """The expression over ``rows``; ``TopologyError`` if a part of it has no counterpart here."""
    analyzed = rows.select(column)._jdf.queryExecution().analyzed()
    return _part(argument, analyzed.expressions().head())


def _part(argument: str, node: Any) -> Part:
    kind = node.getClass().getSimpleName()
    if kind in ("Alias", "ExprAlias"):
        return _part(argument, node.child())
    if (instead := replaced(node)) is not None:
        return _part(argument, instead)
    of = type_of(node)
    if isinstance(of, StringType) and of != StringType():
        raise TopologyError(
            f"{argument}: {node.sql()} is {of.simpleString()}, and is compared byte by byte here; cast it to string"
        )
    if kind == "Literal":
        return Part(kind, of, given=constant(argument, node, of))
    if kind == "AttributeReference":
        return Part(kind, of, given=node.name())
    listed = node.children()
    children = tuple(_part(argument, listed.apply(place)) for place in range(listed.size()))
    if kind not in {*_LAZY, *_WITH_NULLS, *_STRICT} or (kind == "Cast" and not _castable(children[0].of, of)):
        raise TopologyError(
            f"{argument}: {node.sql()} cannot be evaluated outside of the JVM ({kind}); give a Python callable, or put it "
            "into group_by(value=…)"
        )
    return Part(kind, of, children, node.ordinal() if kind == "GetStructField" else None)


def replaced(node: Any) -> Any:
    """What stands for a part of an analyzed expression that Spark itself writes in terms of others; None for other parts."""
    return node.replacement() if node.getClass().getSimpleName() in _REPLACED else None


def type_of(node: Any) -> DataType:
    """The type of a part of an analyzed expression."""
    field = {"name": "it", "type": json.loads(node.dataType().json()), "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]})[0].dataType


def constant(argument: str, node: Any, of: DataType) -> Any:
    """The value of a constant in an analyzed expression, of type ``of``; ``TopologyError`` if there is none for it here."""
    text = None if node.value() is None else str(node.value())
    if text is None:
        return None
    if isinstance(of, BooleanType):
        return text.lower() == "true"
    if type(of) in _BITS:
        return int(text)
    if isinstance(of, FloatType | DoubleType):
        return float(text)
    if isinstance(of, DecimalType):
        return Decimal(text)
    if isinstance(of, StringType):
        return text
    raise TopologyError(f"{argument}: a constant of type {of.simpleString()} cannot be used here; give a Python callable")


def _castable(before: DataType, after: DataType) -> bool:
    numbers = {*_BITS, FloatType, DoubleType, DecimalType, BooleanType}
    return before == after or {type(before), type(after)} <= numbers


def _fitting(value: Any, of: DataType) -> Any:
    """The value as its type has it; raises where Spark does."""
    if value is None:
        return None
    if (bits := _BITS.get(type(of))) is not None:
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ArithmeticError(f"{value} does not fit into {of.simpleString()}")
        return value
    if isinstance(of, FloatType):
        return float(np.float32(value))
    if isinstance(of, DecimalType):
        rounded = Decimal(value).quantize(Decimal(1).scaleb(-of.scale), context=_EXACT)
        if abs(rounded) >= Decimal(10) ** (of.precision - of.scale):
            raise ArithmeticError(f"{value} does not fit into {of.simpleString()}")
        return rounded
    return value


def _cast(part: Part, value: Any) -> Any:
    after = part.of
    if isinstance(after, BooleanType):
        return bool(value)
    if type(after) in _BITS:
        if isinstance(value, float) and not math.isfinite(value):
            raise ArithmeticError(f"{value} does not fit into {after.simpleString()}")
        return int(value)
    if isinstance(after, FloatType | DoubleType):
        return float(value)
    if isinstance(after, DecimalType) and not isinstance(value, Decimal):
        return Decimal(str(value)) if isinstance(value, float) else Decimal(int(value))
    return value


def _divide(part: Part, left: Any, right: Any) -> Any:
    if right == 0:
        raise ZeroDivisionError("division by zero; use try_divide or nullif")
    return _EXACT.divide(left, right) if isinstance(left, Decimal) else left / right


def _whole_quotient(part: Part, left: Any, right: Any) -> int:
    if right == 0:
        raise ZeroDivisionError("division by zero; use nullif")
    found = abs(int(left)) // abs(int(right))
    return found if (left < 0) == (right < 0) else -found


def _remainder(part: Part, left: Any, right: Any) -> Any:
    if right == 0:
        raise ZeroDivisionError("division by zero; use nullif")
    if isinstance(left, Decimal):
        return _EXACT.remainder(left, right)
    return math.fmod(left, right) if isinstance(left, float) else left - right * _whole_quotient(part, left, right)


def _order(value: Any) -> Any:
    """What values are compared by: not-a-number is greater than all numbers, and equal to itself; text by its bytes."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def _compared(test: Callable[[Any, Any], bool]) -> Callable[[Part, Any, Any], bool]:
    return lambda _, left, right: test(_order(left), _order(right))


def _case_when(part: Part, row: Mapping[str, Any]) -> Any:
    children = part.children
    for place in range(0, len(children) - 1, 2):
        if children[place](row) is True:
            return children[place + 1](row)
    return children[-1](row) if len(children) % 2 else None


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: bool | None, right: bool | None) -> bool | None:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def _among(pick: Callable[..., Any]) -> Callable[..., Any]:
    def picked(*values: Any) -> Any:
        there = [value for value in values if value is not None]
        return pick(there, key=_order) if there else None

    return picked


def _distinct(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


_LAZY: dict[str, Callable[[Part, Mapping[str, Any]], Any]] = {
    "If": lambda part, row: part.children[1 if part.children[0](row) is True else 2](row),
    "CaseWhen": _case_when,
    "Coalesce": lambda part, row: next((found for child in part.children if (found := child(row)) is not None), None),
}
"""Parts whose children are not all evaluated."""

_WITH_NULLS: dict[str, Callable[..., Any]] = {
    "And": _and,
    "Or": _or,
    "IsNull": lambda value: value is None,
    "IsNotNull": lambda value: value is not None,
    "EqualNullSafe": lambda left, right: _order(left) == _order(right),
    "Greatest": _among(max),
    "Least": _among(min),
    "CreateArray": lambda *items: list(items),
}
"""Parts that take nulls."""

_STRICT: dict[str, Callable[..., Any]] = {
    "Cast": _cast,
    "Add": lambda part, left, right: left + right if not isinstance(left, Decimal) else _EXACT.add(left, right),
    "Subtract": lambda part, left, right: left - right if not isinstance(left, Decimal) else _EXACT.subtract(left, right),
    "Multiply": lambda part, left, right: left * right if not isinstance(left, Decimal) else _EXACT.multiply(left, right),
    "Divide": _divide,
    "IntegralDivide": _whole_quotient,
    "Remainder": _remainder,
    "UnaryMinus": lambda part, value: -value,
    "UnaryPositive": lambda part, value: value,
    "Abs": lambda part, value: abs(value),
    "Not": lambda part, value: not value,
    "EqualTo": _compared(operator.eq),
    "LessThan": _compared(operator.lt),
    "LessThanOrEqual": _compared(operator.le),
    "GreaterThan": _compared(operator.gt),
    "GreaterThanOrEqual": _compared(operator.ge),
    "Concat": lambda part, *parts: functools.reduce(operator.add, parts),
    "Length": lambda part, value: len(value),
    "Size": lambda part, value: len(value),
    "GetStructField": lambda part, value: [*(value.values() if isinstance(value, dict) else value)][part.given],
    "ArrayUnion": lambda part, left, right: _distinct([*left, *right]),
    "ArrayExcept": lambda part, left, right: _distinct([item for item in left if item not in right]),
    "ArrayIntersect": lambda part, left, right: _distinct([item for item in left if item in right]),
    "ArrayDistinct": lambda part, items: _distinct(items),
    "ArrayRemove": lambda part, items, item: [one for one in items if one != item],
    "ArrayContains": lambda part, items, item: True if item in items else None if None in items else False,
}
"""Parts that are null as soon as one of their children is."""
