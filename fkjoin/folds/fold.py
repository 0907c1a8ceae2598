"""The folding of contributions into aggregates, a whole batch and many groups at a time.

*Law*: after any changes, an aggregate is what it would be if it were computed again from the
contributions that are left (of a user's own adder and subtractor: as far as the subtractor takes
back what the adder did).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, tags
from fkjoin.codec.arrays import (
    Bools,
    Ints,
    bools,
    changes_from_previous,
    masked,
    prefixed,
    stack,
    take,
    valid,
)
from fkjoin.codec.expressions import Part, where
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.state import Bytes, KeyRange, Reads, Store, prefix_range

_MOST_WITH_ENTRIES = 256
"""Columns that may have entries: the name of an entry has one byte for its column's number."""


@dataclass
class FoldSteps:
    """A batch's changes of contributions, by group, of a group in the order in which they count.

    A step takes back what it ``had`` and then adds what it ``has``; ``old`` and ``new`` are the
    columns of both.
    """

    keys: Bytes
    """The groups' keys."""
    group: Ints
    """The number of each step's group, ascending."""
    had: Bools
    has: Bools
    old: Sequence[pa.Array]
    new: Sequence[pa.Array]
    store: Store
    """The store; an aggregate's own entries have tags in it that the stage does not use."""
    entries: list[tuple[Bytes, Bytes]] = field(default_factory=list)
    """Entries to be written with the batch."""

    @cached_property
    def signed(self) -> tuple[Ints, Ints, pa.Array]:
        """Group, sign (-1: taken back) and position of each contribution, by group.

        Positions are those in what ``column`` concatenates: first all that had, then all that have.
        """
        code = np.concatenate([self.group[self.had], self.group[self.has]])
        sign = np.where(np.arange(len(code)) < int(self.had.sum()), -1, 1)
        order = np.argsort(code, kind="stable")
        return code[order], sign[order], pa.array(order)

    def column(self, index: int) -> pa.Array:
        """A column of the contributions, in the order of ``signed``."""
        both = [
            self.old[index].filter(pa.array(self.had)),
            self.new[index].filter(pa.array(self.has)),
        ]
        return pa.concat_arrays(both).take(self.signed[2])


class AggregateColumn(ABC):
    """A column of an aggregate."""

    has_entries: ClassVar[bool] = False
    """True if it has entries in the store, see ``entry_prefixes``."""

    @property
    @abstractmethod
    def result(self) -> pa.Field: ...

    @property
    def state(self) -> list[pa.Field]:
        """The columns that are kept for each group."""
        return []

    @abstractmethod
    def fold(self, state: list[pa.Array], steps: FoldSteps, number: int) -> list[pa.Array]:
        """Make the state after the steps; null columns are a group that is new.

        ``number``: of this column, among all.
        """

    def final(self, state: list[pa.Array], rows: Ints, steps: FoldSteps, number: int) -> pa.Array:
        """The column's value, per group with so many ``rows``, after the steps."""
        return state[0]

    @property
    def collected(self) -> Mapping[str, Any] | None:
        """The way to read a value as large as the group from the store.

        None: the group's record has the value.
        """
        return None


class Folded(NamedTuple):
    """The outcome for groups: encoded states and results (null: none), numbers of rows, entries."""

    state: Bytes
    results: Bytes
    rows: Ints
    entries: list[tuple[Bytes, Bytes]]
    light: Bytes | None = None
    """The results with empty collected columns, null where these are; None without such columns."""


@dataclass(frozen=True)
class Having:
    """A condition on the columns of a result and of the group's key; null does not hold."""

    condition: Part
    key: pa.Schema
    text: str
    """The condition, for errors."""

    def holds(self, schema: pa.Schema, results: list[pa.Array], keys: Bytes, among: Bools) -> Bools:
        """Tell of which groups it holds; ``among``: those that it is asked of."""
        names, key = map(str.lower, self.key.names), KeyCodec(self.key).decode(keys)
        columns = dict(zip(names, key, strict=True))
        columns |= dict(zip(map(str.lower, schema.names), results, strict=True))
        try:
            holding = where(self.condition, columns, pa.array(among))
        except ArithmeticError as error:
            raise FkJoinError(f"having: {self.text} cannot be evaluated: {error}") from error
        return bools(pc.fill_null(holding, False)) & among


@dataclass(frozen=True)
class Fold:
    """The columns of an aggregate, over contributions with the schema ``value``."""

    value: pa.Schema
    columns: tuple[AggregateColumn, ...]
    nullable: bool = False
    """A group has no result where all columns are null."""
    ordered: bool = False
    """The order of a group's steps makes a difference."""
    having: Having | None = None
    """The condition on groups that have a result."""

    def __post_init__(self) -> None:
        require_places(self.columns)

    @property
    def collected(self) -> dict[str, dict[str, Any]]:
        """See ``collected_columns``."""
        return collected_columns(self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the results."""
        return pa.schema([column.result for column in self.columns])

    @property
    def state(self) -> pa.Schema:
        parts = [pa.field("rows", pa.int64())]
        for number, column in enumerate(self.columns):
            parts += [pa.field(f"{number}.{part.name}", part.type) for part in column.state]
        return pa.schema(parts)

    def apply(
        self,
        state: Bytes,
        keys: Bytes,
        group: Ints,
        *,
        old: Bytes,
        new: Bytes,
        store: Store,
        first: int = 0,
    ) -> Folded:
        """Fold steps, from encoded contributions (null: none), into encoded states (null: none).

        ``keys``: of the groups; ``group``: of each step, ascending.  Where no rows are left there
        is no result, nor where all columns of one that is ``nullable`` are null.  ``first``: the
        number of the first column, among the columns of several folds.
        """
        codec = RowCodec(self.value)
        had, has = old.is_valid().to_numpy(False), new.is_valid().to_numpy(False)
        steps = FoldSteps(keys, group, had, has, codec.decode(old), codec.decode(new), store)
        groups = len(state)
        parts = RowCodec(self.state).decode(state)
        code, sign, _ = steps.signed
        rows = whole(parts[0]) + totals(code, sign, groups)
        folded: list[pa.Array] = [pa.array(rows)]
        results: list[pa.Array] = []
        # The state is the number of rows, and behind it each column's own parts, one after another:
        # folded so far are as many as the parts before this column's parts.
        for number, column in enumerate(self.columns, first):
            start = len(folded)
            own = column.fold(parts[start : start + len(column.state)], steps, number)
            folded += own
            results.append(column.final(own, rows, steps, number))
        has = rows > 0
        if self.nullable:
            has &= np.logical_or.reduce([valid(result) for result in results])
        if self.having is not None:
            has = self.having.holds(self.schema, results, keys, has)
        encode = RowCodec(self.schema).encode
        # Collected columns are as large as the group.  A stage compares and stores the light form,
        # and sends the other.
        light = list(results)
        for number, column in enumerate(self.columns):
            if column.collected is not None:
                light[number] = _emptied(results[number])
        lights = masked(encode(light, groups), has) if self.collected else None
        after, shown = RowCodec(self.state).encode(folded, groups), encode(results, groups)
        return Folded(after, masked(shown, has), rows, steps.entries, lights)


def require_places(columns: Sequence[AggregateColumn]) -> None:
    """Raise ``TopologyError`` for a column with entries whose number has no byte."""
    for column in columns[_MOST_WITH_ENTRIES:]:
        if column.has_entries:
            raise TopologyError(
                f"agg: {column.result.name} is a list, an extreme or a distinct count, which must "
                f"be among the first {_MOST_WITH_ENTRIES} columns: name it before sums, averages "
                "and counts, or make two aggregates"
            )


def entry_prefixes(number: int, keys: Bytes) -> Bytes:
    """The beginnings of the names of all entries of groups, in column ``number``."""
    return prefixed(tags.EXTREME + bytes((number,)), combined_key.prefixes(keys))


def entries_of(columns: Sequence[AggregateColumn], keys: Bytes, store: Reads) -> list[Bytes]:
    """Find the names of the entries that columns have for the groups with those keys."""
    ranges: list[KeyRange] = []
    for number, column in enumerate(columns):
        if column.has_entries:
            ranges += map(prefix_range, entry_prefixes(number, keys).to_pylist())
    return [page.keys for page in store.scan(ranges)] if ranges else []


def collected_columns(columns: Sequence[AggregateColumn]) -> dict[str, dict[str, Any]]:
    """Find columns that groups' records do not have, by name: their number, how to read them."""
    collected: dict[str, dict[str, Any]] = {}
    for number, column in enumerate(columns):
        if column.collected is not None:
            collected[column.result.name] = {"place": number, **column.collected}
    return collected


def _emptied(values: pa.Array) -> pa.Array:
    """Lists or texts without anything in them, null where the values are."""
    empty: Any = [] if pa.types.is_list(values.type) else b""
    array = pa.array([empty], values.type)
    return take(array, np.zeros(len(values), np.int64), valid(values))


def totals(code: Ints, amounts: Ints, groups: int) -> Ints:
    """The sum of the amounts of each group; ``code`` ascends."""
    sums = np.zeros(groups, np.int64)
    if len(code):
        starts = np.flatnonzero(changes_from_previous(code))
        sums[code[starts]] = np.add.reduceat(amounts, starts)
    return sums


def whole(column: pa.Array) -> Ints:
    """An int64 column of a state, 0 for a group that is new."""
    return column.fill_null(0).to_numpy(zero_copy_only=False)


def entry_batch(entries: list[tuple[Bytes, Bytes]]) -> tuple[Bytes, Bytes]:
    """Put the entries of all columns into one batch."""
    return stack(*(keys for keys, _ in entries)), stack(*(values for _, values in entries))


AggregateKind = Literal[
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "count_distinct",
    "collect_list",
    "collect_set",
    "string_agg",
    "min_by",
    "max_by",
]
