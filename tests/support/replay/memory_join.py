"""The join without Spark: the three stages in a row over stores in memory, one batch at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fkjoin.codec.messages import CHANGE
from fkjoin.stages import Counters, How, join_rows, rekey, resolve, subscription
from fkjoin.state import MemoryStore

DAY_MS = 24 * 60 * 60 * 1000


@dataclass
class MemoryJoin:
    """A foreign-key join whose state is lost with the process.

    ``shared_log`` says that both sides' versions come from one log and so order their changes.
    """

    how: How
    shared_log: bool = False
    retention_ms: int = DAY_MS
    count: Counters = field(default_factory=Counters)
    stores: tuple[MemoryStore, MemoryStore, MemoryStore] = field(
        default_factory=lambda: (MemoryStore(), MemoryStore(), MemoryStore())
    )

    def process(self, left: pa.Table | None = None, right: pa.Table | None = None, *, now_ms: int = 0) -> pa.Table:
        """One batch of changes (``CHANGE``) of either side → changes of the joined table (``RESULT``)."""
        times: Any = {"now_ms": now_ms, "retention_ms": self.retention_ms}
        nothing = CHANGE.empty_table()
        rekeyed = rekey(nothing if left is None else left, self.stores[0], self.count, **times)
        answers = subscription(
            rekeyed.subscriptions,
            nothing if right is None else right,
            self.stores[1],
            self.count,
            shared_log=self.shared_log,
            in_order=True,
            **times,
        )
        everything = pa.concat_tables([rekeyed.answers, *answers])
        return resolve(join_rows(everything, self.how), self.stores[2], self.count, in_order=True, **times)
