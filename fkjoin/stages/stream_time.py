"""Stream time: how far the rows of all sources have come, by their own timestamps.

*Law*: it is the least of the sources' times, each of which is the greatest timestamp that the
source has had.  A source that is idle does not hold it back; if all are idle, it is the greatest of
their times.  It never goes back.

What is idle is decided by the ends of a clock's intervals, which are in Spark's offset log: a batch
that is repeated decides as it did.  A source is idle if no row of it came for longer than the
``idle`` time.  That is counted from the first end of an interval after its last row, and again if
the ends themselves are further apart: then the query did not run.

Store: ``{'h'}`` → little-endian int64 numbers: the stream time, the last end of an interval (0:
none yet), of each source its time and the end from which its silence is counted (0: none yet), and
the time up to which windows are closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa

from fkjoin.codec import tags
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import NO_TIMESTAMP
from fkjoin.state import Store

CAME = "came:"
"""The beginning of a counter's name that has the greatest timestamp of a source's rows.

The source's number follows.
"""


@dataclass(frozen=True)
class Arrivals:
    """The times that come with a batch."""

    latest: Mapping[int, int] = field(default_factory=dict)
    """The greatest timestamp, in microseconds, of each source with rows in the batch, by number."""
    tick_ms: int | None = None
    """The end of an interval of the clock, if one is in the batch."""

    @property
    def any(self) -> bool:
        return bool(self.latest) or self.tick_ms is not None


@dataclass(frozen=True)
class StreamTime:
    """The stream time that a bucket knows, and what it is made of."""

    now: int
    """The stream time, in microseconds since 1970; ``NO_TIMESTAMP`` before there is any."""
    tick_ms: int
    times: tuple[int, ...]
    silent_since: tuple[int, ...]
    closed: int = NO_TIMESTAMP
    """The windows that end by then are closed, and stay so when the grace time becomes longer."""

    @classmethod
    def read(cls, store: Store, sources: int) -> StreamTime:
        """Read it; a store that is new has none."""
        (stored,) = store.get_many(pa.array([tags.TIME], BYTES)).to_pylist()
        if stored is None:
            return cls(NO_TIMESTAMP, 0, (NO_TIMESTAMP,) * sources, (0,) * sources)
        now, tick_ms, *rest = np.frombuffer(stored, "<i8").tolist()
        of_sources, (closed,) = rest[:-1], rest[-1:]
        return cls(now, tick_ms, tuple(of_sources[0::2]), tuple(of_sources[1::2]), closed)

    def write(self, store: Store) -> None:
        of_sources = chain.from_iterable(zip(self.times, self.silent_since, strict=True))
        numbers = np.array([self.now, self.tick_ms, *of_sources, self.closed], "<i8")
        store.write(pa.array([tags.TIME], BYTES), pa.array([numbers.tobytes()], BYTES))

    def after(self, arrivals: Arrivals, idle_ms: int | None, grace: int = 0) -> StreamTime:
        """The stream time after a batch.

        ``idle_ms``: None if no source is ever idle; ``grace``: see ``Closing``::

            a source with rows takes their greatest timestamp, and is not silent
            one without is silent from the first tick on that it has no rows in
            it is idle when ticks have come for so long
            stream time is the least time of those that are not idle; of all, if all are
            what has closed stays closed
        """
        tick = arrivals.tick_ms
        # Ticks further apart than that: the query stood.  Sources could send nothing meanwhile, so
        # that their silence is counted again.
        stood = tick is not None and idle_ms is not None and tick - self.tick_ms > idle_ms
        times, since = [], []
        for number, (time, silent) in enumerate(zip(self.times, self.silent_since, strict=True)):
            came = arrivals.latest.get(number)
            times.append(time if came is None else max(time, came))
            if came is not None:
                since.append(0)
            elif tick is None:
                since.append(silent)
            else:
                # The least: a clock may be set back, and no silence begins in the future.
                since.append(min(silent, tick) if silent and not stood else tick)
        tick_ms = self.tick_ms if tick is None else tick
        idle = [idle_ms is not None and start > 0 and tick_ms - start >= idle_ms for start in since]
        awake = [time for time, silent in zip(times, idle, strict=True) if not silent]
        # A source that wakes up, or has its first rows, may be behind: stream time stays then.
        now = max(self.now, min(awake) if awake else max(times))
        closed = self.closed if now == NO_TIMESTAMP else max(self.closed, now - grace)
        return StreamTime(now, tick_ms, tuple(times), tuple(since), closed)
