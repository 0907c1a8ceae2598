"""Batches without rows in which a clock that is moved far ends intervals on its way.

*Law*: after these batches, and one at the time that the clock is moved to, the table is as if each end of each interval had
been heard.  Not all are needed.  Ends soon after a time at which something happens bring all that waits, and make idle sources
idle.  Then nothing happens.  A clock that is heard again after a pause counts silence anew (``stages.stream_time``).  So ends
just before the next such time make these sources idle again.  Something happens at both ends of the way, and when longer
intervals of other clocks end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

_HEARD = 6
"""The number of ends that are heard before and after each time: from the first to the last, a source becomes idle."""


def ends_between(before_ms: int, now_ms: int, intervals: Collection[int]) -> list[int]:
    """The ends of intervals between two times that a table has to hear, in order."""
    times = {before_ms, now_ms}
    for interval in sorted(set(intervals), reverse=True):
        times |= {end for time in times for end in _near(time, interval)}
    return sorted(time for time in times if before_ms < time < now_ms)


def _near(time: int, interval: int) -> Iterator[int]:
    last = time // interval
    yield from (number * interval for number in range(last - _HEARD + 1, last + _HEARD + 1))
