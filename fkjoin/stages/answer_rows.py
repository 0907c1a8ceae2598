"""Rows made of answers by expressions: a joiner's, those of ``filter`` and ``map_values``, and what an aggregate is of.

*Law*: they are what Spark's expressions make of the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import BYTES, bools, masked, narrowed
from fkjoin.codec.messages import CHANGE, column, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.codec.vectors import Columns, EvaluationError, Steps, taken, throwing, visible
from fkjoin.errors import FkJoinError, set_aside
from fkjoin.stages import counters
from fkjoin.stages.contribute import Fields
from fkjoin.stages.counters import Counters
from fkjoin.stages.join_rows import structs, with_value
from fkjoin.stages.regroup import contributions


class Made(NamedTuple):
    """How rows are made of both rows; without a joiner, they are both."""

    joiner: Columns | None
    steps: Steps = ()


class Rows(NamedTuple):
    """Rows with their keys; those that are ``gone`` are null."""

    key: pa.StructArray
    row: pa.StructArray
    gone: pa.BooleanArray

    @property
    def visible(self) -> dict[str, pa.Array]:
        """The columns that expressions are over."""
        return visible(*self)


@dataclass(frozen=True)
class AnswerRows:
    """The rows that answers make."""

    fields: Fields
    made: Made
    fail: bool = False
    """Throw at a row on which an expression throws; else such rows are left out."""

    def __call__(self, answers: pa.Table) -> Rows:
        there = self.fields.there(answers)
        gone = pa.array(~there)
        sides = ("left", self.fields.left), ("right", self.fields.right)
        both = {side: structs(schema, masked(column(answers, side), there)) for side, schema in sides}
        named = KeyCodec(self.fields.key).decode(column(answers, "key"))
        key = pa.StructArray.from_arrays(named, fields=list(self.fields.key))
        row = pa.StructArray.from_arrays(list(both.values()), list(both))
        if self.made.joiner is not None:
            row = self.made.joiner(both, gone)
        return Rows(key, *taken(self.made.steps, key, row, gone))


class MakesRows(Protocol):
    """What makes messages of answers."""

    @property
    def rows(self) -> AnswerRows: ...

    def __call__(self, answers: pa.Table) -> pa.Table: ...


def usable(make: MakesRows, answers: pa.Table, count: Counters, operator: str) -> pa.Table:
    """What ``make`` makes of ``ANSWER``, without those on which an expression throws: they are counted."""
    try:
        return make(answers)
    except ArithmeticError:
        thrown = throwing(lambda first, rows: make(answers.slice(first, rows).combine_chunks()), len(answers))
        if make.rows.fail:
            place, error = min(thrown.items())
            key = pa.array([answers.column("key")[place].as_py()], BYTES)
            named = pa.StructArray.from_arrays(KeyCodec(make.rows.fields.key).decode(key), fields=list(make.rows.fields.key))
            raise FkJoinError(thrown_text(operator, named[0].as_py(), error)) from error
        count[counters.DEAD_LETTERS] += len(thrown)
        return make(answers.filter(without(len(answers), thrown)).combine_chunks())


def thrown_text(operator: str, key: object, error: Exception) -> str:
    """What an operator that is to fail says."""
    if isinstance(error, EvaluationError) and isinstance(error.__cause__, Exception):
        operator, error = error.what or operator, error.__cause__
    return f"{operator}, key {key}: {type(error).__name__}: {error}{set_aside('rows')}"


def without(rows: int, some: Iterable[int]) -> pa.BooleanArray:
    """Which rows are left."""
    left = np.ones(rows, bool)
    left[list(some)] = False
    return pa.array(left)


@dataclass(frozen=True)
class Joined:
    """The joined rows, for resolve."""

    rows: AnswerRows
    schema: pa.Schema

    def __call__(self, answers: pa.Table) -> pa.Table:
        """``ANSWER`` → ``JOINED``."""
        made = self.rows(answers)
        value = masked(RowCodec(self.schema).encode(made.row.flatten(), len(answers)), ~bools(made.gone))
        return with_value(answers, value)


@dataclass(frozen=True)
class ContributeRows:
    """What the rows contribute to groups, for regroup."""

    rows: AnswerRows
    group: Columns
    value: Columns

    def __call__(self, answers: pa.Table) -> pa.Table:
        """``ANSWER`` → ``JOINED`` with contributions."""
        made = self.rows(answers)
        group, value = (columns(made.visible, made.gone).flatten() for columns in (self.group, self.value))
        return with_value(answers, contributions(self.group.schema, group, self.value.schema, value, ~bools(made.gone)))


@dataclass(frozen=True)
class CarryRows:
    """The rows as those of the next join's left table, with their foreign keys."""

    rows: AnswerRows
    foreign_key: Columns
    schema: pa.Schema
    """What is kept of the rows."""

    def __call__(self, answers: pa.Table) -> pa.Table:
        """``ANSWER`` → ``CHANGE``."""
        made = self.rows(answers)
        alive, count = ~bools(made.gone), len(answers)
        columns = dict(zip((field.name for field in made.row.type), made.row.flatten(), strict=True))
        value = masked(RowCodec(self.schema).encode(narrowed(columns, self.schema), count), alive)
        named = KeyCodec(self.foreign_key.schema).encode(self.foreign_key(made.visible, made.gone).flatten(), count)
        return table(CHANGE, column(answers, "key"), named, value, column(answers, "version"), column(answers, "ts"))
