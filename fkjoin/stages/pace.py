"""pace, by key: holds changes of a table back until the interval is over, and sends each row's last one (periodic emission).

*Law*: what has been sent by the end of an interval is the table as it is then.  A row that came and went in between is never
sent, nor is one that is again as it was sent last.

Store: ``{'p'}{key}`` → the version, the timestamp and the row that wait, or that the row is gone; ``{'e'}{key}`` → version and
timestamp of what was sent last, and a 128-bit hash of it, for as long as the row is there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fkjoin.codec import records
from fkjoin.codec.arrays import codes, constant, equal, masked, prefixed, stack, take, untagged, valid
from fkjoin.codec.messages import RESULT, Operation, column, table
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.resolve import HAS_RESULT, digests
from fkjoin.state import Page, Store, prefix_range

WAITING = b"p"
SENT = b"e"


def pace(results: pa.Table, store: Store, count: Counters, *, over: bool) -> Iterator[pa.Table]:
    """Take changes (``RESULT``; of a key, the last counts); if the interval is ``over``, send what waits, in pages."""
    count[counters.ROWS_IN] += len(results)
    if len(results):
        code, keys = codes(column(results, "key"))
        last = np.empty(len(keys), np.int64)
        last[code] = np.arange(len(code))
        value, version, ts = (take(column(results, name), last) for name in ("value", "version", "ts"))
        flags = np.where(valid(value), HAS_RESULT, 0).astype(np.uint8)
        store.write(prefixed(WAITING, keys), records.encode(flags, ts.to_numpy(), version, value))
    if over:
        for page in store.scan([prefix_range(WAITING)]):
            yield _sent(page, store, count)


def _sent(page: Page, store: Store, count: Counters) -> pa.Table:
    """What of a page of waiting changes differs from what was sent last; written as sent."""
    keys, waiting = untagged(page.keys), records.decode(page.values)
    names = prefixed(SENT, keys)
    before = records.decode(store.get_many(names))
    had, there = before.found, waiting.flags & HAS_RESULT > 0
    value = masked(waiting.body, there)
    digest = digests(value)
    same = equal(digest, masked(before.body, had))
    count[counters.TOMBSTONES] += int((same & ~there).sum())
    count[counters.IDEMPOTENT] += int((same & there).sum())
    count[counters.OUT] += int((~same).sum())

    changed = np.flatnonzero(~same)
    operation = np.where(~there, Operation.DELETE, np.where(had, Operation.UPDATE, Operation.INSERT)).astype(np.int8)
    made = table(
        RESULT,
        take(keys, changed),
        operation[changed],
        take(value, changed),
        take(waiting.version, changed),
        waiting.ts[changed],
    )
    marks = masked(records.encode(waiting.flags, waiting.ts, waiting.version, digest), there)
    store.write(stack(page.keys, take(names, changed)), stack(constant(None, len(page.keys)), take(marks, changed)))
    return made
