"""Rows summed up by group in memory: the common part of the kits for aggregates."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import GROUPED, JOINED, RESULT, table
from fkjoin.folds.fold import Fold
from fkjoin.stages import aggregate, regroup
from fkjoin.stages.regroup import contributions
from fkjoin.testing.kit import TIMES, Change, Kit

GROUP = pa.schema([("group", pa.string())])


class GroupKit(Kit):
    """Base of the kits for aggregates; subclasses make ``_fold`` when they are made."""

    _fold: Fold
    _stages: ClassVar[tuple[str, ...]] = ("regroup", "aggregate")
    _names = "group"

    @abstractmethod
    def _group(self, change: Change) -> str | None:
        """The group of a change's row; None for no group."""

    @abstractmethod
    def _values(self, changes: list[Change]) -> list[pa.Array]:
        """The columns of the fold's values, a row for each change."""

    def _require_row(self, change: Change) -> None:
        self._group(change)

    def _run(self, batch: list[Change], stages: int) -> pa.Table:
        changed = regroup(self._rows(batch), self._stores[0], self.count, as_read=True, **TIMES)
        return self._aggregated(changed) if stages == 2 else RESULT.empty_table()

    def _reordered(self, batch: list[Change]) -> list[pa.Table]:
        changed = [
            regroup(part, self._stores[0], self.count, as_read=True, **TIMES) for part in self._portions(self._rows(batch))
        ]
        return [self._aggregated(part) for part in self._portions(pa.concat_tables([GROUPED.empty_table(), *changed]))]

    def _aggregated(self, changed: pa.Table) -> pa.Table:
        how: Any = {"source": versions.identity("groups"), "guarded": True}
        return aggregate(changed, self._stores[1], self.count, self._fold, **how, **TIMES)

    def _rows(self, batch: list[Change]) -> pa.Table:
        there = np.array([change.row is not None for change in batch], bool)
        groups = pa.array([None if change.row is None else self._group(change) for change in batch], pa.string())
        value = contributions(GROUP, [groups], self._fold.value, self._values(batch), there)
        number = np.array([change.version for change in batch], np.int64)
        version = versions.encode(versions.identity("left"), [number], tied=True)
        key = as_bytes(pa.array([change.key for change in batch], pa.string()))
        return table(JOINED, key, version, value, ~there, np.zeros(len(batch), np.int64))
