"""Steps of tables that are made of expressions over columns of Arrow, without Spark."""

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
    operator: str = ""
    """The operator whose condition it is."""


@dataclass(frozen=True)
class Columns:
    """Rows of these columns, by their names."""

    columns: tuple[tuple[str, Part], ...]
    operator: str = ""
    """The operator whose columns they are."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, part.type) for name, part in self.columns])

    def __call__(self, visible: Mapping[str, pa.Array], gone: pa.BooleanArray) -> pa.StructArray:
        """Evaluate over ``visible`` columns, by lower-case name.

        What can raise is null where the row is ``gone``.
        """
        if not self.columns:
            return pa.repeat(pa.scalar({}, pa.struct([])), len(gone))
        with named(self.operator):
            columns = [_of_rows_there(part, visible, gone) for _, part in self.columns]
        return pa.StructArray.from_arrays(columns, [name for name, _ in self.columns])


class EvaluationError(ArithmeticError):
    """Error of an operator's expression; what it throws is the cause."""

    def __init__(self, operator: str, error: ArithmeticError) -> None:
        super().__init__(f"{operator}: {error}")
        self.operator = operator


@contextmanager
def named(operator: str) -> Iterator[None]:
    """Name the operator in what is thrown within."""
    try:
        yield
    except ArithmeticError as error:
        raise EvaluationError(operator, error) from error


Steps = tuple[Where | Columns, ...]


def taken(
    steps: Steps, key: pa.StructArray, row: pa.StructArray, gone: pa.BooleanArray
) -> tuple[pa.StructArray, pa.BooleanArray]:
    """Rows after steps, and which of them are gone; those are null."""
    gone = pc.or_(gone, pc.is_null(row))
    row = without(row, gone)
    for step in steps:
        if isinstance(step, Where):
            with named(step.operator):
                holds = _of_rows_there(step.condition, visible(key, row, gone), gone)
            gone = pc.or_(gone, pc.invert(pc.fill_null(holds, False)))
        else:
            row = step(visible(key, row, gone), gone)
        row = without(row, gone)
    return row, gone


def _of_rows_there(
    expression: Part, visible: Mapping[str, pa.Array], gone: pa.BooleanArray
) -> pa.Array:
    """The expression's column; one that can raise is null for rows that are gone.

    It may raise on nulls, and such a row has nothing else.
    """
    if not expression.can_raise or not pc.any(gone).as_py():
        return expression(visible, len(gone))
    return where(expression, visible, pc.invert(gone))


def throwing(evaluate: Callable[[int, int], object], rows: int) -> dict[int, ArithmeticError]:
    """The rows on which ``evaluate`` throws, and what; it takes the first row, and how many.

    What throws on some rows is asked for each half of them.
    """
    errors: dict[int, ArithmeticError] = {}
    pieces = [(0, rows)] if rows else []
    while pieces:
        first, count = pieces.pop()
        try:
            evaluate(first, count)
        except ArithmeticError as error:
            if count == 1:
                errors[first] = error
            else:
                pieces += [(first, count // 2), (first + count // 2, count - count // 2)]
    return errors


def visible(key: pa.StructArray, row: pa.StructArray, gone: pa.BooleanArray) -> dict[str, pa.Array]:
    """The columns that expressions are over: the row's, and the key's columns that it lacks.

    They are null where the row is gone.
    """
    columns: dict[str, pa.Array] = {}
    for struct in (without(key, gone), row):
        names = [field.name.lower() for field in struct.type]
        columns |= dict(zip(names, struct.flatten(), strict=True))
    return columns


def without(rows: pa.StructArray, gone: pa.BooleanArray) -> pa.StructArray:
    """The rows, null where they are gone."""
    if not pc.any(gone).as_py():
        return rows
    mask = pc.or_(gone, pc.is_null(rows))
    return pa.StructArray.from_arrays(rows.flatten(), fields=list(rows.type), mask=mask)
