"""Expressions over columns of Arrow, and steps of tables that are made of them: no rows, and no Spark, are needed for them.

``spark.vectorized`` makes them of Spark's expressions.

*Law*: a column is what Spark returns with ANSI mode on, nulls included; where Spark raises, it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import bools


@dataclass(frozen=True)
class Vector:
    """A part of an expression: its kind, its type, what it is made of, and a constant or a name."""

    kind: str
    of: pa.DataType
    children: tuple[Vector, ...] = ()
    given: Any = None

    def __call__(self, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
        """Of so many ``rows``, with their columns by lower-case name."""
        found = self._found(columns)
        return pa.repeat(found, rows) if isinstance(found, pa.Scalar) else found

    @property
    def can_raise(self) -> bool:
        return self.kind in RAISING or any(child.can_raise for child in self.children)

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
        return KERNELS[self.kind](self, *(child._found(columns) for child in self.children))


@dataclass(frozen=True)
class Where:
    """The rows for which a condition holds; null does not."""

    condition: Vector
    what: str = ""
    """The operator whose condition it is."""


@dataclass(frozen=True)
class Columns:
    """Rows of these columns, by their names."""

    columns: tuple[tuple[str, Vector], ...]
    what: str = ""
    """The operator whose columns they are."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, one.of) for name, one in self.columns])

    def __call__(self, visible: Mapping[str, pa.Array], gone: pa.BooleanArray) -> pa.StructArray:
        """Of ``visible`` columns, by lower-case name; what can raise is null where the row is ``gone``."""
        if not self.columns:
            return pa.repeat(pa.scalar({}, pa.struct([])), len(gone))
        with named(self.what):
            made = [_of_rows_there(one, visible, gone) for _, one in self.columns]
        return pa.StructArray.from_arrays(made, [name for name, _ in self.columns])


class EvaluationError(ArithmeticError):
    """What an operator's expression throws; the error itself is its cause."""

    def __init__(self, what: str, error: ArithmeticError) -> None:
        super().__init__(f"{what}: {error}")
        self.what = what


@contextmanager
def named(what: str) -> Iterator[None]:
    """What is thrown within says which operator it is of."""
    try:
        yield
    except ArithmeticError as error:
        raise EvaluationError(what, error) from error


Steps = tuple[Where | Columns, ...]


def taken(
    steps: Steps, key: pa.StructArray, row: pa.StructArray, gone: pa.BooleanArray
) -> tuple[pa.StructArray, pa.BooleanArray]:
    """Rows after steps, and which of them are gone; those are null."""
    gone = pc.or_(gone, pc.is_null(row))
    row = without(row, gone)
    for step in steps:
        if isinstance(step, Where):
            with named(step.what):
                stays = pc.fill_null(_of_rows_there(step.condition, visible(key, row, gone), gone), False)
            gone = pc.or_(gone, pc.invert(stays))
        else:
            row = step(visible(key, row, gone), gone)
        row = without(row, gone)
    return row, gone


def _of_rows_there(expression: Vector, visible: Mapping[str, pa.Array], gone: pa.BooleanArray) -> pa.Array:
    """The expression's column; one that can raise is evaluated for the rows that are there, and null for the others.

    An expression may raise on nulls, and a row that is gone has nothing else.
    """
    if not expression.can_raise or not pc.any(gone).as_py():
        return expression(visible, len(gone))
    places = np.flatnonzero(~bools(gone))
    if not len(places):
        return pa.nulls(len(gone), expression.of)
    found = expression({name: visible[name].take(pa.array(places)) for name in expression.reads}, len(places))
    back = np.zeros(len(gone), np.int64)
    back[places] = np.arange(len(places))
    return found.take(pa.array(back, mask=bools(gone)))


def throwing(evaluate: Callable[[int, int], object], rows: int) -> dict[int, ArithmeticError]:
    """The rows on which ``evaluate`` throws, and what; it is given the first of some rows, and how many they are.

    What throws on some rows is asked for each half of them.
    """
    found: dict[int, ArithmeticError] = {}
    pieces = [(0, rows)] if rows else []
    while pieces:
        first, count = pieces.pop()
        try:
            evaluate(first, count)
        except ArithmeticError as error:
            if count == 1:
                found[first] = error
            else:
                pieces += [(first, count // 2), (first + count // 2, count - count // 2)]
    return found


def visible(key: pa.StructArray, row: pa.StructArray, gone: pa.BooleanArray) -> dict[str, pa.Array]:
    """The columns that expressions are over: the row's, and those of the key that it lacks; null where the row is gone."""
    found: dict[str, pa.Array] = {}
    for struct in (without(key, gone), row):
        found |= {field.name.lower(): column for field, column in zip(struct.type, struct.flatten(), strict=True)}
    return found


def without(rows: pa.StructArray, gone: pa.BooleanArray) -> pa.StructArray:
    """The rows, null where they are gone."""
    if not pc.any(gone).as_py():
        return rows
    mask = pc.or_(gone, pc.is_null(rows))
    return pa.StructArray.from_arrays(rows.flatten(), fields=list(rows.type), mask=mask)


def _compared(kernel: Callable[..., Any], first: Callable[[Any, Any], Any] | None) -> Callable[..., Any]:
    """``first``: what holds of numbers that are none (they are greater than all others, and equal to each other)."""

    def compare(part: Vector, left: Any, right: Any) -> Any:
        found = kernel(left, right)
        if first is None or not pa.types.is_floating(part.children[0].of):
            return found
        return pc.or_(found, first(pc.is_nan(left), pc.is_nan(right)))

    return compare


def _same(part: Vector, left: Any, right: Any) -> Any:
    """Whether both are equal, or both are null."""
    equal = pc.fill_null(KERNELS["EqualTo"](part, left, right), False)
    return pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))


def _among(part: Vector, value: Any, *_: Any) -> Any:
    wanted = pa.array([child.given for child in part.children[1:]], part.children[0].of)
    return pc.if_else(pc.is_valid(value), pc.is_in(value, value_set=wanted), None)


def _calculated(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Of whole numbers, one that raises."""

    def calculate(part: Vector, left: Any, right: Any) -> Any:
        try:
            return kernel(left, right)
        except pa.ArrowInvalid as error:
            raise ArithmeticError(f"{error} of {part.of}: a result does not fit; cast to a wider type") from error

    return calculate


def _divided(part: Vector, left: Any, right: Any) -> Any:
    if pc.any(pc.and_(pc.is_valid(left), pc.equal(right, 0))).as_py():
        raise ZeroDivisionError("division by zero; use try_divide or nullif")
    return pc.divide(left, right)


def _case_when(part: Vector, *found: Any) -> Any:
    pairs, otherwise = len(found) // 2, found[-1] if len(found) % 2 else pa.scalar(None, part.of)
    for place in reversed(range(pairs)):
        otherwise = pc.if_else(pc.fill_null(found[2 * place], False), found[2 * place + 1], otherwise)
    return otherwise


KERNELS: dict[str, Callable[..., Any]] = {
    "GetStructField": lambda part, value: pc.struct_field(value, [part.given]),  # alone, a text may be a path
    "Cast": lambda part, value: pc.cast(value, part.of, safe=False),
    "And": lambda part, left, right: pc.and_kleene(left, right),
    "Or": lambda part, left, right: pc.or_kleene(left, right),
    "Not": lambda part, value: pc.invert(value),
    "IsNull": lambda part, value: pc.is_null(value),
    "IsNotNull": lambda part, value: pc.is_valid(value),
    "Coalesce": lambda part, *values: pc.coalesce(*values),
    "If": _case_when,
    "CaseWhen": _case_when,
    "EqualTo": _compared(pc.equal, pc.and_),
    "EqualNullSafe": _same,
    "LessThan": _compared(pc.less, lambda left, right: pc.and_(pc.invert(left), right)),
    "LessThanOrEqual": _compared(pc.less_equal, lambda left, right: pc.or_(right, pc.and_(left, right))),
    "GreaterThan": _compared(pc.greater, lambda left, right: pc.and_(left, pc.invert(right))),
    "GreaterThanOrEqual": _compared(pc.greater_equal, lambda left, right: pc.or_(left, pc.and_(left, right))),
    "In": _among,
    "Add": _calculated(pc.add_checked),
    "Subtract": _calculated(pc.subtract_checked),
    "Multiply": _calculated(pc.multiply_checked),
    "Divide": _divided,
    "UnaryMinus": lambda part, value: pc.negate(value),
    "Like": lambda part, value, pattern: pc.match_like(value, part.children[1].given),
    "Concat": lambda part, *texts: pc.binary_join_element_wise(*texts, "", null_handling="emit_null"),
}

RAISING = ("Add", "Subtract", "Multiply", "Divide")
LAZY = ("And", "Or", "Coalesce", "If", "CaseWhen")
