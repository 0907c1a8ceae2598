"""guard, by group: what a row contributes counts once, however often its changes come.

Store: ``{'s'}{CombinedKey of group and row}`` → the version of the last change taken, and the
contribution; gone ones are remembered for the retention time.  What is remembered is what is taken
back, whatever a message says of it.

*Law*: between regroup and here messages may come twice, delayed or in any order; at the end each
group has what its rows contribute (the versions decide, as in the subscription stage).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec import combined_key, records, tags
from fkjoin.codec.arrays import Bytes, codes, last_of_run, masked, prefixed, take, valid
from fkjoin.codec.messages import GROUPED, column, table
from fkjoin.stages.counters import Counters
from fkjoin.stages.ordering import newest_only
from fkjoin.stages.retention import GONE, with_due_entries
from fkjoin.state import Store


class Guarded(NamedTuple):
    """Changes that count (``GROUPED``), and the entries to be written with them."""

    grouped: pa.Table
    entries: tuple[Bytes, Bytes]


def guard(grouped: pa.Table, store: Store, count: Counters, due_ms: int) -> Guarded:
    """The changes newer than what is remembered, with what they replace.

    Tombstone markers end at ``due_ms``.
    """
    combined = combined_key.encode(column(grouped, "key"), column(grouped, "row"))
    code, names = codes(prefixed(tags.SUBSCRIBER, combined))
    held = records.decode(store.get_many(names))
    order, code, version = newest_only(code, column(grouped, "version"), held, count)
    last = np.flatnonzero(last_of_run(code))
    order, code, version = order[last], code[last], take(version, last)
    before = masked(held.body, held.exists & (held.flags & GONE == 0))
    old, new = take(before, code), take(column(grouped, "new"), order)
    key, row, ts = (take(column(grouped, name), order) for name in ("key", "row", "ts"))
    gone = ~valid(new)
    counts = pa.array(valid(old) | ~gone)
    changes = table(GROUPED, key, row, version, old, new, ts).filter(counts)
    values = records.encode(np.where(gone, GONE, 0).astype(np.uint8), ts.to_numpy(), version, new)
    entries = with_due_entries(take(names, code), values, version, gone=gone, due_ms=due_ms)
    return Guarded(changes, entries)
