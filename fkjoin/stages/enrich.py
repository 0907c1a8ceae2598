"""enrich, by the table's key: each event is joined once with the table's row as it is when the
event is processed.

See docs/semantics.md, "Enrich".

*Law*: an event gets the row that its key has after all of the table's changes of its batch and of
those before, and is sent in that batch and never again.  So it sees each change of the table as a
whole: none, or all that a batch makes of a row.  In which order changes and events of a batch come,
and how often a change comes, does not matter.

Store: ``{'d'}{key}`` → the version, the timestamp and the row of the table's last change.  The
record of a row that is gone is a tombstone marker for the retention time.  Nothing of an event is
stored.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fkjoin.codec import records, tags
from fkjoin.codec.arrays import (
    Bytes,
    Ints,
    bools,
    chosen,
    codes,
    constant,
    last_of_run,
    masked,
    prefixed,
    replaced,
    stack,
    take,
    valid,
)
from fkjoin.codec.messages import ENRICHED, column, table
from fkjoin.codec.records import Records
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.join_rows import How
from fkjoin.stages.ordering import newest_only
from fkjoin.stages.retention import GONE, kept, sweep
from fkjoin.state import Store


def enrich(
    rows: pa.Table,
    events: pa.Table,
    store: Store,
    count: Counters,
    *,
    how: How,
    now_ms: int,
    retention_ms: int,
    in_order: bool = False,
) -> pa.Table:
    """Turn events (``EVENT``) into events with rows (``ENRICHED``), after the table's changes
    (``JOINED``) are taken in.

    Changes come in any order, duplicates allowed; each event comes once.  ``how``: ``"inner"``
    drops events for which the table has no row, and ``"left"`` sends them with null.  ``in_order``:
    see ``newest_only``.
    """
    sweep(store, now_ms)
    count[counters.ROWS_IN] += len(rows)
    count[counters.EVENTS_IN] += len(events)
    named = bools(column(events, "named"))
    code, keys = codes(stack(column(rows, "key"), chosen(column(events, "key"), named)))
    held = records.decode(store.get_many(prefixed(tags.ROW, keys)))
    newest = _taken_in(
        rows,
        code[: len(rows)],
        keys,
        held,
        store,
        count=count,
        due_ms=now_ms + retention_ms,
        in_order=in_order,
    )

    row = replaced(
        constant(None, len(events)), np.flatnonzero(named), take(newest, code[len(rows) :])
    )
    there = valid(row)
    count[counters.WITHOUT_ROW] += int((~there).sum())
    sent = there if how == "inner" else np.ones(len(events), bool)
    count[counters.OUT] += int(sent.sum())
    return table(
        ENRICHED,
        *(chosen(one, sent) for one in (column(events, "key"), column(events, "event"), row)),
    )


def _taken_in(
    rows: pa.Table,
    code: Ints,
    keys: Bytes,
    held: Records,
    store: Store,
    *,
    count: Counters,
    due_ms: int,
    in_order: bool,
) -> Bytes:
    """Write what the batch changes, and return the row of each key after that; null where there is none."""
    row = masked(held.body, held.exists & (held.flags & GONE == 0))
    order, code, version = newest_only(
        code,
        column(rows, "version"),
        held,
        count,
        as_read=True,
        in_order=in_order,
        contents=lambda: (column(rows, "value"), row),
    )
    last = np.flatnonzero(last_of_run(code))
    place, where, version = order[last], code[last], take(version, last)
    value, ts = take(column(rows, "value"), place), take(column(rows, "ts"), place).to_numpy()
    gone = ~valid(value)
    body = records.encode(np.where(gone, GONE, 0).astype(np.uint8), ts, version, value)
    store.write(
        *kept(
            prefixed(tags.ROW, take(keys, where)),
            body,
            version,
            gone=gone,
            due_ms=due_ms,
            in_order=in_order,
        )
    )
    return replaced(row, where, value)
