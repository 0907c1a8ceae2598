"""Several folds over the same groups: what rows of several tables contribute to them (KIP-150).

A contribution begins here with one byte, the number of its table.  *Law*: each fold's columns are
what its own aggregate would say of the group, null where that has no row; a group has a result as
long as one of them has a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import (
    BYTES,
    Bytes,
    Ints,
    after,
    buffers,
    concat,
    constant,
    masked,
    take,
    valid,
    window,
)
from fkjoin.codec.messages import GROUPED, column, table
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.fold import Fold, Folded, collected_columns, require_places
from fkjoin.state import Store


def numbered(grouped: pa.Table, number: int) -> pa.Table:
    """Label changes of contributions (``GROUPED``) as those of the table with that number."""
    tag = constant(bytes((number,)), len(grouped))
    sides = (column(grouped, name) for name in ("old", "new"))
    old, new = (masked(concat(tag, side), valid(side)) for side in sides)
    return table(
        GROUPED,
        *(column(grouped, name) for name in ("key", "row", "version")),
        old,
        new,
        column(grouped, "ts"),
    )


@dataclass(frozen=True)
class CoFold:
    """A ``Fold`` of several tables' contributions."""

    folds: tuple[Fold, ...]

    def __post_init__(self) -> None:
        require_places([column for fold in self.folds for column in fold.columns])

    @property
    def ordered(self) -> bool:
        return any(fold.ordered for fold in self.folds)

    @property
    def collected(self) -> dict[str, dict[str, Any]]:
        """See ``Fold.collected``."""
        return collected_columns([column for fold in self.folds for column in fold.columns])

    @property
    def schema(self) -> pa.Schema:
        """The schema of the results: the columns of one fold after those of the other."""
        return pa.schema([field for fold in self.folds for field in fold.schema])

    def apply(
        self, state: Bytes, keys: Bytes, group: Ints, *, old: Bytes, new: Bytes, store: Store
    ) -> Folded:
        """Fold steps as ``Fold.apply`` does, of numbered contributions; a step's two are of one
        table.

        A fold without rows begins anew.
        """
        groups = len(state)
        number = np.where(valid(old), _numbers(old), _numbers(new))
        codec = RowCodec(pa.schema([pa.field(str(at), BYTES) for at in range(len(self.folds))]))
        kept: list[Bytes] = []
        columns: list[pa.Array] = []
        light: list[pa.Array] = []
        entries: list[tuple[Bytes, Bytes]] = []
        has, rows, first = np.zeros(groups, bool), np.zeros(groups, np.int64), 0
        for at, (fold, before) in enumerate(zip(self.folds, codec.decode(state), strict=True)):
            own = np.flatnonzero(number == at)
            sides = [take(side, own) for side in (old, new)]
            ones = np.ones(len(own), np.int64)
            back, into = (after(side, ones, valid(side)) for side in sides)
            folded = fold.apply(
                before, keys, group[own], old=back, new=into, store=store, first=first
            )
            kept.append(masked(folded.state, folded.rows > 0))
            columns += RowCodec(fold.schema).decode(folded.results)
            light += RowCodec(fold.schema).decode(
                folded.results if folded.light is None else folded.light
            )
            entries += folded.entries
            has |= valid(folded.results)
            rows += folded.rows
            first += len(fold.columns)
        encode = RowCodec(self.schema).encode
        results = masked(encode(columns, groups), has)
        return Folded(
            codec.encode(kept, groups),
            results,
            rows,
            entries,
            masked(encode(light, groups), has) if self.collected else None,
        )


def _numbers(contributions: Bytes) -> Ints:
    data, bounds = buffers(contributions)
    return window(data, bounds[:-1], 1)[:, 0].astype(np.int64)
