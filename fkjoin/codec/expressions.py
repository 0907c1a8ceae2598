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
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import scalars
from fkjoin.codec.arrays import bools


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
        return scalars.fitting(result, self.type)

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


def _anything(part: Part) -> bool:
    return True


@dataclass(frozen=True)
class Evaluators:
    """Functions that evaluate a kind of part; they take the part, and what its children are."""

    column: Callable[..., Any] | None = None
    """The function of columns or scalars of Arrow; None: there is none that does as Spark does."""
    row: Callable[..., Any] | None = None
    """The function of Python's values; None likewise."""
    takes: Callable[[Part], bool] = _anything
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
    return lambda part: any(getattr(pa.types, f"is_{kind}")(part.type) for kind in kinds)


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

    return Evaluators(compare, scalars.compared(test), _comparable)


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
        scalars.field,
    ),
    "Cast": Evaluators(
        lambda part, value: pc.cast(value, part.type, safe=False), scalars.cast, _widens
    ),
    "And": Evaluators(lambda _, *truths: pc.and_kleene(*truths), scalars.decided(False), lazy=True),
    "Or": Evaluators(lambda _, *truths: pc.or_kleene(*truths), scalars.decided(True), lazy=True),
    "Not": Evaluators(lambda _, truth: pc.invert(truth), lambda _, truth: not truth),
    "IsNull": Evaluators(
        lambda _, value: pc.is_null(value), lambda _, value: value is None, nulls=True
    ),
    "IsNotNull": Evaluators(
        lambda _, value: pc.is_valid(value), lambda _, value: value is not None, nulls=True
    ),
    "Coalesce": Evaluators(
        lambda _, *values: pc.coalesce(*values), scalars.first_not_null, lazy=True
    ),
    "If": Evaluators(_by_case, scalars.by_case, lazy=True),
    "CaseWhen": Evaluators(_by_case, scalars.by_case, lazy=True),
    "EqualTo": _EQUAL,
    "EqualNullSafe": Evaluators(_same, scalars.compared(operator.eq), _comparable, nulls=True),
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
    "Add": Evaluators(_calculated(pc.add_checked), scalars.added, _number, raises=True),
    "Subtract": Evaluators(
        _calculated(pc.subtract_checked), scalars.subtracted, _number, raises=True
    ),
    "Multiply": Evaluators(
        _calculated(pc.multiply_checked), scalars.multiplied, _number, raises=True
    ),
    "Divide": Evaluators(_divided, scalars.divided, _floating, raises=True),
    "IntegralDivide": Evaluators(row=scalars.whole_quotient),
    "Remainder": Evaluators(row=scalars.remainder),
    "UnaryMinus": Evaluators(lambda _, value: pc.negate(value), scalars.negated, _floating),
    "UnaryPositive": Evaluators(row=lambda _, value: value),
    "Abs": Evaluators(row=scalars.absolute),
    "Greatest": Evaluators(row=scalars.extreme(max), nulls=True),
    "Least": Evaluators(row=scalars.extreme(min), nulls=True),
    "Concat": Evaluators(
        lambda _, *texts: pc.binary_join_element_wise(*texts, "", null_handling="emit_null"),
        lambda _, *parts: functools.reduce(operator.add, parts),
        _text,
    ),
    "Length": Evaluators(row=lambda _, text: len(text)),
    "Size": Evaluators(row=lambda _, items: len(items)),
    "CreateArray": Evaluators(row=lambda _, *items: list(items), nulls=True),
    "ArrayUnion": Evaluators(row=lambda _, left, right: scalars.distinct([*left, *right])),
    "ArrayExcept": Evaluators(
        row=lambda _, left, right: scalars.distinct(
            item for item in left if not scalars.among(item, right)
        )
    ),
    "ArrayIntersect": Evaluators(
        row=lambda _, left, right: scalars.distinct(
            item for item in left if scalars.among(item, right)
        )
    ),
    "ArrayDistinct": Evaluators(row=lambda _, items: scalars.distinct(items)),
    "ArrayRemove": Evaluators(
        row=lambda _, items, gone: [item for item in items if not scalars.among(item, [gone])]
    ),
    "ArrayContains": Evaluators(row=scalars.contains),
}
"""By the kind of part, as Spark calls it."""
