"""The last hour of a query, as points of some seconds each: it has a bounded size."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

HOUR_MS = 3_600_000
STEP_MS = 5_000
"""The time of a point: batches that end within it are one, a longer batch is one by itself."""
WAIT_MS = 15_000
"""The time without a batch from which on a query waited for input, and was not between batches."""


@dataclass(frozen=True)
class Point:
    """Batches that ended within some seconds."""

    begun_ms: int
    ended_ms: int
    read: int
    """Rows read."""
    slowest: float
    """Seconds of the batch that took longest."""
    lag: int | None
    """Records that were left to read; None where no source tells."""
    out: Mapping[str, int]
    """Results by operator."""
    stored: Mapping[str, int]
    """Bytes of state by operator."""
    dead: Mapping[str, int]
    """Dead letters by operator."""
    batches: int = 1
    passed: float = 0.0
    """Seconds since the batch before; of the batch itself, if the query had waited for input."""
    delay: float = 0.0
    """Seconds from a record's arrival to its result, at most, if records come on as they do."""
    silent: float = 0.0
    """Seconds up to the batch's end in which the query ended no batch nor said that it waits."""

    @property
    def rate(self) -> float:
        """Return the rows read a second."""
        return self.read / self.passed if self.passed > 0 else 0.0

    @property
    def catch_up(self) -> float:
        """Return the seconds that the lag takes at this rate; infinity if nothing is read."""
        return self.seconds_for(self.lag)

    def seconds_for(self, records: int | None) -> float:
        """Return the seconds that so many records take at this rate; infinity for no rate."""
        if not records:
            return 0.0
        return records / self.rate if self.rate else float("inf")

    def of_batches(self, figure: float) -> float | None:
        """Return a figure of the batches; None while the query waits."""
        return figure if self.batches else None

    def a_second(self, numbers: Mapping[str, int]) -> dict[str, float]:
        """Return numbers of the batches as rates."""
        if self.passed <= 0:
            return {}
        return {name: round(number / self.passed, 2) for name, number in numbers.items()}

    def waiting(self, at_ms: int, lag: int | None) -> Point:
        """Return a time after this point at which the query waits, with the sizes that it had."""
        return replace(self, ended_ms=at_ms, batches=0, read=0, out={}, dead={}, lag=lag)

    def and_then(self, later: Point) -> Point:
        """Return both as one point: sums, the worst times, and sizes as they are at the end."""
        return replace(
            later,
            begun_ms=self.begun_ms,
            read=self.read + later.read,
            slowest=max(self.slowest, later.slowest),
            out=Counter(self.out) + Counter(later.out),
            dead=Counter(self.dead) + Counter(later.dead),
            batches=self.batches + later.batches,
            passed=self.passed + later.passed,
            delay=max(self.delay, later.delay),
            silent=max(self.silent, later.silent),
        )


class History:
    """Points of the last hour, oldest first.

    Examples
    --------
    >>> history = History()
    >>> history.add(Point(0, 1_000, read=10, slowest=1.0, lag=None, out={}, stored={}, dead={}))
    >>> history.columns(2_000)["read"]
    [10.0]
    """

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=HOUR_MS // STEP_MS + 1)
        self.waited_ms = 0
        """The last time at which the query found nothing to read."""
        self.quiet_ms = 0
        """The time before that in which it said nothing."""
        self.interval_s = 0.0
        """The time between batches that the query's trigger asks for; 0 if that is not known."""
        self._looked_ms: int | None = None
        """The last time that it looked: what a batch reads came later, unless there was a lag."""
        self.lag: int | None = None
        """The lag that was told last."""

    def copy(self) -> History:
        """Return the history up to now, which later batches do not change."""
        other = copy.copy(self)
        other.points = self.points.copy()
        return other

    def add(self, point: Point) -> None:
        """Add a batch.  What is later than its end is forgotten: the clock went back."""
        while self.points and self.points[-1].ended_ms > point.ended_ms:
            self.points.pop()
        last = self.points[-1] if self.points else None
        begun = spoke = looked = point.begun_ms
        if last is not None and not self._waited(last, point):
            begun = min(last.ended_ms, begun)
        if self.spoke_ms:
            spoke = min(self.spoke_ms, spoke)
        if self._looked_ms is not None:
            looked = min(self._looked_ms, looked)
        end, passed = point.ended_ms, (point.ended_ms - begun) / 1000
        point = replace(point, passed=passed, silent=(end - spoke) / 1000)
        overdue = point.catch_up
        delay = (end - looked) / 1000 + (overdue if overdue < HOUR_MS else 0.0)
        point = replace(point, delay=delay)
        if last is not None and last.ended_ms // STEP_MS == point.ended_ms // STEP_MS:
            self.points[-1] = last.and_then(point)
        else:
            self.points.append(point)
        self.lag, self._looked_ms = point.lag, point.begun_ms
        while self.points[0].ended_ms < point.ended_ms - HOUR_MS:
            self.points.popleft()

    def wait(self, now_ms: int, lag: int | None) -> None:
        """Take down that there was nothing to read."""
        before = self.spoke_ms
        if before < now_ms:  # the same event comes several times
            self.quiet_ms = now_ms - before if before else 0
        self.waited_ms = self._looked_ms = now_ms
        self.lag = lag

    @property
    def waits(self) -> bool:
        """Tell whether the query found nothing to read since its last batch."""
        return bool(self.points) and self.waited_ms > self.points[-1].ended_ms

    @property
    def spoke_ms(self) -> int:
        """Return the last time that a batch ended, or the query said that it waits; 0 for none."""
        return max(self.waited_ms, self.points[-1].ended_ms if self.points else 0)

    def columns(self, now_ms: int) -> dict[str, Any]:
        """Return the points as columns, with zeros where the query waited.

        ``time`` is in seconds since 1970, rates are a second's.
        """
        points = [point for point in self._curve() if point.ended_ms > now_ms - HOUR_MS]
        return {
            "time": [point.ended_ms / 1000 for point in points],
            "read": [round(point.rate, 2) for point in points],
            "batch": [point.of_batches(point.slowest) for point in points],
            "delay": [point.of_batches(round(point.delay, 2)) for point in points],
            "lag": [point.lag for point in points],
            "out": _by_operator([point.a_second(point.out) for point in points], 0.0),
            "state": _by_operator([point.stored for point in points], None),
            "dead": _by_operator([point.dead for point in points], 0),
        }

    def dead(self, now_ms: int) -> Counter[str]:
        """Return the dead letters of the hour before ``now_ms``, by operator."""
        lately = Counter[str]()
        for point in self.points:
            if point.dead and point.ended_ms > now_ms - HOUR_MS:
                lately.update(point.dead)
        return lately

    def _waited(self, last: Point, point: Point) -> bool:
        said_so = last.ended_ms < self.waited_ms <= point.begun_ms
        return said_so or point.begun_ms - last.ended_ms > WAIT_MS

    def _curve(self) -> Iterator[Point]:
        """Yield the points, and two for each time in which the query waited."""
        last: Point | None = None
        for point in self.points:
            if last is not None and point.begun_ms - last.ended_ms > WAIT_MS:
                yield last.waiting(last.ended_ms + 1, last.lag)
                yield last.waiting(point.begun_ms, last.lag)
            yield point
            last = point
        if last is not None and self.waits:
            yield last.waiting(last.ended_ms + 1, last.lag)
            yield last.waiting(self.waited_ms + 1, self.lag)


def _by_operator(
    rows: Sequence[Mapping[str, float]], nothing: float | None
) -> dict[str, list[float | None]]:
    """Return columns by operator, of those that have any number."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    columns = {}
    for name in names:
        column = [row.get(name, nothing) for row in rows]
        if any(column):
            columns[name] = column
    return columns
