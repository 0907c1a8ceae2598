"""resolve, by left key: emits only what is newest, and only what changes the result (KIP-213).

See docs/semantics.md, "Resolve".

*Law*: the highwater mark of a key is the pair (left version, right version) of the newest answer
taken, and an answer is taken only if its pair is greater.  Of the answers that a batch brings for a
key, the last result counts: it is emitted if it differs from the result emitted last, with the
timestamp of the answer that first led to it.

Store: ``{'d'}{left key}`` → highwater mark, whether there is a result, and a 128-bit hash of it,
followed by the result itself in a table that is materialized.  The record of a row that is gone is
a tombstone marker for the retention time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import (
    after,
    bools,
    changes_from_previous,
    concat,
    constant,
    equal,
    last_of_run,
    masked,
    stack,
    take,
    valid,
)
from fkjoin.codec.messages import RESULT, column
from fkjoin.stages.complete import Complete, CompletedBatch
from fkjoin.stages.counters import Counters
from fkjoin.stages.emit_on_change import (
    DIGEST_BYTES,
    HAS_RESULT,
    EmitDecision,
    Ending,
    digests,
    entries,
)
from fkjoin.stages.ordering import Newest, in_one_order, looked_up, newest_only
from fkjoin.stages.retention import later, sweep
from fkjoin.state import BYTES, Bytes, Store

if TYPE_CHECKING:  # Python 3.10 has none of it
    from typing_extensions import Required, Unpack

Keep = Literal["hash", "value", "both"]
"""The part of a result that is kept: a hash to compare the next one with, the result, or both."""


class Settled(NamedTuple):
    """Changes of a table (``RESULT``), and the value that each replaces.

    That is null where there was none, or none is kept.
    """

    results: pa.Table
    before: Bytes


class SettleOptions(TypedDict, total=False):
    """Options of ``settle``, which stages that call it take, too."""

    now_ms: Required[int]
    retention_ms: Required[int]
    every: bool
    as_read: bool
    in_order: bool
    of_answers: bool


def resolve(
    joined: pa.Table,
    store: Store,
    count: Counters,
    *,
    materialized: bool = False,
    complete: Complete | None = None,
    **how: Unpack[SettleOptions],
) -> pa.Table:
    """Turn answers after the joiner (``JOINED``) into changes of the joined table.

    Answers come in any order, duplicates allowed.  ``materialized``: keep the results, with their
    timestamps.  ``how``: as for ``settle``.
    """
    keep: Keep = "both" if materialized else "hash"
    return settle(joined, store, count, keep=keep, complete=complete, **how).results


def settle(
    joined: pa.Table,
    store: Store,
    count: Counters,
    *,
    now_ms: int,
    retention_ms: int,
    keep: Keep,
    every: bool = False,
    as_read: bool = False,
    in_order: bool = False,
    of_answers: bool = False,
    complete: Complete | None = None,
) -> Settled:
    """Resolve, and say what each change replaces::

        take the answers that are newer than their key's highwater mark, by key and version
        make rows whole that lack values (``complete``)
        of each key the last answer counts: emit it if it differs from what was emitted last
        write the new highwater mark, also where nothing is emitted

    A result is compared by its digest: a hash of it, or with ``keep="value"`` the value itself.
    ``every``: also emit results that are unchanged (emit on update); never tombstones of keys
    without a result.  ``as_read``, ``in_order``: see ``newest_only``.  ``of_answers``: the values
    are made of answers, some of which leave the joined row unchanged.  ``complete``: of a table
    that is materialized, what makes rows whole that lack values.
    """
    sweep(store, now_ms)
    if not len(joined):
        return Settled(RESULT.empty_table(), pa.array([], BYTES))
    code, keys, names, held = looked_up(joined, store)

    had = held.flags & HAS_RESULT > 0
    body_before = masked(held.body, had)
    digest_before = pc.binary_slice(body_before, 0, DIGEST_BYTES) if keep == "both" else body_before

    def contents() -> tuple[Bytes, Bytes]:
        value = column(joined, "value")
        return value if keep == "value" else digests(value), digest_before

    # ``complete`` also looks at changes that are not newer.  They must have versions of the same
    # order, so that these are made here, for all of them.
    if complete is not None:
        ordered = in_one_order(code, column(joined, "version"), held.version)
        joined = joined.set_column(joined.schema.get_field_index("version"), "version", ordered)
    by_contents = contents if as_read and complete is None else None
    newest = newest_only(
        code,
        column(joined, "version"),
        held,
        count,
        as_read=as_read,
        in_order=in_order,
        contents=by_contents,
    )
    if complete is not None:
        rows = after(body_before, DIGEST_BYTES, had)
        batch = CompletedBatch(
            complete, joined, code, newest, keys=keys, held=held, rows=rows, store=store
        )
        joined, code, borrowed = batch.completed(count)
        newest = Newest(np.arange(len(code)), code, column(joined, "version"))
        store.write(*borrowed)
    order, code, version = newest
    value, ts = column(joined, "value"), take(column(joined, "ts"), order).to_numpy()

    # Each answer has a previous one: of its key in the batch, or else what was emitted last.
    digest = take(value if keep == "value" else digests(value), order)
    first, last = changes_from_previous(code), np.flatnonzero(last_of_run(code))
    answers = np.arange(len(code))
    previous = take(stack(digest_before, digest), np.where(first, code, len(keys) + answers - 1))
    same, has = equal(digest, previous), valid(digest)

    # The result has the timestamp of the answer that first led to it: that is the last answer that
    # differs from its previous one, up to the key's last.  A key without such an answer looks back
    # into the keys before it; it is unchanged, and its time is not used.
    final = code[last]
    time = ts[np.maximum.accumulate(np.where(~same | every, answers, 0))[last]]
    unchanged = equal(take(digest, last), take(digest_before, final))
    # A group has the timestamp of its rows' latest changes, also of those that contribute the same.
    # So a change that brings nothing but a later timestamp is passed on.  Answers may be no change.
    if keep == "value" and not of_answers:
        time = np.maximum.reduceat(ts, np.flatnonzero(first))
        unchanged &= time <= held.ts[final]
    emission = EmitDecision.of(had[final], has[last], unchanged, count, every=every)
    emit = emission.emit
    position, version = order[last], take(version, last)
    shown = take(value, position)
    results = emission.results(take(keys, final), shown, version, time)

    since, body = np.zeros(len(last), np.int64), take(digest, last)
    if keep != "hash":
        since = np.where(emit, time, held.ts[final])
    if keep == "both":
        body = concat(body, shown)
    gone = bools(take(column(joined, "gone"), position))
    due_ms = now_ms + (retention_ms if as_read or in_order else later(retention_ms))
    ending = Ending(gone, due_ms, in_order)
    store.write(*entries(take(names, final), since, version, body, ending, has=has[last]))
    if keep == "hash":
        return Settled(results, constant(None, len(results)))
    if keep == "both":
        body_before = after(body_before, DIGEST_BYTES, had)
    return Settled(results, take(body_before, final[emission.emit]))
