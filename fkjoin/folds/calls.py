"""A user's own initializer, adder and subtractor, called for each contribution that changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from fkjoin.codec.arrays import Bytes
from fkjoin.codec.expressions import Part
from fkjoin.codec.key_texts import key_text
from fkjoin.codec.rows import KeyCodec
from fkjoin.errors import FkJoinError, thrown_at
from fkjoin.folds.fold import AggregateColumn, FoldSteps

_Row = Callable[[Mapping[str, Any]], Any]
"""Make of columns by name what the user's functions get as a row."""


@dataclass(frozen=True)
class Called(AggregateColumn):
    """A column that the user's functions make.

    ``adder`` and ``subtractor`` take (key, value, aggregate) and return the aggregate; None is "no
    result".  ``initializer`` makes the aggregate of a group that has none.  What is kept has the
    type ``returns``; the functions get it as the type that the initializer makes (a set stays a
    set).
    """

    name: str
    returns: pa.DataType
    key: pa.Schema
    value: pa.Schema
    plain: bool
    """The value is its one column, not a row of columns."""
    initializer: Callable[[], Any]
    adder: Callable[[Any, Any, Any], Any]
    subtractor: Callable[[Any, Any, Any], Any]
    row: _Row = dict

    @property
    def result(self) -> pa.Field:
        return pa.field(self.name, self.returns)

    @property
    def state(self) -> list[pa.Field]:
        return [self.result]

    def fold(self, state: list[pa.Array], steps: FoldSteps, number: int) -> list[pa.Array]:
        keys = self._keys(steps.keys)
        shape = type(self.initializer())
        aggregates = [self._shaped(stored, shape) for stored in state[0].to_pylist()]
        old, new = (self._values(side, len(steps.group)) for side in (steps.old, steps.new))
        changes = zip(steps.group.tolist(), steps.had, steps.has, old, new, strict=True)
        for group, had, has, before, after in changes:
            aggregate = aggregates[group]
            if had:
                aggregate = self._next("subtractor", keys[group], before, aggregate)
            if has:
                aggregate = self._next("adder", keys[group], after, aggregate)
            aggregates[group] = aggregate
        return [self._stored(aggregates, keys)]

    def _next(
        self, name: Literal["adder", "subtractor"], key: Any, value: Any, aggregate: Any
    ) -> Any:
        """Call one of the functions; the error says where in it something was thrown."""
        function = self.adder if name == "adder" else self.subtractor
        try:
            return function(key, value, self.initializer() if aggregate is None else aggregate)
        except Exception as error:
            raise FkJoinError(
                f"{self.name} of group {key_text(key)}: {name}: {thrown_at(error)}"
            ) from error

    def _stored(self, aggregates: list[Any], keys: list[Any]) -> pa.Array:
        """Put the aggregates into their type; the error names the first that is not of it."""
        try:
            return pa.array([_storable(aggregate) for aggregate in aggregates], self.returns)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for key, aggregate in zip(keys, aggregates, strict=True):
                try:
                    pa.array([_storable(aggregate)], self.returns)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    raise FkJoinError(
                        f"{self.name} of group {key_text(key)}: adder or subtractor returned "
                        f"{aggregate!r}, which is not of type {self.returns}; let the function "
                        f"return that type, or give returns=… ({error})"
                    ) from error
            raise

    def _keys(self, keys: Bytes) -> list[Any]:
        columns = [column.to_pylist() for column in KeyCodec(self.key).decode(keys)]
        return columns[0] if len(columns) == 1 else self._rows(self.key, columns)

    def _values(self, columns: Sequence[pa.Array], rows: int) -> list[Any]:
        if not columns:
            return [None] * rows
        listed = [column.to_pylist() for column in columns]
        return listed[0] if self.plain else self._rows(self.value, listed)

    def _shaped(self, stored: Any, shape: type) -> Any:
        """Make of a stored aggregate what the functions get."""
        if stored is None:
            return None
        if pa.types.is_struct(self.returns):
            return self.row(stored)
        return stored if shape is type(None) or isinstance(stored, shape) else shape(stored)

    def _rows(self, schema: pa.Schema, columns: list[list[Any]]) -> list[Any]:
        return [
            self.row(dict(zip(schema.names, line, strict=True)))
            for line in zip(*columns, strict=True)
        ]


@dataclass(frozen=True)
class Starting:
    """An initializer that makes copies of a value, as it is when the initializer is made."""

    value: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", copy.deepcopy(self.value))

    def __call__(self) -> Any:
        return copy.deepcopy(self.value)


@dataclass(frozen=True)
class Reducing:
    """A reducer of (aggregate, value) as adder or subtractor; a group begins with a value."""

    reducer: Callable[[Any, Any], Any]

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        return value if aggregate is None else self.reducer(aggregate, value)


AGGREGATE = "aggregate"
"""The name of the aggregate in expressions."""


@dataclass(frozen=True)
class Evaluating:
    """An adder or subtractor: an expression over the columns of key, value, and the aggregate."""

    part: Part
    key: tuple[str, ...]
    value: tuple[str, ...]
    """Their columns' names, in lower case."""
    plain: bool
    """The value is its one column."""

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        keys, values = (key,) if len(self.key) == 1 else key, (value,) if self.plain else value
        row = dict(zip(self.key, keys, strict=True)) | dict(zip(self.value, values, strict=True))
        return self.part.of_row({**row, AGGREGATE: aggregate})


def _storable(aggregate: Any) -> Any:
    """Make of an aggregate what Arrow takes."""
    # A set has an order that depends on how it came about.  Stored like that, equal sets would have
    # other bytes, and an unchanged result would be emitted.
    if isinstance(aggregate, set | frozenset):
        try:
            return sorted(aggregate)
        except TypeError:
            return sorted(aggregate, key=repr)
    if isinstance(aggregate, tuple) and hasattr(aggregate, "asDict"):
        return aggregate.asDict(recursive=True)
    return aggregate
