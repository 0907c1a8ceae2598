"""regroup, by row key: changes of rows become changes of what they contribute to groups (KIP-904).

A row's value is here its *contribution*:
``{uint32 little-endian: length of the group's key}{group's key}{value}``; null is not a
contribution. Where the group stays, one message takes back and adds; where it moves, there are two.
Where groups are windows of time, a contribution's group has the row's time in the place of a
window, and each window gets one message.

See docs/semantics.md, "Aggregates".

Store: as resolve's, with the contributions in place of results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import (
    Bools,
    Ints,
    constant,
    equal,
    masked,
    paired,
    stack,
    take,
    unpaired,
    valid,
)
from fkjoin.codec.messages import GROUPED, column, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.stages import counters
from fkjoin.stages.resolve import SettleOptions, settle
from fkjoin.stages.time_windows import TimeWindows
from fkjoin.state import Bytes, Store

if TYPE_CHECKING:  # Python 3.10 has none of it
    from typing_extensions import Unpack


def contributions(
    group: pa.Schema,
    groups: list[pa.Array],
    value: pa.Schema,
    values: list[pa.Array],
    has_row: Bools,
) -> Bytes:
    """Make contributions of the columns of groups' keys and of values.

    There is none without a row, nor where a group's key has a null.
    """
    keys = KeyCodec(group).encode(groups, len(has_row))
    encoded = RowCodec(value).encode(values, len(has_row))
    return masked(paired(pc.fill_null(keys, b""), encoded), has_row & valid(keys))


def regroup(
    rows: pa.Table,
    store: Store,
    count: counters.Counters,
    *,
    windows: TimeWindows | None = None,
    letters: bool = False,
    **how: Unpack[SettleOptions],
) -> pa.Table:
    """Turn rows whose values are contributions (``JOINED``) into ``GROUPED``.

    Rows come in any order, duplicates allowed.  A change that is not newer than the row's last is
    dropped; one that leaves the contribution unchanged too, unless ``every`` one is to be emitted.
    ``how``: as for ``settle``.  Rows whose time is too far ahead of the batch's are set
    aside and counted, so that the last row of their key stays; with ``letters``, each becomes a
    message without old and new value.
    """
    count[counters.ROWS_IN] += len(rows)
    beyond = rows.slice(0, 0)
    if windows is not None and windows.ahead is not None:
        # A row of the far future would drive stream time there, and close all windows before it.
        beyond_ts = column(rows, "ts").to_numpy() > 1000 * how["now_ms"] + windows.ahead
        early = valid(column(rows, "value")) & beyond_ts
        rows, beyond = rows.filter(pa.array(~early)), rows.filter(pa.array(early)).combine_chunks()
        if len(beyond):
            count.update(counters.commonest([windows.ahead_text] * len(beyond)))
    settled = settle(rows, store, count, keep="value", **how)
    results = settled.results
    changed = _changed if windows is None else windows.changed
    change, key, old, new = changed(settled.before, column(results, "value"))
    row, version, ts = (take(column(results, name), change) for name in ("key", "version", "ts"))
    grouped = table(GROUPED, key, row, version, old, new, ts)
    if not letters or windows is None:
        return grouped
    # The windows that rows would be in, as messages without values.
    number, key = windows.windows_of(unpaired(column(beyond, "value"))[0])
    row, version, ts = (take(column(beyond, name), number) for name in ("key", "version", "ts"))
    nothing = constant(None, len(number))
    return pa.concat_tables([grouped, table(GROUPED, key, row, version, nothing, nothing, ts)])


def _changed(before: Bytes, after: Bytes) -> tuple[Ints, Bytes, Bytes, Bytes]:
    """The groups that changes of contributions touch.

    The number of the change, the group's key, the old and the new value.
    """
    old_group, old = unpaired(before)
    new_group, new = unpaired(after)
    had, has = valid(old_group), valid(new_group)
    stays = had & has & equal(old_group, new_group)
    # A change within a group is one message.  As two, its group could be seen without the row.
    both, out, into = (np.flatnonzero(which) for which in (stays, had & ~stays, has & ~stays))
    return (
        np.concatenate([both, out, into]),
        stack(take(new_group, both), take(old_group, out), take(new_group, into)),
        stack(take(old, both), take(old, out), constant(None, len(into))),
        stack(take(new, both), constant(None, len(out)), take(new, into)),
    )
