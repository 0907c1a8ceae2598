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
    of: pa.DataType
    children: tuple[Part, ...] = ()
    given: Any = None

    def __call__(self, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
        """Evaluate so many ``rows``, with their columns by lower-case name."""
        found = self._found(columns)
        return pa.repeat(found, rows) if isinstance(found, pa.Scalar) else found

    def of_row(self, row: Mapping[str, Any]) -> Any:
        """Evaluate one row, with Python's values by lower-case name."""
        if self.kind == "Literal":
            return self.given
        if self.kind == "AttributeReference":
            return row[self.given]
        operation = OPERATIONS[self.kind]
        assert operation.row is not None
        if operation.lazy:
            return operation.row(self, row)
        values: dict[int, Any] = {}
        for place in _order(self):
            values[place] = self.children[place].of_row(row)
            if values[place] is None and not operation.nulls and self.kind != "Concat":
                return None  # Spark does not evaluate the others, which may raise
        if not operation.nulls and None in values.values():
            return None
        return scalars.fitting(
            operation.row(self, *(values[place] for place in sorted(values))), self.of
        )

    @property
    def can_raise(self) -> bool:
        """Tell whether evaluating columns may raise."""
        own = self.kind in OPERATIONS and OPERATIONS[self.kind].raises
        return own or any(child.can_raise for child in self.children)

    @property
    def reads(self) -> set[str]:
        """The columns that are read."""
        below = set[str]().union(*(child.reads for child in self.children))
        return below | {self.given} if self.kind == "AttributeReference" else below

    def _found(self, columns: Mapping[str, pa.Array]) -> Any:
        if self.kind == "Literal":
            return pa.scalar(self.given, self.of)
        if self.kind == "AttributeReference":
            return columns[self.given]
        kernel = OPERATIONS[self.kind].column
        assert kernel is not None
        return kernel(self, *self._operands(columns))

    def _operands(self, columns: Mapping[str, pa.Array]) -> list[Any]:
        """Evaluate the children; where the first of two is null, Spark does not evaluate the other, which may raise."""
        operation = OPERATIONS[self.kind]
        if len(self.children) != 2 or operation.lazy or operation.nulls or self.kind == "Concat":
            return [child._found(columns) for child in self.children]
        first, second = _order(self)
        found = {first: self.children[first]._found(columns)}
        other, there = self.children[second], pc.is_valid(found[first])
        if other.can_raise and isinstance(there, pa.Array):
            found[second] = where(other, columns, there)
        else:
            found[second] = other._found(columns)
        return [found[0], found[1]]


def _order(part: Part) -> Iterable[int]:
    """Return the places of the children in the order in which Spark evaluates them: a divisor comes first."""
    places = range(len(part.children))
    return reversed(places) if part.kind in ("Divide", "IntegralDivide", "Remainder") else places


def where(part: Part, columns: Mapping[str, pa.Array], there: pa.BooleanArray) -> pa.Array:
    """Evaluate a part for the rows that are ``there``; the others are null, and cannot make it raise."""
    places = np.flatnonzero(bools(there))
    if len(places) == len(there):
        return part(columns, len(there))
    if not len(places):
        return pa.nulls(len(there), part.of)
    found = part({name: columns[name].take(pa.array(places)) for name in part.reads}, len(places))
    back = np.zeros(len(there), np.int64)
    back[places] = np.arange(len(places))
    return found.take(pa.array(back, mask=~bools(there)))


def _anything(part: Part) -> bool:
    return True


@dataclass(frozen=True)
class Evaluators:
    """The functions that evaluate a kind of part; each takes the part, and what its children are."""

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
    return lambda part: any(getattr(pa.types, f"is_{kind}")(part.of) for kind in kinds)


_text, _floating, _number = _typed("string"), _typed("floating"), _typed("floating", "integer")
_simple = _typed("integer", "floating", "boolean", "string", "date32", "timestamp", "decimal")


def _comparable(part: Part) -> bool:
    first = part.children[0]
    return all(child.of == first.of for child in part.children) and _simple(first)


def _listed(part: Part) -> bool:
    constants = all(
        child.kind == "Literal" and child.given is not None for child in part.children[1:]
    )
    return constants and _comparable(part) and not _floating(part.children[0])


def _pattern(part: Part) -> bool:
    value, pattern = part.children
    constant = pattern.kind == "Literal" and isinstance(pattern.given, str)
    return constant and _text(value) and "\\" not in pattern.given


def _widens(part: Part) -> bool:
    """Tell whether a cast cannot fail, since the type has room for all values."""
    (child,), of = part.children, part.of
    before, whole = child.of, pa.types.is_integer(child.of)
    wider = whole and pa.types.is_integer(of) and of.bit_width > before.bit_width
    decimal = pa.types.is_decimal(before) and pa.types.is_decimal(of)
    longer = (
        decimal
        and of.scale >= before.scale
        and of.precision - of.scale >= before.precision - before.scale
    )
    to_floating = pa.types.is_floating(of) and (whole or before == pa.float32())
    return child.kind != "Literal" and (wider or longer or to_floating)


def _comparison(
    kernel: Callable[..., Any], none: Callable[..., Any], test: Callable[..., bool]
) -> Evaluators:
    """Make a comparison; ``none``: what holds of numbers that are none (greater than all others, and equal to each other)."""

    def compare(part: Part, left: Any, right: Any) -> Any:
        found = kernel(left, right)
        return (
            pc.or_(found, none(pc.is_nan(left), pc.is_nan(right)))
            if _floating(part.children[0])
            else found
        )

    return Evaluators(compare, scalars.compared(test), _comparable)


_EQUAL = _comparison(pc.equal, pc.and_, operator.eq)


def _same(part: Part, *both: Any) -> Any:
    """Tell where both are equal, or both are null."""
    equal = pc.fill_null(_EQUAL.column(part, *both), False)  # type: ignore[misc]
    return pc.or_(equal, pc.and_(*map(pc.is_null, both)))


def _among(part: Part, value: Any, *_: Any) -> Any:
    wanted = pa.array([child.given for child in part.children[1:]], part.children[0].of)
    return pc.if_else(pc.is_valid(value), pc.is_in(value, value_set=wanted), None)


def _calculated(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Make a calculation that raises where a whole number does not fit."""

    def calculate(part: Part, left: Any, right: Any) -> Any:
        try:
            return kernel(left, right)
        except pa.ArrowInvalid as error:
            raise ArithmeticError(
                f"{error} of {part.of}: a result does not fit; cast to a wider type"
            ) from error

    return calculate


def _divided(part: Part, left: Any, right: Any) -> Any:
    if pc.any(pc.and_(pc.is_valid(left), pc.equal(right, 0))).as_py():
        raise ZeroDivisionError("division by zero; use try_divide or nullif")
    return pc.divide(left, right)


def _by_case(part: Part, *found: Any) -> Any:
    pairs, otherwise = len(found) // 2, found[-1] if len(found) % 2 else pa.scalar(None, part.of)
    for place in reversed(range(pairs)):
        otherwise = pc.if_else(
            pc.fill_null(found[2 * place], False), found[2 * place + 1], otherwise
        )
    return otherwise


OPERATIONS: dict[str, Evaluators] = {
    "GetStructField": Evaluators(
        lambda part, value: pc.struct_field(value, [part.given]),  # alone, a text may be a path
        scalars.field,
    ),
    "Cast": Evaluators(
        lambda part, value: pc.cast(value, part.of, safe=False), scalars.cast, _widens
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
        lambda part, value, _: pc.match_like(value, part.children[1].given), takes=_pattern
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
