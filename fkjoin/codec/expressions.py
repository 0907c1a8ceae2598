"""Expressions of Spark's as trees of parts, evaluated where there is no JVM: over columns of Arrow,
or for one row.

``analysis.vectorize`` makes them of what Spark's analyzer says.  A table's rows are evaluated as
columns.  An adder or subtractor needs the aggregate that the row before has left, so it is
evaluated row by row; Arrow's kernels take about ten times as long for that as functions of Python's
values.

*Law*: both are what Spark returns with ANSI mode on, nulls included; where Spark raises, they
raise.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import bools, is_any


@dataclass(frozen=True)
class Part:
    """A part of an expression: its kind, its type, what it is made of, and a constant or a name."""

    kind: str
    type: pa.DataType
    children: tuple[Part, ...] = ()
    argument: Any = None

    def __call__(self, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
        """Evaluate so many ``rows``, with their columns by lower-case name."""
        column = self._evaluated(columns)
        return pa.repeat(column, rows) if isinstance(column, pa.Scalar) else column

    def of_row(self, row: Mapping[str, Any]) -> Any:
        """Evaluate one row, with Python's values by lower-case name."""
        if self.kind == "Literal":
            return self.argument
        if self.kind == "AttributeReference":
            return row[self.argument]
        operation = OPERATIONS[self.kind]
        assert operation.row is not None
        if operation.lazy:
            return operation.row(self, row)
        values: dict[int, Any] = {}
        for index in _order(self):
            values[index] = self.children[index].of_row(row)
            if values[index] is None and not operation.nulls and self.kind != "Concat":
                return None  # Spark does not evaluate the others, which may raise
        if not operation.nulls and None in values.values():
            return None
        result = operation.row(self, *(values[index] for index in sorted(values)))
        return _fitting(result, self.type)

    @property
    def can_raise(self) -> bool:
        """Tell whether evaluating columns may raise."""
        own = self.kind in OPERATIONS and OPERATIONS[self.kind].raises
        return own or any(child.can_raise for child in self.children)

    @property
    def reads(self) -> set[str]:
        """The columns that are read."""
        below = set[str]().union(*(child.reads for child in self.children))
        return below | {self.argument} if self.kind == "AttributeReference" else below

    def _evaluated(self, columns: Mapping[str, pa.Array]) -> Any:
        if self.kind == "Literal":
            return pa.scalar(self.argument, self.type)
        if self.kind == "AttributeReference":
            return columns[self.argument]
        kernel = OPERATIONS[self.kind].column
        assert kernel is not None
        return kernel(self, *self._operands(columns))

    def _operands(self, columns: Mapping[str, pa.Array]) -> list[Any]:
        """Evaluate the children."""
        operation = OPERATIONS[self.kind]
        if len(self.children) != 2 or operation.lazy or operation.nulls or self.kind == "Concat":
            return [child._evaluated(columns) for child in self.children]
        # Where the first of two is null, Spark does not evaluate the other.  If that can raise, it
        # is evaluated for the other rows only: else a query would fail that Spark runs.
        first, second = _order(self)
        operands = {first: self.children[first]._evaluated(columns)}
        other, known = self.children[second], pc.is_valid(operands[first])
        if other.can_raise and isinstance(known, pa.Array):
            operands[second] = where(other, columns, known)
        else:
            operands[second] = other._evaluated(columns)
        return [operands[0], operands[1]]


def _order(part: Part) -> Iterable[int]:
    """The indexes of the children as Spark evaluates them: a divisor comes first."""
    indexes = range(len(part.children))
    divides = part.kind in ("Divide", "IntegralDivide", "Remainder")
    return reversed(indexes) if divides else indexes


def where(part: Part, columns: Mapping[str, pa.Array], evaluated: pa.BooleanArray) -> pa.Array:
    """Evaluate a part for the ``evaluated`` rows; the others are null, and cannot make it raise."""
    rows = np.flatnonzero(bools(evaluated))
    if len(rows) == len(evaluated):
        return part(columns, len(evaluated))
    if not len(rows):
        return pa.nulls(len(evaluated), part.type)
    column = part({name: columns[name].take(pa.array(rows)) for name in part.reads}, len(rows))
    back = np.zeros(len(evaluated), np.int64)
    back[rows] = np.arange(len(rows))
    return column.take(pa.array(back, mask=~bools(evaluated)))


@dataclass(frozen=True)
class Evaluators:
    """Functions that evaluate a kind of part; they take the part, and what its children are."""

    column: Callable[..., Any] | None = None
    """The function of columns or scalars of Arrow; None: there is none that does as Spark does."""
    row: Callable[..., Any] | None = None
    """The function of Python's values; None likewise."""
    takes: Callable[[Part], bool] = lambda _: True
    """Test whether ``column`` does as Spark does for the types of a part."""
    nulls: bool = False
    """Nulls are given to ``row``; elsewhere one of them makes the result null."""
    lazy: bool = False
    """Spark does not evaluate all children.

    ``row`` gets the row, to do likewise; ``column`` needs some that cannot raise.
    """
    raises: bool = False
    """Errors may come from ``column``."""


def _typed(*kinds: str) -> Callable[[Part], bool]:
    return lambda part: is_any(part.type, *kinds)


_text, _floating, _number = _typed("string"), _typed("floating"), _typed("floating", "integer")
_simple = _typed("integer", "floating", "boolean", "string", "date32", "timestamp", "decimal")


def _comparable(part: Part) -> bool:
    first = part.children[0]
    return all(child.type == first.type for child in part.children) and _simple(first)


def _listed(part: Part) -> bool:
    listed = part.children[1:]
    constants = all(child.kind == "Literal" and child.argument is not None for child in listed)
    return constants and _comparable(part) and not _floating(part.children[0])


def _pattern(part: Part) -> bool:
    value, pattern = part.children
    constant = pattern.kind == "Literal" and isinstance(pattern.argument, str)
    return constant and _text(value) and "\\" not in pattern.argument


def _widens(part: Part) -> bool:
    """Tell whether a cast cannot fail, since the type has room for all values."""
    (child,), type_ = part.children, part.type
    before, whole = child.type, pa.types.is_integer(child.type)
    wider = whole and pa.types.is_integer(type_) and type_.bit_width > before.bit_width
    decimal = pa.types.is_decimal(before) and pa.types.is_decimal(type_)
    longer = (
        decimal
        and type_.scale >= before.scale
        and type_.precision - type_.scale >= before.precision - before.scale
    )
    to_floating = pa.types.is_floating(type_) and (whole or before == pa.float32())
    return child.kind != "Literal" and (wider or longer or to_floating)


# Spark's operations on Python's values, for expressions that are evaluated row by row.

_INTEGERS = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}
_BITS = {kind.id: (kind.bit_width, name) for kind, name in _INTEGERS.items()}
_FLOAT, _DECIMAL = pa.float32().id, pa.decimal128(1).id
_EXACT = Context(prec=80, rounding=ROUND_HALF_UP)


def _fitting(value: Any, type_: pa.DataType) -> Any:
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


def _member(part: Part, value: Any) -> Any:
    if isinstance(value, Mapping):
        return value[part.argument]
    return value[part.children[0].type.get_field_index(part.argument)]


def _row_cast(part: Part, value: Any) -> Any:
    after = part.type
    if pa.types.is_boolean(after):
        return bool(value)
    if pa.types.is_integer(after):
        if isinstance(value, float) and not math.isfinite(value):
            raise ArithmeticError(f"{value} does not fit into {_INTEGERS[after]}")
        return int(value)
    if after.id == _FLOAT and isinstance(value, int):
        return float(np.int64(value).astype(np.float32))  # rounded once
    if pa.types.is_floating(after):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None  # as Spark has it, also in ANSI mode
    if isinstance(value, Decimal):
        return value
    return Decimal(str(value)) if isinstance(value, float) else Decimal(int(value))


def _exactly(
    plain: Callable[[Any, Any], Any], exact: Callable[[Any, Any], Any], *, divides: bool = False
) -> Callable[..., Any]:
    """Make a calculation; ``exact``: for decimals; ``divides``: not by zero."""

    def calculate(_: Part, left: Any, right: Any) -> Any:
        if divides and right == 0:
            raise ZeroDivisionError("division by zero; write if(divisor = 0, null, …)")
        return exact(left, right) if isinstance(left, Decimal) else plain(left, right)

    return calculate


def _whole_quotient(left: Any, right: Any) -> int:
    quotient = abs(int(left)) // abs(int(right))
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: Any, right: Any) -> Any:
    # Spark's remainder has the sign of the dividend, Python's ``%`` the divisor's.
    if isinstance(left, float):
        return math.nan if math.isinf(left) else math.fmod(left, right)
    return left - right * _whole_quotient(left, right)


def _exact_quotient(left: Decimal, right: Decimal) -> int:
    return int(_EXACT.divide_int(left, right))


_added = _exactly(operator.add, _EXACT.add)
_subtracted = _exactly(operator.sub, _EXACT.subtract)
_multiplied = _exactly(operator.mul, _EXACT.multiply)
_quotient = _exactly(operator.truediv, _EXACT.divide, divides=True)


def _negated(_: Part, value: Any) -> Any:
    # ``-value`` would round to the 28 digits of Python's own context.
    return _EXACT.minus(value) if isinstance(value, Decimal) else -value


def _absolute(_: Part, value: Any) -> Any:
    return _EXACT.abs(value) if isinstance(value, Decimal) else abs(value)


def _rank(value: Any) -> Any:
    """The order of values: not-a-number is greatest, and equal to itself; text by its bytes.

    Arrays and structs are compared item by item; there a null is less than all values, and equal to
    itself.
    """
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return [(item is not None, _rank(item)) for item in value]
    return value.encode() if isinstance(value, str) else value


def _compared(test: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    return lambda _, left, right: test(_rank(left), _rank(right))


def _decided(by: bool) -> Callable[..., bool | None]:
    """Make ``and`` or ``or``; ``by``: the truth that decides alone; a null leaves it open."""

    def decide(part: Part, row: Mapping[str, Any]) -> bool | None:
        left, right = part.children
        first = left.of_row(row)
        if first is by or (second := right.of_row(row)) is by:
            return by
        return None if first is None or second is None else not by

    return decide


def _row_by_case(part: Part, row: Mapping[str, Any]) -> Any:
    children = part.children
    for index in range(0, len(children) - 1, 2):
        if children[index].of_row(row) is True:
            return children[index + 1].of_row(row)
    return children[-1].of_row(row) if len(children) % 2 else None


def _first_not_null(part: Part, row: Mapping[str, Any]) -> Any:
    values = (child.of_row(row) for child in part.children)
    return next((value for value in values if value is not None), None)


def _extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *values: pick(
        (value for value in values if value is not None), key=_rank, default=None
    )


def _distinct(items: Iterable[Any]) -> list[Any]:
    """The items, each once; they need not be hashable."""
    different: list[Any] = []
    for item in items:
        if not _has_equal(item, different):
            different.append(item)
    return different


def _has_equal(item: Any, items: Iterable[Any]) -> bool:
    """Tell whether one of the items is equal to that one; a null is to a null."""
    wanted = _rank(item)
    return any(_rank(other) == wanted for other in items)


def _contains(_: Part, items: list[Any], item: Any) -> bool | None:
    if _has_equal(item, items):
        return True
    return None if None in items else False


def _comparison(
    kernel: Callable[..., Any], none: Callable[..., Any], test: Callable[..., bool]
) -> Evaluators:
    """Make a comparison; ``none``: of what is not-a-number on the left and on the right."""

    # To Spark, not-a-number is greater than all numbers, and equal to itself; to Arrow, each
    # comparison with it is false.
    def compare(part: Part, left: Any, right: Any) -> Any:
        result = kernel(left, right)
        if not _floating(part.children[0]):
            return result
        return pc.or_(result, none(pc.is_nan(left), pc.is_nan(right)))

    return Evaluators(compare, _compared(test), _comparable)


_EQUAL = _comparison(pc.equal, pc.and_, operator.eq)


def _same(part: Part, *both: Any) -> Any:
    """Tell where both are equal, or both are null."""
    equal = pc.fill_null(_EQUAL.column(part, *both), False)  # type: ignore[misc]
    return pc.or_(equal, pc.and_(*map(pc.is_null, both)))


def _among(part: Part, value: Any, *_: Any) -> Any:
    wanted = pa.array([child.argument for child in part.children[1:]], part.children[0].type)
    return pc.if_else(pc.is_valid(value), pc.is_in(value, value_set=wanted), None)


def _calculated(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Make a calculation that raises where a whole number does not fit."""

    def calculate(part: Part, left: Any, right: Any) -> Any:
        try:
            return kernel(left, right)
        except pa.ArrowInvalid as error:
            raise ArithmeticError(
                f"{error} of {part.type}: a result does not fit; cast to a wider type"
            ) from error

    return calculate


def _divided(part: Part, left: Any, right: Any) -> Any:
    if pc.any(pc.and_(pc.is_valid(left), pc.equal(right, 0))).as_py():
        raise ZeroDivisionError("division by zero; use try_divide or nullif")
    return pc.divide(left, right)


def _of_operands(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an operation that its operands decide alone."""
    return lambda _, *operands: function(*operands)


def _by_case(part: Part, *operands: Any) -> Any:
    otherwise = operands[-1] if len(operands) % 2 else pa.scalar(None, part.type)
    pairs = zip(operands[0::2], operands[1::2], strict=False)
    # From the last case to the first: if several conditions hold, the first one counts.
    for condition, value in reversed(list(pairs)):
        otherwise = pc.if_else(pc.fill_null(condition, False), value, otherwise)
    return otherwise


OPERATIONS: dict[str, Evaluators] = {
    "GetStructField": Evaluators(
        lambda part, value: pc.struct_field(value, [part.argument]),  # alone, a text may be a path
        _member,
    ),
    "Cast": Evaluators(
        lambda part, value: pc.cast(value, part.type, safe=False), _row_cast, _widens
    ),
    "And": Evaluators(_of_operands(pc.and_kleene), _decided(False), lazy=True),
    "Or": Evaluators(_of_operands(pc.or_kleene), _decided(True), lazy=True),
    "Not": Evaluators(_of_operands(pc.invert), lambda _, truth: not truth),
    "IsNull": Evaluators(_of_operands(pc.is_null), lambda _, value: value is None, nulls=True),
    "IsNotNull": Evaluators(
        _of_operands(pc.is_valid), lambda _, value: value is not None, nulls=True
    ),
    "Coalesce": Evaluators(_of_operands(pc.coalesce), _first_not_null, lazy=True),
    "If": Evaluators(_by_case, _row_by_case, lazy=True),
    "CaseWhen": Evaluators(_by_case, _row_by_case, lazy=True),
    "EqualTo": _EQUAL,
    "EqualNullSafe": Evaluators(_same, _compared(operator.eq), _comparable, nulls=True),
    "LessThan": _comparison(
        pc.less, lambda left, right: pc.and_(pc.invert(left), right), operator.lt
    ),
    "LessThanOrEqual": _comparison(
        pc.less_equal, lambda left, right: pc.or_(right, pc.and_(left, right)), operator.le
    ),
    "GreaterThan": _comparison(
        pc.greater, lambda left, right: pc.and_(left, pc.invert(right)), operator.gt
    ),
    "GreaterThanOrEqual": _comparison(
        pc.greater_equal, lambda left, right: pc.or_(left, pc.and_(left, right)), operator.ge
    ),
    "In": Evaluators(_among, takes=_listed),
    "Like": Evaluators(
        lambda part, value, _: pc.match_like(value, part.children[1].argument), takes=_pattern
    ),
    "Add": Evaluators(_calculated(pc.add_checked), _added, _number, raises=True),
    "Subtract": Evaluators(_calculated(pc.subtract_checked), _subtracted, _number, raises=True),
    "Multiply": Evaluators(_calculated(pc.multiply_checked), _multiplied, _number, raises=True),
    "Divide": Evaluators(_divided, _quotient, _floating, raises=True),
    "IntegralDivide": Evaluators(row=_exactly(_whole_quotient, _exact_quotient, divides=True)),
    "Remainder": Evaluators(row=_exactly(_remainder, _EXACT.remainder, divides=True)),
    "UnaryMinus": Evaluators(_of_operands(pc.negate), _negated, _floating),
    "UnaryPositive": Evaluators(row=lambda _, value: value),
    "Abs": Evaluators(row=_absolute),
    "Greatest": Evaluators(row=_extreme(max), nulls=True),
    "Least": Evaluators(row=_extreme(min), nulls=True),
    "Concat": Evaluators(
        lambda _, *texts: pc.binary_join_element_wise(*texts, "", null_handling="emit_null"),
        lambda _, *parts: functools.reduce(operator.add, parts),
        _text,
    ),
    "Length": Evaluators(row=lambda _, text: len(text)),
    "Size": Evaluators(row=lambda _, items: len(items)),
    "CreateArray": Evaluators(row=lambda _, *items: list(items), nulls=True),
    "ArrayUnion": Evaluators(row=lambda _, left, right: _distinct([*left, *right])),
    "ArrayExcept": Evaluators(
        row=lambda _, left, right: _distinct(item for item in left if not _has_equal(item, right))
    ),
    "ArrayIntersect": Evaluators(
        row=lambda _, left, right: _distinct(item for item in left if _has_equal(item, right))
    ),
    "ArrayDistinct": Evaluators(row=_of_operands(_distinct)),
    "ArrayRemove": Evaluators(
        row=lambda _, items, gone: [item for item in items if not _has_equal(item, [gone])]
    ),
    "ArrayContains": Evaluators(row=_contains),
}
"""By the kind of part, as Spark calls it."""
