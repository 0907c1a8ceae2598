"""The join without Spark: the three stages in a row over stores in memory, one batch at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fkjoin.codec.messages import CHANGE
from fkjoin.stages.counters import Counters
from fkjoin.stages.join_rows import How, join_rows
from fkjoin.stages.rekey import rekey
from fkjoin.stages.resolve import resolve
from fkjoin.stages.subscription import subscription
from fkjoin.state import MemoryStore
from tests.support.oracle import Change, Joined, apply, sides

DAY_MS = 24 * 60 * 60 * 1000


@dataclass
class MemoryJoin:
    """A foreign-key join whose state is lost with the process.

    ``shared_log`` says that both sides' versions come from one log and so order their changes; ``made``, whether an operator
    makes the left table, and the right one.
    """

    how: How
    shared_log: bool = False
    in_order: bool = True
    made: tuple[bool, bool] = (False, False)
    every: bool = False
    retention_ms: int = DAY_MS
    count: Counters = field(default_factory=Counters)
    stores: tuple[MemoryStore, MemoryStore, MemoryStore] = field(
        default_factory=lambda: (MemoryStore(), MemoryStore(), MemoryStore())
    )
    joined: Joined = field(default_factory=dict)
    """The table after the batches of ``batch``."""

    def batch(self, changes: Iterable[Change], *clocks: int) -> pa.Table:
        """One batch of changes of either side; ``clocks``: the time in each of the three stages."""
        results = self.process(*sides(changes), *clocks)
        apply(results, self.joined)
        return results

    def process(self, left: pa.Table | None = None, right: pa.Table | None = None, *clocks: int) -> pa.Table:
        """One batch of changes (``CHANGE``) of either side → changes of the joined table (``RESULT``)."""
        return self.resolved(self.answers(left, right, *clocks[:2]), *clocks[2:])

    def answers(self, left: pa.Table | None = None, right: pa.Table | None = None, *clocks: int) -> pa.Table:
        """The answers of a batch to the join's last stage."""
        lefts, rights = (CHANGE.empty_table() if side is None else side for side in (left, right))
        first, second = (self._times(now_ms) for now_ms in clocks or (0, 0))
        rekeyed = rekey(lefts, self.stores[0], self.count, in_order=self.made[0], **first)
        how: Any = {"shared_log": self.shared_log, "in_order": self.in_order, "rights_in_order": self.made[1]}
        pages = subscription(rekeyed.subscriptions, rights, self.stores[1], self.count, **how, **second)
        return pa.concat_tables([rekeyed.answers, *pages])

    def resolved(self, answers: pa.Table, now_ms: int = 0) -> pa.Table:
        """The last stage's results."""
        how: Any = {"in_order": self.in_order, **self._times(now_ms)}
        return resolve(join_rows(answers, self.how), self.stores[2], self.count, **how)

    def _times(self, now_ms: int) -> dict[str, Any]:
        return {"now_ms": now_ms, "retention_ms": self.retention_ms, "every": self.every}
