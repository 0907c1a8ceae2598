"""Windows of time: the windows that a row is in, and what a change of a row changes in them.

*Law*: a row is in each window ``[start, start + size)`` that has the row's time in it; the starts
are the multiples of ``slide``, counted from 1970-01-01 in UTC.  What a change takes back and adds
in one window is one message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import Bytes, Ints, codes, concat, fixed, stack, take, unpaired, valid
from fkjoin.codec.rows import KeyCodec

START, END = "window_start", "window_end"
"""The columns of a group's key that say which window it is."""


@dataclass(frozen=True)
class TimeWindows:
    """Windows as long as ``size``, one every ``slide``, both in microseconds."""

    size: int
    slide: int
    group: pa.Schema
    """The group of a contribution: the row's time, then the other columns of the group."""
    ahead: int | None = None
    """The microseconds by which a row's timestamp may be ahead of its batch; None: any."""

    @property
    def ahead_text(self) -> str:
        """The reason of dead letters for rows beyond that."""
        assert self.ahead is not None
        return f"its timestamp is more than {self.ahead / 1e6:g} s ahead of the batch's time"

    @property
    def key(self) -> pa.Schema:
        """The key of a group: start and end of the window, then the other columns."""
        time, *others = self.group
        return pa.schema([pa.field(START, time.type), pa.field(END, time.type), *others])

    def ends(self, keys: Bytes) -> Ints:
        """The ends of the windows with those keys, in microseconds since 1970."""
        return _micros(KeyCodec(self.key).decode(keys)[1])

    def windows_of(self, groups: Bytes) -> tuple[Ints, Bytes]:
        """The windows of contributions with those groups.

        The number of the contribution, and the key of the window, for each of them.
        """
        grouped = np.flatnonzero(valid(groups))
        time, *others = KeyCodec(self.group).decode(take(groups, grouped))
        time_us = _micros(time)
        # A time is in at most ``size / slide`` windows, rounded up: the last that starts by then,
        # and those before it.  The first of these may have ended already, if ``slide`` does not
        # divide ``size``; and with a ``slide`` above ``size`` even the last.
        back = np.arange(-(-self.size // self.slide)) * self.slide
        starts = (time_us // self.slide * self.slide)[:, None] - back
        number, which = np.nonzero(starts + self.size > time_us[:, None])
        start = starts[number, which]
        bounds = [pa.array(bound).cast(time.type) for bound in (start, start + self.size)]
        columns = [*bounds, *(take(values, number) for values in others)]
        return grouped[number], KeyCodec(self.key).encode(columns, len(number))

    def changed(self, before: Bytes, after: Bytes) -> tuple[Ints, Bytes, Bytes, Bytes]:
        """The windows that changes of contributions touch.

        The change's number, the key, the old and the new value.
        """
        old_group, old = unpaired(before)
        new_group, new = unpaired(after)
        of_old, old_keys = self.windows_of(old_group)
        of_new, new_keys = self.windows_of(new_group)
        # A window that the change was in and still is in gets one message: pair both by the
        # change's number and the window's key.
        number, keys = np.concatenate([of_old, of_new]), stack(old_keys, new_keys)
        code, names = codes(concat(fixed(number.astype("<i8")), keys))
        positions = np.full((2, len(names)), -1)
        positions[0, code[: len(of_old)]] = np.arange(len(of_old))
        positions[1, code[len(of_old) :]] = len(of_old) + np.arange(len(of_new))
        either = positions.max(axis=0)
        was = take(old, number[either], positions[0] >= 0)
        becomes = take(new, number[either], positions[1] >= 0)
        return number[either], take(keys, either), was, becomes


def _micros(times: pa.Array) -> Ints:
    return times.cast(pa.int64()).to_numpy(zero_copy_only=False)
