"""Tombstone markers: records that outlive their row, and their end.

A record whose row is gone stays for a retention time, so that a stale change is still seen to be
stale.  Beside it stands a due entry ``{'t'}{uint64 big-endian due time, ms}{record's key}`` with
the record's version; when that is due and the record has not changed its version since, both go.
Each call removes at most ``SWEEP`` markers, so that no batch pays for many.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fkjoin.codec import records, tags
from fkjoin.codec.arrays import Bools, after, chosen, codes, concat, constant, equal, fixed, take
from fkjoin.state import Bytes, Store

GONE = 1
"""The flag of a record whose row is gone: a tombstone marker."""

SWEEP = 10_000

_DUE_HEAD = 9
"""Bytes before the record's key in the key of a due entry: the tag and the time."""


def due_entries(keys: Bytes, versions: Bytes, due_ms: int) -> tuple[Bytes, Bytes]:
    """The entries to write beside tombstone markers."""
    due = np.full(len(keys), max(due_ms, 0), ">u8")
    return concat(constant(tags.DUE, len(keys)), fixed(due), keys), versions


def later(retention_ms: int) -> int:
    """The retention time of a stage that a topic parts from the stage before.

    It is half as long, so that this stage's markers are gone first, as long as messages are not
    delayed, nor clocks apart, by the other half.
    """
    return (retention_ms + 1) // 2


def sweep(
    store: Store, now_ms: int, needed: Callable[[Bytes], Bools] | None = None, again_ms: int = 0
) -> None:
    """Remove the markers that are due; those that are ``needed`` get a new end, at ``again_ms``::

    for each due entry: remove it
        its record has another version now: leave the record, which has another due entry
        its record is needed: write a due entry for later
        else: remove the record

    """
    until = tags.DUE + (max(now_ms, 0) + 1).to_bytes(8, "big")
    for page in store.scan([(tags.DUE, until)], SWEEP):
        store.write(page.keys, constant(None, len(page.keys)))
        code, keys = codes(after(page.keys, _DUE_HEAD))
        held = records.decode(store.get_many(keys))
        ended = np.isin(np.arange(len(keys)), code[equal(take(held.version, code), page.values)])
        over: Bools = held.exists & (held.flags & GONE > 0) & ended
        names, version = chosen(keys, over), chosen(held.version, over)
        if needed is not None and len(names):
            stays = needed(names)
            store.write(*due_entries(chosen(names, stays), chosen(version, stays), again_ms))
            names = chosen(names, ~stays)
        store.write(names, constant(None, len(names)))
