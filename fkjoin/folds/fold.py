"""The folding of contributions into aggregates, a whole batch and many groups at a time.

*Law*: after any changes, an aggregate is what it would be if it were computed anew from the
contributions that are left (of a user's own adder and subtractor: as far as the subtractor takes
back what the adder did).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, tags
from fkjoin.codec.arrays import (
    Bools,
    Bytes,
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
from fkjoin.state import Reads, Store, prefix_range

_MOST_WITH_ENTRIES = 256
"""Columns that may have entries: the name of an entry has one byte for its column's place."""


@dataclass
class FoldSteps:
    """A batch's changes of contributions, group by group, in each group in the order in which they
    count.

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
    """The store, in which an aggregate may keep entries of its own, under tags that the stage does not use."""
    entries: list[tuple[Bytes, Bytes]] = field(default_factory=list)
    """Entries to be written with the batch."""

    @cached_property
    def signed(self) -> tuple[Ints, Ints, pa.Array]:
        """Group, sign (-1: taken back) and place of each contribution, by group; places are those of ``column``."""
        code = np.concatenate([self.group[self.had], self.group[self.has]])
        sign = np.where(np.arange(len(code)) < int(self.had.sum()), -1, 1)
        order = np.argsort(code, kind="stable")
        return code[order], sign[order], pa.array(order)

    def column(self, place: int) -> pa.Array:
        """A column of the contributions, in the order of ``signed``."""
        both = [
            self.old[place].filter(pa.array(self.had)),
            self.new[place].filter(pa.array(self.has)),
        ]
        return pa.concat_arrays(both).take(self.signed[2])


class AggregateColumn(Protocol):
    """A column of an aggregate."""

    @property
    def result(self) -> pa.Field: ...

    @property
    def state(self) -> list[pa.Field]:
        """The columns that are kept for each group."""
        ...

    def fold(self, state: list[pa.Array], steps: FoldSteps, place: int) -> list[pa.Array]:
        """Make the state after the steps; null columns are a group that is new.

        ``place``: of this column, among all.
        """
        ...

    def final(self, state: list[pa.Array], rows: Ints, steps: FoldSteps, place: int) -> pa.Array:
        """The column's value, per group with so many ``rows``, after the steps."""
        ...

    @property
    def has_entries(self) -> bool:
        """Tell whether entries of its own are in the store, under ``tags.EXTREME``, its place and the group's key."""
        ...

    @property
    def collected(self) -> Mapping[str, Any] | None:
        """The way to read a value as large as the group from the store; None: the group's record keeps the value."""
        ...


class Folded(NamedTuple):
    """The outcome for groups: encoded states and results (null: none), numbers of rows, and entries to be written."""

    state: Bytes
    results: Bytes
    rows: Ints
    entries: list[tuple[Bytes, Bytes]]
    light: Bytes | None = None
    """The results, with collected columns that are empty unless they are null; None where there is no such column."""


@dataclass(frozen=True)
class Having:
    """A condition on the columns of a result and of the group's key; where it is null, it does not hold."""

    condition: Part
    key: pa.Schema
    text: str
    """The condition, for errors."""

    def holds(self, schema: pa.Schema, results: list[pa.Array], keys: Bytes, among: Bools) -> Bools:
        """Tell of which groups it holds; ``among``: those that it is asked of."""
        columns = dict(
            zip(map(str.lower, self.key.names), KeyCodec(self.key).decode(keys), strict=True)
        )
        columns |= dict(zip(map(str.lower, schema.names), results, strict=True))
        try:
            found = where(self.condition, columns, pa.array(among))
        except ArithmeticError as error:
            raise FkJoinError(f"having: {self.text} cannot be evaluated: {error}") from error
        return bools(pc.fill_null(found, False)) & among


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
        """The columns that groups' records do not keep, each with its place and how it is read (``collected_columns``)."""
        return collected_columns(self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the results."""
        return pa.schema([column.result for column in self.columns])

    @property
    def state(self) -> pa.Schema:
        parts = [
            pa.field(f"{place}.{part.name}", part.type)
            for place, column in enumerate(self.columns)
            for part in column.state
        ]
        return pa.schema([("rows", pa.int64()), *parts])

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
        """Fold steps, from encoded contributions (null where there is none), into encoded states
        (null: none yet).

        ``keys``: of the groups; ``group``: of each step, ascending.  Where no rows are left there
        is no result, nor where all columns of one that is ``nullable`` are null.  ``first``: the
        place of the first column, among those of several folds.
        """
        codec = RowCodec(self.value)
        had, has = old.is_valid().to_numpy(False), new.is_valid().to_numpy(False)
        steps = FoldSteps(keys, group, had, has, codec.decode(old), codec.decode(new), store)
        groups = len(state)
        parts = RowCodec(self.state).decode(state)
        before = whole(parts[0])
        code, sign, _ = steps.signed
        rows = before + totals(code, sign, groups)
        kept: list[pa.Array] = [pa.array(rows)]
        folded: list[list[pa.Array]] = []
        at = 1
        for place, column in enumerate(self.columns):
            size = len(column.state)
            folded.append(column.fold(parts[at : at + size], steps, first + place))
            kept += folded[-1]
            at += size
        results = [
            column.final(own, rows, steps, first + place)
            for place, (column, own) in enumerate(zip(self.columns, folded, strict=True))
        ]
        has = rows > 0
        if self.nullable:
            has &= np.logical_or.reduce([valid(result) for result in results])
        if self.having is not None:
            has = self.having.holds(self.schema, results, keys, has)
        encode = RowCodec(self.schema).encode
        collected = self.collected
        named = zip(self.schema.names, results, strict=True)
        light = [_emptied(one) if name in collected else one for name, one in named]
        return Folded(
            RowCodec(self.state).encode(kept, groups),
            masked(encode(results, groups), has),
            rows,
            steps.entries,
            masked(encode(light, groups), has) if collected else None,
        )


def require_places(columns: Sequence[AggregateColumn]) -> None:
    """Raise ``TopologyError`` for a column with entries that comes too late: the name of an entry has a byte for its place."""
    for column in columns[_MOST_WITH_ENTRIES:]:
        if column.has_entries:
            raise TopologyError(
                f"agg: {column.result.name} is not among the first {_MOST_WITH_ENTRIES} columns, as a list, an extreme or a "
                "distinct count has to be: name it before sums, averages and counts, or make two aggregates"
            )


def entries_of(columns: Sequence[AggregateColumn], keys: Bytes, store: Reads) -> list[Bytes]:
    """Find the names of the entries that columns have for the groups with those keys, beside the groups' records."""
    groups = combined_key.prefixes(keys)
    ranges = [
        prefix_range(prefix)
        for place, column in enumerate(columns)
        if column.has_entries
        for prefix in prefixed(tags.EXTREME + bytes((place,)), groups).to_pylist()
    ]
    return [page.keys for page in store.scan(ranges)] if ranges else []


def collected_columns(columns: Sequence[AggregateColumn]) -> dict[str, dict[str, Any]]:
    """Find collected columns, by name: the place among all columns, and how each is read."""
    found = ((place, column.result.name, column.collected) for place, column in enumerate(columns))
    return {name: {"place": place, **facts} for place, name, facts in found if facts is not None}


def _emptied(values: pa.Array) -> pa.Array:
    """Lists or texts without anything in them, null where the values are."""
    empty: list[Any] = [
        [] if pa.types.is_list(values.type) else b"" if pa.types.is_binary(values.type) else ""
    ]
    return take(pa.array(empty, values.type), np.zeros(len(values), np.int64), valid(values))


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
