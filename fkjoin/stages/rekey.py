"""rekey, by left key: left changes become subscriptions under their foreign keys (KIP-213).

See docs/semantics.md, "Rekey".

*The law that makes the join converge*: every change of a left row leads to exactly one answer that
carries its version.  A subscribe is answered by the subscription stage; a change to no foreign key
is answered here.  What leaves a row's bytes and foreign key unchanged is not a change, and ends
here (KIP-557); its version is remembered all the same.

Store: ``{'d'}{left key}`` → version and foreign key last seen, and, for a retention time, both of
rows that are gone.  In the place of a record's timestamp stands, with the flag ``HASHED``, a 64-bit
hash of the row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import (
    Bools,
    Ints,
    changes_from_previous,
    chosen,
    concat,
    constant,
    equal,
    fixed,
    last_of_run,
    masked,
    prefixed,
    stack,
    take,
    valid,
)
from fkjoin.codec.messages import ANSWER, SUBSCRIPTION, column, table
from fkjoin.codec.versions import fingerprints
from fkjoin.stages import counters
from fkjoin.stages.emit_on_change import Ending, entries
from fkjoin.stages.ordering import looked_up, newest_changes
from fkjoin.stages.retention import sweep
from fkjoin.state import Bytes, Store

HAS_FOREIGN_KEY = 2
"""The flag of a record with a foreign key."""
HASHED = 4
"""The flag of a record with a hash of the row."""


class Rekeyed(NamedTuple):
    """Messages to the foreign keys, and answers that go straight to the left keys."""

    subscriptions: pa.Table
    answers: pa.Table


def rekey(
    changes: pa.Table,
    store: Store,
    count: counters.Counters,
    *,
    now_ms: int,
    retention_ms: int,
    right_parts: int = 1,
    every: bool = False,
    in_order: bool = False,
) -> Rekeyed:
    """Turn left ``changes`` (``CHANGE``; any order, duplicates allowed) into messages.

    A change whose version is not newer than the one remembered is dropped and counted.  A deletion
    counts as a change to no foreign key.  ``right_parts``: of how many parts the right table's
    versions are made.  ``every``: newer versions that leave a row unchanged count as changes.
    ``in_order``: see ``newest_only``.
    """
    sweep(store, now_ms)
    count[counters.LEFT_IN] += len(changes)
    if not len(changes):
        return Rekeyed(SUBSCRIPTION.empty_table(), ANSWER.empty_table())
    code, keys, names, held = looked_up(changes, store)

    digest, alive = fingerprints(column(changes, "value")), valid(column(changes, "value"))
    foreign_key_before = masked(held.body, held.flags & HAS_FOREIGN_KEY > 0)

    def contents() -> tuple[Bytes, Bytes]:
        came = contents_of(digest, column(changes, "foreign_key"), alive)
        return came, contents_of(held.ts, foreign_key_before, held.flags & HASHED > 0)

    order, code, version = newest_changes(changes, code, held, count, contents, in_order=in_order)

    # A chain: each change follows the one before it of its key, the first one what is stored.  All
    # of them are looked at, since each subscribe must be answered, with its own version.
    key, value, ts = (take(column(changes, name), order) for name in ("key", "value", "ts"))
    digest, alive = digest[order], alive[order]
    foreign_key = masked(take(column(changes, "foreign_key"), order), alive)
    first = changes_from_previous(code)
    previous = np.where(first, code, len(keys) + np.arange(len(code)) - 1)
    before = take(stack(foreign_key_before, foreign_key), previous)
    seen = ~first | held.exists[code]
    stays = equal(before, foreign_key)
    # ``held.ts`` is the row's hash; records without one, such as markers, are never unchanged.
    known = np.where(first, (held.flags & HASHED > 0)[code], np.append(False, alive[:-1]))
    digest_before = np.where(first, held.ts[code], np.append(0, digest[:-1]))
    unchanged = alive & known & stays & (digest == digest_before)
    count[counters.IDEMPOTENT] += 0 if every else int(unchanged.sum())

    # Who answers a change: its foreign key's bucket, or without one this stage.  A deletion of a
    # row that was never seen asks for nothing, and needs no answer.
    counts = np.ones(len(code), bool) if every else ~unchanged
    subscribe = valid(foreign_key) & counts
    leave = valid(before) & ~stays
    answer = ~valid(foreign_key) & (seen | alive) & counts
    messages = np.concatenate([np.flatnonzero(leave), np.flatnonzero(subscribe)])
    wanted = np.arange(len(messages)) >= leave.sum()
    subscriptions = table(
        SUBSCRIPTION,
        stack(chosen(before, leave), chosen(foreign_key, subscribe)),
        take(key, messages),
        wanted,
        take(version, messages),
        take(value, messages, wanted),
        take(ts, messages),
    )
    rows = int(answer.sum())
    own_key, own_version, own_value, own_ts = (
        chosen(part, answer) for part in (key, version, value, ts)
    )
    both = concat(own_version, constant(versions.absent(right_parts), rows))
    answers = table(ANSWER, own_key, both, own_value, constant(None, rows), own_ts)

    last = np.flatnonzero(last_of_run(code))
    gone, has = ~alive[last], valid(foreign_key)[last]
    last_names, last_version = take(names, code[last]), take(version, last)
    ending = Ending(gone, now_ms + retention_ms, in_order)
    flags = np.bitwise_or(np.where(gone, 0, HASHED), np.where(has, HAS_FOREIGN_KEY, 0))
    body = take(foreign_key, last)
    store.write(*entries(last_names, digest[last], last_version, body, ending, flags=flags))
    return Rekeyed(subscriptions, answers)


def contents_of(digest: Ints, foreign_key: Bytes, alive: Bools) -> Bytes:
    """Contents that ties are broken by: a hash of the row, and the foreign key.

    The row may lack columns of the foreign key.
    """
    return masked(concat(fixed(digest), prefixed(b"1", foreign_key)), alive)
