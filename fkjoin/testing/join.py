"""A join by foreign key, in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import combined_key, versions
from fkjoin.codec.arrays import BYTES, as_bytes, valid
from fkjoin.codec.messages import ANSWER, CHANGE, JOINED, RESULT, SUBSCRIPTION, column, table
from fkjoin.stages import Counters, How, rekey, resolve, subscription
from fkjoin.stages.invariants import live_subscriptions
from fkjoin.stages.join_rows import matched, require_how
from fkjoin.testing.kit import TIMES, Change, Kit, Result, Row, RowExtractor, json_bytes, named_by

RowJoiner = Callable[[Row, Row | None], Any]

_SOURCES = versions.identity("left"), versions.identity("right")


@dataclass
class JoinTest(Kit):
    """A foreign-key join whose state is in memory.

    Parameters
    ----------
    extractor : str or callable
        A column of the left row, or a callable of (key, row); None is no foreign key.
    how : {"inner", "left"}, default "inner"
        ``"left"`` keeps left rows without a right row.
    joiner : callable, optional
        A callable of (left row, right row), whose None is no result.  Without it a joined row is ``{"left": …, "right": …}``.
    seed : int, default 0
        The seed of what ``REORDER`` does.

    Attributes
    ----------
    table : dict of str to object
        The joined table as a reader of the results has it.
    results : list of Result
        All results, in order.
    count : Counters
        The counters of the stages: ``stale-dropped``, ``tombstones-suppressed``, ….

    Examples
    --------
    >>> test = JoinTest(extractor="customer", how="left")
    >>> results = test.feed(left("o1", {"customer": "c1"}), CRASH, right("c1", {"name": "Ada"}))
    >>> test.table["o1"]
    {'left': {'customer': 'c1'}, 'right': {'name': 'Ada'}}
    """

    extractor: RowExtractor
    how: How = "inner"
    joiner: RowJoiner | None = None
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)

    _stages = ("rekey", "subscription", "resolve")
    _takes = ("left", "right")
    _names = "extractor"

    def __post_init__(self) -> None:
        require_how(self.how)
        super().__post_init__()

    @property
    def subscriptions(self) -> dict[str, list[str]]:
        """The left keys that subscribe to each foreign key.

        Returns
        -------
        dict of str to list of str
            Left keys, by the foreign key.
        """
        found: dict[str, list[str]] = {}
        for page in live_subscriptions(self._stores[1]):
            for foreign, key in zip(*(part.to_pylist() for part in combined_key.decode(page)), strict=True):
                found.setdefault(foreign.decode(), []).append(key.decode())
        return found

    def _require_row(self, change: Change) -> None:
        if change.side == "left":
            self._foreign_key(change)

    def _run(self, batch: list[Change], stages: int) -> pa.Table:
        rekeyed = rekey(self._changes(batch, "left"), self._stores[0], self.count, **TIMES)
        if stages == 1:
            return RESULT.empty_table()
        answers = [rekeyed.answers, *self._answers(rekeyed.subscriptions, self._changes(batch, "right"), in_order=True)]
        joined = self._joined(pa.concat_tables(answers))
        return resolve(joined, self._stores[2], self.count, **TIMES) if stages == 3 else RESULT.empty_table()

    def _reordered(self, batch: list[Change]) -> list[pa.Table]:
        rekeyed = [rekey(part, self._stores[0], self.count, **TIMES) for part in self._portions(self._changes(batch, "left"))]
        rights = self._portions(self._changes(batch, "right"))
        waiting = self._portions(pa.concat_tables([SUBSCRIPTION.empty_table(), *(part.subscriptions for part in rekeyed)]))
        nothing = SUBSCRIPTION.empty_table(), CHANGE.empty_table()
        answers = [ANSWER.empty_table(), *(part.answers for part in rekeyed)]
        for part in self._shuffled([*((one, nothing[1]) for one in waiting), *((nothing[0], one) for one in rights)]):
            answers += self._answers(*part, in_order=False)
        portions = self._portions(pa.concat_tables(answers))
        return [resolve(self._joined(part), self._stores[2], self.count, **TIMES) for part in portions]

    def _answers(self, subscriptions: pa.Table, rights: pa.Table, *, in_order: bool) -> Iterable[pa.Table]:
        return subscription(subscriptions, rights, self._stores[1], self.count, in_order=in_order, **TIMES)

    def _changes(self, batch: Iterable[Change], side: str) -> pa.Table:
        rows = [change for change in batch if change.side == side]
        return table(
            CHANGE,
            as_bytes(pa.array([row.key for row in rows], pa.string())),
            pa.array([self._foreign_key(row) if side == "left" else None for row in rows], BYTES),
            pa.array([None if row.row is None else json_bytes(row.row) for row in rows], BYTES),
            versions.encode(_SOURCES[side == "right"], [np.array([row.version for row in rows], np.int64)], tied=True),
            np.zeros(len(rows), np.int64),
        )

    def _foreign_key(self, change: Change) -> bytes | None:
        found = named_by(self.extractor, change, "extractor")
        return None if found is None else found.encode()

    def _joined(self, answers: pa.Table) -> pa.Table:
        rows = zip(column(answers, "left").to_pylist(), column(answers, "right").to_pylist(), strict=True)
        values = [
            self._join(json.loads(one), None if other is None else json.loads(other)) if there else None
            for (one, other), there in zip(rows, matched(answers, self.how), strict=True)
        ]
        value = pa.array([None if found is None else json_bytes(found) for found in values], BYTES)
        columns = (column(answers, name) for name in ("key", "version"))
        return table(JOINED, *columns, value, ~valid(column(answers, "left")), column(answers, "ts"))

    def _join(self, one: Row, other: Row | None) -> Any:
        return {"left": one, "right": other} if self.joiner is None else self.joiner(one, other)
