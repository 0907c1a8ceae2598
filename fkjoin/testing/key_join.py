"""A join by primary key in memory, for users' tests; ``fkjoin.testing`` has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES, as_bytes
from fkjoin.codec.messages import NUMBERED, RESULT, column, table
from fkjoin.stages import Counters, HowByKey, pair
from fkjoin.stages.join_rows import matched, require_how_by_key, with_value
from fkjoin.testing.kit import TIMES, Change, Kit, Result, Row

_SIDES = ("left", "right")


@dataclass
class KeyJoinTest(Kit):
    """A join by primary key (``left.join(right)``) whose state is in memory; feed it ``left(…)`` and ``right(…)``.

    Parameters
    ----------
    how : {"inner", "left", "outer"}, default "inner"
        See ``Table.join``.
    joiner : callable, optional
        A callable of (left row, right row), either of which may be None; its None is no result.  Without it a joined row is
        ``{"left": …, "right": …}``.
    seed : int, default 0
        See ``JoinTest``.

    Attributes
    ----------
    table : dict of str to object
        The joined table as a reader of the results has it.
    results : list of Result
        See ``JoinTest``.
    count : Counters
        See ``JoinTest``.

    Examples
    --------
    >>> test = KeyJoinTest(how="outer")
    >>> results = test.feed(left("o1", {"amount": 5}), CRASH, right("o1", {"paid": 5}), left("o1", None), DUPLICATE)
    >>> test.table
    {'o1': {'left': None, 'right': {'paid': 5}}}
    """

    how: HowByKey = "inner"
    joiner: Callable[[Row | None, Row | None], Any] | None = None
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)

    _stages = ("pair",)
    _takes = _SIDES

    def __post_init__(self) -> None:
        require_how_by_key(self.how)
        super().__post_init__()

    def _require_row(self, change: Change) -> None:
        """A join by primary key names no column."""

    def _run(self, batch: list[Change], stages: int) -> pa.Table:
        return self._paired(self._messages(batch))

    def _reordered(self, batch: list[Change]) -> list[pa.Table]:
        return [RESULT.empty_table(), *map(self._paired, self._portions(self._messages(batch)))]

    def _paired(self, rows: pa.Table) -> pa.Table:
        return pair(rows, self._stores[0], self.count, self._joined, parts=(1, 1), **TIMES)

    def _messages(self, batch: list[Change]) -> pa.Table:
        rows = [None if one.row is None else json.dumps(one.row, sort_keys=True, ensure_ascii=False).encode() for one in batch]
        sources = pa.array([versions.identity(one.side) for one in batch], BYTES)
        return table(
            NUMBERED,
            as_bytes(pa.array([one.key for one in batch], pa.string())),
            versions.encode(sources, [np.array([one.version for one in batch], np.int64)], tied=True),
            pa.array(rows, BYTES),
            np.array([row is None for row in rows], bool),
            np.zeros(len(batch), np.int64),
            np.array([_SIDES.index(one.side) for one in batch], np.int8),
        )

    def _joined(self, answers: pa.Table) -> pa.Table:
        rows = zip(*(column(answers, side).to_pylist() for side in _SIDES), strict=True)
        made = [
            self._join(*(None if row is None else json.loads(row) for row in sides)) if there else None
            for sides, there in zip(rows, matched(answers, self.how), strict=True)
        ]
        texts = (None if one is None else json.dumps(one, sort_keys=True, ensure_ascii=False).encode() for one in made)
        return with_value(answers, pa.array(list(texts), BYTES))

    def _join(self, one: Row | None, other: Row | None) -> Any:
        return {"left": one, "right": other} if self.joiner is None else self.joiner(one, other)
