"""A channel that delivers messages delayed, twice and in any order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


class Channel:
    """Messages in flight: in each round some arrive, in any order, and some of those stay to arrive again."""

    def __init__(self, waiting: pa.Table, rng: np.random.Generator) -> None:
        self._waiting, self._rng = waiting, rng

    def send(self, sent: pa.Table) -> None:
        self._waiting = pa.concat_tables([self._waiting, sent])

    def deliver(self, share: float) -> pa.Table:
        chosen = self._rng.random(len(self._waiting)) < share
        again = chosen & (self._rng.random(len(chosen)) < 0.15)
        arriving = self._waiting.filter(pa.array(chosen))
        self._waiting = self._waiting.filter(pa.array(~chosen | again))
        return arriving.take(pa.array(self._rng.permutation(len(arriving))))

    def __len__(self) -> int:
        return len(self._waiting)
