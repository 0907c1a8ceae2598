"""Several folds over the same groups: what rows of several tables contribute to them (KIP-150).

A contribution begins here with one byte, the number of its table.  *Law*: each fold's columns are
what its own aggregate would say of the group, null where that has no row; a group has a result as
long as one of them has a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import Ints, after, buffers, concat, constant, masked, take, valid, window
from fkjoin.codec.messages import GROUPED, column, table
from fkjoin.codec.rows import RowCodec, bytes_codec
from fkjoin.folds.fold import AggregateColumn, Fold, Folded, collected_columns, require_places
from fkjoin.state import Bytes, Store


def numbered(grouped: pa.Table, number: int) -> pa.Table:
    """Label changes of contributions (``GROUPED``) with their table's number."""
    tag = constant(bytes((number,)), len(grouped))
    key, row, version, *sides, ts = (column(grouped, name) for name in GROUPED.names)
    old, new = (masked(concat(tag, side), valid(side)) for side in sides)
    return table(GROUPED, key, row, version, old, new, ts)


@dataclass(frozen=True)
class CoFold:
    """A ``Fold`` of several tables' contributions."""

    folds: tuple[Fold, ...]

    def __post_init__(self) -> None:
        require_places(self._columns)

    @property
    def ordered(self) -> bool:
        return any(fold.ordered for fold in self.folds)

    @property
    def collected(self) -> dict[str, dict[str, Any]]:
        """See ``Fold.collected``."""
        return collected_columns(self._columns)

    @property
    def _columns(self) -> list[AggregateColumn]:
        return list(chain.from_iterable(fold.columns for fold in self.folds))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the results: the columns of one fold after the columns of the other."""
        return pa.schema(list(chain.from_iterable(fold.schema for fold in self.folds)))

    def apply(
        self, state: Bytes, keys: Bytes, group: Ints, *, old: Bytes, new: Bytes, store: Store
    ) -> Folded:
        """Fold steps as ``Fold.apply`` does, of numbered contributions; a step is of one table.

        A fold without rows starts again.
        """
        groups = len(state)
        number = np.where(valid(old), _numbers(old), _numbers(new))
        codec = bytes_codec(len(self.folds))
        states: list[Bytes] = []
        columns: list[pa.Array] = []
        light: list[pa.Array] = []
        entries: list[tuple[Bytes, Bytes]] = []
        has, rows, first = np.zeros(groups, bool), np.zeros(groups, np.int64), 0
        for index, (fold, before) in enumerate(zip(self.folds, codec.decode(state), strict=True)):
            own = np.flatnonzero(number == index)
            sides = [take(side, own) for side in (old, new)]
            back, into = (after(side, 1, valid(side)) for side in sides)
            folded = fold.apply(
                before, keys, group[own], old=back, new=into, store=store, first=first
            )
            # A fold without rows forgets its state, as an aggregate by itself forgets its group:
            # what an inexact subtractor has left must not reach the next row.
            states.append(masked(folded.state, folded.rows > 0))
            decode = RowCodec(fold.schema).decode
            columns += decode(folded.results)
            light += decode(folded.results if folded.light is None else folded.light)
            entries += folded.entries
            has |= valid(folded.results)
            rows += folded.rows
            # All folds share the store: their columns' entries are told apart by one numbering.
            first += len(fold.columns)
        encode = RowCodec(self.schema).encode
        results = masked(encode(columns, groups), has)
        lights = masked(encode(light, groups), has) if self.collected else None
        return Folded(codec.encode(states, groups), results, rows, entries, lights)


def _numbers(contributions: Bytes) -> Ints:
    data, bounds = buffers(contributions)
    return window(data, bounds[:-1], 1)[:, 0].astype(np.int64)
