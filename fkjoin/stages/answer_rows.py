"""Rows made of answers by expressions: of a joiner, ``filter``, ``map_values`` and an aggregate.

*Law*: they are what Spark's expressions make of the same answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import BYTES, bools, masked, narrowed
from fkjoin.codec.key_texts import key_text
from fkjoin.codec.messages import CHANGE, column, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.codec.vectors import Columns, EvaluationError, Steps, taken, throwing, visible
from fkjoin.errors import FkJoinError, set_aside, thrown_at
from fkjoin.stages import counters
from fkjoin.stages.contribute import Fields
from fkjoin.stages.join_rows import structs, with_value
from fkjoin.stages.regroup import contributions


class RowMaker(NamedTuple):
    """The expressions that make a row of both rows; without a joiner, it begins as both."""

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
    maker: RowMaker
    fail: bool = False
    """Throw at a row on which an expression throws; else such rows are left out."""

    def __call__(self, answers: pa.Table) -> Rows:
        matched = self.fields.matched(answers)
        gone = pa.array(~matched)
        sides = ("left", self.fields.left), ("right", self.fields.right)
        both = {
            side: structs(schema, masked(column(answers, side), matched)) for side, schema in sides
        }
        columns = KeyCodec(self.fields.key).decode(column(answers, "key"))
        key = pa.StructArray.from_arrays(columns, fields=list(self.fields.key))
        row = pa.StructArray.from_arrays(list(both.values()), list(both))
        if self.maker.joiner is not None:
            row = self.maker.joiner(both, gone)
        return Rows(key, *taken(self.maker.steps, key, row, gone))


@dataclass(frozen=True)
class MakesRows(ABC):
    """A maker of messages from answers."""

    rows: AnswerRows

    @abstractmethod
    def __call__(self, answers: pa.Table) -> pa.Table: ...


def usable(make: MakesRows, answers: pa.Table, count: counters.Counters, operator: str) -> pa.Table:
    """Make messages of ``ANSWER``; those on which an expression throws are left out and counted."""
    try:
        return make(answers)
    except ArithmeticError:

        def attempt(first: int, rows: int) -> pa.Table:
            return make(answers.slice(first, rows).combine_chunks())

        thrown = throwing(attempt, len(answers))
        if make.rows.fail:
            row, error = min(thrown.items())
            key = pa.array([answers.column("key")[row].as_py()], BYTES)
            columns = KeyCodec(make.rows.fields.key).decode(key)
            readable = pa.StructArray.from_arrays(columns, fields=list(make.rows.fields.key))
            raise FkJoinError(thrown_text(operator, readable[0].as_py(), error)) from error
        count.update(counters.commonest(map(str, thrown.values())))
        return make(answers.filter(without(len(answers), thrown)).combine_chunks())


def thrown_text(operator: str, key: object, error: Exception) -> str:
    """The message of an operator that is to fail."""
    if isinstance(error, EvaluationError) and isinstance(error.__cause__, Exception):
        operator, error = error.operator or operator, error.__cause__
    return f"{operator}, key {key_text(key)}: {thrown_at(error)}{set_aside('rows')}"


def without(rows: int, dropped: Iterable[int]) -> pa.BooleanArray:
    """Tell which of so many rows stay."""
    stays = np.ones(rows, bool)
    stays[list(dropped)] = False
    return pa.array(stays)


@dataclass(frozen=True)
class Joined(MakesRows):
    """The joined rows, for resolve."""

    schema: pa.Schema

    def __call__(self, answers: pa.Table) -> pa.Table:
        """Make ``JOINED`` of ``ANSWER``."""
        joined = self.rows(answers)
        rows = RowCodec(self.schema).encode(joined.row.flatten(), len(answers))
        return with_value(answers, masked(rows, ~bools(joined.gone)))


@dataclass(frozen=True)
class ContributeRows(MakesRows):
    """The rows' contributions to groups, for regroup."""

    group: Columns
    value: Columns

    def __call__(self, answers: pa.Table) -> pa.Table:
        """Make ``JOINED`` with contributions of ``ANSWER``."""
        joined = self.rows(answers)
        sides = self.group, self.value
        group, value = (side(joined.visible, joined.gone).flatten() for side in sides)
        has_row = ~bools(joined.gone)
        contributed = contributions(self.group.schema, group, self.value.schema, value, has_row)
        return with_value(answers, contributed)


@dataclass(frozen=True)
class CarryRows(MakesRows):
    """The rows as rows of the next join's left table, with their foreign keys."""

    foreign_key: Columns
    schema: pa.Schema
    """The columns that are kept of the rows."""

    def __call__(self, answers: pa.Table) -> pa.Table:
        """Make ``CHANGE`` of ``ANSWER``."""
        joined = self.rows(answers)
        alive, count = ~bools(joined.gone), len(answers)
        names = [field.name for field in joined.row.type]
        columns = dict(zip(names, joined.row.flatten(), strict=True))
        value = masked(RowCodec(self.schema).encode(narrowed(columns, self.schema), count), alive)
        named = self.foreign_key(joined.visible, joined.gone).flatten()
        foreign_key = KeyCodec(self.foreign_key.schema).encode(named, count)
        key, version, ts = (column(answers, name) for name in ("key", "version", "ts"))
        return table(CHANGE, key, foreign_key, value, version, ts)
