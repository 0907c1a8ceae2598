"""Steps of tables that are made of expressions over columns of Arrow: no rows, and no Spark, are needed for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.expressions import Part, where


@dataclass(frozen=True)
class Where:
    """The rows for which a condition holds; null does not."""

    condition: Part
    what: str = ""
    """The operator whose condition it is."""


@dataclass(frozen=True)
class Columns:
    """Rows of these columns, by their names."""

    columns: tuple[tuple[str, Part], ...]
    what: str = ""
    """The operator whose columns they are."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, one.of) for name, one in self.columns])

    def __call__(self, visible: Mapping[str, pa.Array], gone: pa.BooleanArray) -> pa.StructArray:
        """Evaluate over ``visible`` columns, by lower-case name; what can raise is null where the row is ``gone``."""
        if not self.columns:
            return pa.repeat(pa.scalar({}, pa.struct([])), len(gone))
        with named(self.what):
            made = [_of_rows_there(one, visible, gone) for _, one in self.columns]
        return pa.StructArray.from_arrays(made, [name for name, _ in self.columns])


class EvaluationError(ArithmeticError):
    """Error of an operator's expression; what it throws is the cause."""

    def __init__(self, what: str, error: ArithmeticError) -> None:
        super().__init__(f"{what}: {error}")
        self.what = what


@contextmanager
def named(what: str) -> Iterator[None]:
    """Name the operator in what is thrown within."""
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
                stays = pc.fill_null(
                    _of_rows_there(step.condition, visible(key, row, gone), gone), False
                )
            gone = pc.or_(gone, pc.invert(stays))
        else:
            row = step(visible(key, row, gone), gone)
        row = without(row, gone)
    return row, gone


def _of_rows_there(
    expression: Part, visible: Mapping[str, pa.Array], gone: pa.BooleanArray
) -> pa.Array:
    """The expression's column; one that can raise is evaluated for the rows that are there, and
    null for the others.

    An expression may raise on nulls, and a row that is gone has nothing else.
    """
    if not expression.can_raise or not pc.any(gone).as_py():
        return expression(visible, len(gone))
    return where(expression, visible, pc.invert(gone))


def throwing(evaluate: Callable[[int, int], object], rows: int) -> dict[int, ArithmeticError]:
    """The rows on which ``evaluate`` throws, and what; it is given the first of some rows, and how
    many they are.

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
        found |= {
            field.name.lower(): column
            for field, column in zip(struct.type, struct.flatten(), strict=True)
        }
    return found


def without(rows: pa.StructArray, gone: pa.BooleanArray) -> pa.StructArray:
    """The rows, null where they are gone."""
    if not pc.any(gone).as_py():
        return rows
    mask = pc.or_(gone, pc.is_null(rows))
    return pa.StructArray.from_arrays(rows.flatten(), fields=list(rows.type), mask=mask)
