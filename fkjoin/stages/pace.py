"""pace, by key: holds changes back until an interval is over, and emits each row's last one.

See docs/semantics.md, "Emit on change".

*Law*: what has been emitted by the end of an interval is the table as it is then.  A row that came
and went in between is never emitted, nor is one that is unchanged since it was emitted last.

Store: ``{'p'}{key}`` → the version, the timestamp and the row that wait, or that the row is gone;
``{'e'}{key}`` → version and timestamp of what was emitted last, and a 128-bit hash of it, for as
long as the table has the row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fkjoin.codec import records, tags
from fkjoin.codec.arrays import (
    chosen,
    codes,
    constant,
    equal,
    masked,
    prefixed,
    stack,
    take,
    untagged,
    valid,
)
from fkjoin.codec.messages import column
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.emit_on_change import HAS_RESULT, EmitDecision, digests
from fkjoin.state import Page, Store, prefix_range


def pace(results: pa.Table, store: Store, count: Counters, *, over: bool) -> Iterator[pa.Table]:
    """Take changes (``RESULT``; of a key, the last counts); emit pages if the time is ``over``."""
    count[counters.ROWS_IN] += len(results)
    if len(results):
        code, keys = codes(column(results, "key"))
        last = np.empty(len(keys), np.int64)
        last[code] = np.arange(len(code))
        value, version, ts = (
            take(column(results, name), last) for name in ("value", "version", "ts")
        )
        flags = np.where(valid(value), HAS_RESULT, 0).astype(np.uint8)
        store.write(
            prefixed(tags.WAITING, keys), records.encode(flags, ts.to_numpy(), version, value)
        )
    if over:
        for page in store.scan([prefix_range(tags.WAITING)]):
            yield _emitted(page, store, count)


def _emitted(page: Page, store: Store, count: Counters) -> pa.Table:
    """The waiting changes that differ from what was emitted last; they are written as emitted."""
    keys, waiting = untagged(page.keys), records.decode(page.values)
    names = prefixed(tags.EMITTED, keys)
    before = records.decode(store.get_many(names))
    has = waiting.flags & HAS_RESULT > 0
    value = masked(waiting.body, has)
    digest = digests(value)
    unchanged = equal(digest, masked(before.body, before.exists))
    emission = EmitDecision.of(before.exists, has, unchanged, count)

    emitted = masked(records.encode(waiting.flags, waiting.ts, waiting.version, digest), has)
    store.write(
        stack(page.keys, chosen(names, emission.emit)),
        stack(constant(None, len(page.keys)), chosen(emitted, emission.emit)),
    )
    return emission.results(keys, value, waiting.version, waiting.ts)
