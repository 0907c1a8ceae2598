"""owners, by output key: the rows that input rows make under one key, of which one is the table's.

An input row *owns* what it makes.  Of a key that several rows own, the output of the first of them
is shown: the one whose own key is least in byte order.  When it goes, the next one's is shown.

See docs/semantics.md, "Flat map".

*Law*: after every batch the table is what the rows of that moment make, whatever the order, the
batches and the versions in which they came to be: for each key, the output of its first owner.

Store: ``{'d'}{key}`` → a counter as version, the greatest timestamp, and the list of owners with
their outputs, as ``codec.pairs`` writes it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import pairs
from fkjoin.codec.arrays import (
    changes_from_previous,
    codes,
    constant,
    equal,
    last_of_run,
    masked,
    take,
    valid,
)
from fkjoin.codec.messages import NO_TIMESTAMP, RESULT, column
from fkjoin.stages import counters
from fkjoin.stages.emit_on_change import HAS_RESULT, EmitDecision, Ending, entries
from fkjoin.stages.ordering import by_code_and_version, looked_up
from fkjoin.stages.retention import sweep
from fkjoin.state import Bytes, Store


def owners(
    outputs: pa.Table,
    store: Store,
    count: counters.Counters,
    *,
    source: bytes,
    now_ms: int,
    retention_ms: int,
    every: bool = False,
) -> pa.Table:
    """Turn changes of outputs (``GROUPED``, each once) into changes of the table (``RESULT``).

    ``source``: identity of the table's own versions, which are a counter that never falls behind
    the clock's milliseconds. ``every``: also emit rows that are unchanged.
    """
    sweep(store, now_ms)
    count[counters.ROWS_IN] += len(outputs)
    if not len(outputs):
        return RESULT.empty_table()
    code, keys, names, held = looked_up(outputs, store)
    had = held.flags & HAS_RESULT > 0
    before = pairs.decode(masked(held.body, had))
    came = pairs.Pairs(code, column(outputs, "row"), column(outputs, "new"))
    after = _replaced(before, came, column(outputs, "version"))

    shown = _shown(after, len(keys))
    has = valid(shown)
    count[counters.HIDDEN] += len(after) - int(has.sum())
    unchanged = equal(_shown(before, len(keys)), shown)
    emission = EmitDecision.of(had, has, unchanged, count, every=every)
    version = emission.own_versions(held, source, now_ms)
    latest = np.where(held.exists, held.ts, NO_TIMESTAMP)
    np.maximum.at(latest, code, column(outputs, "ts").to_numpy())
    ts = np.where(emission.emit, latest, held.ts)
    changes = emission.results(keys, shown, version, ts)
    body = pairs.encode(after, len(keys))
    ending = Ending(~has, now_ms + retention_ms)
    store.write(*entries(names, ts, version, body, ending, has=has))
    return changes


def shown_outputs(bodies: Bytes) -> Bytes:
    """The rows that are shown, of bodies of records; null where there is none."""
    return _shown(pairs.decode(bodies), len(bodies))


def _replaced(before: pairs.Pairs, came: pairs.Pairs, version: Bytes) -> pairs.Pairs:
    """The outputs of each key by owner, with the last of those that ``came``; null is none."""
    owner, _ = codes(came.names)
    order = by_code_and_version(owner, version)
    last = came.at(order[last_of_run(owner[order])])
    stays = ~valid(pc.index_in(before.names, value_set=last.names))
    return before.where(stays).and_more(last.where(valid(last.second))).in_order()


def _shown(outputs: pairs.Pairs, keys: int) -> Bytes:
    """The first output of each of so many keys, of outputs in order; null where there is none."""
    if not len(outputs):
        return constant(None, keys)
    # Outputs are in order of keys and owners: the first of a key belongs to its first owner.
    position = np.full(keys, -1)
    first = changes_from_previous(outputs.row)
    position[outputs.row[first]] = np.flatnonzero(first)
    return take(outputs.second, position, position >= 0)
