"""enrich, by the table's key: each event is joined once with the row that the table has then.

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
    bools,
    chosen,
    codes,
    constant,
    masked,
    prefixed,
    replaced,
    stack,
    take,
    valid,
)
from fkjoin.codec.messages import ENRICHED, column, table
from fkjoin.stages import counters
from fkjoin.stages.emit_on_change import Ending, entries
from fkjoin.stages.join_rows import How
from fkjoin.stages.ordering import newest_rows
from fkjoin.stages.retention import GONE, sweep
from fkjoin.state import Store


def enrich(
    rows: pa.Table,
    events: pa.Table,
    store: Store,
    count: counters.Counters,
    *,
    how: How,
    now_ms: int,
    retention_ms: int,
    in_order: bool = False,
) -> pa.Table:
    """Take in the table's changes (``JOINED``); then turn ``EVENT`` into ``ENRICHED``.

    Changes come in any order, duplicates allowed; each event comes once.  ``how``: ``"inner"``
    drops events for which the table has no row, and ``"left"`` sends them with null.  ``in_order``:
    see ``newest_only``.
    """
    sweep(store, now_ms)
    count[counters.ROWS_IN] += len(rows)
    count[counters.EVENTS_IN] += len(events)
    named = bools(column(events, "named"))
    code, keys = codes(stack(column(rows, "key"), chosen(column(events, "key"), named)))
    names = prefixed(tags.ROW, keys)
    held = records.decode(store.get_many(names))
    before = masked(held.body, held.exists & (held.flags & GONE == 0))
    newest = newest_rows(rows, code[: len(rows)], held, count, before, in_order=in_order)
    position, where, version = newest.last()
    value, ts = (take(column(rows, name), position) for name in ("value", "ts"))
    ending = Ending(~valid(value), now_ms + retention_ms, in_order)
    store.write(*entries(take(names, where), ts.to_numpy(), version, value, ending))
    after = replaced(before, where, value)

    # The batch's changes come first, and events look at what they have left: the order in which
    # both came in the batch must not matter.
    nothing = constant(None, len(events))
    row = replaced(nothing, np.flatnonzero(named), take(after, code[len(rows) :]))
    known = valid(row)
    count[counters.WITHOUT_ROW] += int((~known).sum())
    sent = known if how == "inner" else np.ones(len(events), bool)
    count[counters.OUT] += int(sent.sum())
    columns = column(events, "key"), column(events, "event"), row
    return table(ENRICHED, *(chosen(values, sent) for values in columns))
