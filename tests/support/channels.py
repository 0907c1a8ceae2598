"""A channel that delivers messages delayed, twice and in any order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


class Channel:
    """Messages in flight: in each round some arrive, in any order, and some of those stay to arrive again.

    Those that are due arrive, and do not stay.
    """

    def __init__(self, waiting: pa.Table, rng: np.random.Generator) -> None:
        self._waiting, self._rng = waiting, rng
        self._due = np.full(len(waiting), np.inf)

    def send(self, sent: pa.Table, due: float = np.inf) -> None:
        self._waiting = pa.concat_tables([self._waiting, sent])
        self._due = np.append(self._due, np.full(len(sent), due))

    def deliver(self, share: float, now: float = 0) -> pa.Table:
        last = self._due <= now
        chosen = last | (self._rng.random(len(last)) < share)
        stays = ~chosen | (~last & (self._rng.random(len(last)) < 0.15))
        arriving = self._waiting.filter(pa.array(chosen))
        self._waiting, self._due = self._waiting.filter(pa.array(stays)), self._due[stays]
        return arriving.take(pa.array(self._rng.permutation(len(arriving))))

    def __len__(self) -> int:
        return len(self._waiting)
