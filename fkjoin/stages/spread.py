"""spread, by row key: a table's changes become changes of the rows that its rows make.

A row's value is here the list of its *outputs*, as ``codec.pairs`` writes it: key and row of each.
Null is not an output.

See docs/semantics.md, "Flat map".

*Law*: of what a row's newest version makes, and of what the version before it made, only what
differs is passed on: an output that is new or has changed, and the end of one that the row makes no
longer.  All of it is of one batch.

Store: as resolve's, with the lists in place of results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fkjoin.codec import pairs
from fkjoin.codec.arrays import Bytes, Ints, codes, constant, equal, take
from fkjoin.codec.messages import GROUPED, column, table
from fkjoin.stages import counters
from fkjoin.stages.resolve import SettleOptions, settle
from fkjoin.state import Store

if TYPE_CHECKING:  # Python 3.10 has none of it
    from typing_extensions import Unpack


def spread(
    rows: pa.Table, store: Store, count: counters.Counters, **how: Unpack[SettleOptions]
) -> pa.Table:
    """Turn rows whose values are lists of outputs (``JOINED``) into ``GROUPED``.

    Rows come in any order, duplicates allowed.  Each message is for an output's key, its ``row`` is
    the key of the row that makes the output, and ``old`` is null: the stage after this one knows
    it.  ``how``: as for ``settle``; with ``every``, outputs that are unchanged are sent, too.
    """
    count[counters.ROWS_IN] += len(rows)
    every = how.get("every", False)
    settled = settle(rows, store, count, keep="value", **how)
    results = settled.results
    # Rows that have a later timestamp and nothing else come to here, and send no outputs: these are
    # compared without their timestamps.
    if not every:
        count[counters.IDEMPOTENT] += int(equal(settled.before, column(results, "value")).sum())
    number, key, new = _changed(settled.before, column(results, "value"), every)
    row, version, ts = (take(column(results, name), number) for name in ("key", "version", "ts"))
    return table(GROUPED, key, row, version, constant(None, len(number)), new, ts)


def _changed(before: Bytes, after: Bytes, every: bool) -> tuple[Ints, Bytes, Bytes]:
    """The outputs that differ between two lists of each row.

    The number of the row, the key, and the new output or null.
    """
    old, new = pairs.decode(before), pairs.decode(after)
    both = old.and_more(new)
    code, names = codes(both.names)
    positions = np.full((2, len(names)), -1)
    positions[0, code[: len(old)]] = np.arange(len(old))
    positions[1, code[len(old) :]] = np.arange(len(new))
    was = take(old.second, positions[0], positions[0] >= 0)
    becomes = take(new.second, positions[1], positions[1] >= 0)
    differs = np.flatnonzero(~equal(was, becomes) | (every & (positions[1] >= 0)))
    either = np.where(positions[1] >= 0, len(old) + positions[1], positions[0])[differs]
    return both.row[either], take(both.first, either), take(becomes, differs)
