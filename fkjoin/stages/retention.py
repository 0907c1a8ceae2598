"""Marks that outlive their row, and their end.

A record whose row is gone stays for a retention time, so that what arrives late is still seen to be late.  Beside it
stands an entry ``{'t'}{uint64 big-endian due time, ms}{record's key}``; when that is due and the record has not changed
its version since, both go.  Each call removes at most ``SWEEP`` marks, so that no batch pays for many.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fkjoin import records
from fkjoin.arrays import Bools, Bytes, after, concat, constant, equal, fixed
from state import Store

GONE = 1
"""The flag of a record whose row is gone."""

SWEEP = 10_000
_TAG = b"t"


def due_entries(keys: Bytes, versions: Bytes, due_ms: int) -> tuple[Bytes, Bytes]:
    """The entries to write beside records of rows that are gone."""
    due = np.full(len(keys), max(due_ms, 0), ">u8").view(np.uint8).reshape(-1, 8)
    return concat(constant(_TAG, len(keys)), fixed(due), keys), versions


def sweep(store: Store, now_ms: int) -> None:
    """Remove the marks whose time is over."""
    until = _TAG + (max(now_ms, 0) + 1).to_bytes(8, "big")
    for page in store.scan([(_TAG, until)], SWEEP):
        store.write(page.keys, constant(None, len(page.keys)))
        keys = after(page.keys, np.full(len(page.keys), 9))
        held = pa.table({"key": keys, "version": page.values}).group_by("key").aggregate([("version", "max")])
        keys = held.column("key").combine_chunks()
        stored = records.decode(store.get_many(keys))
        over: Bools = stored.found & (stored.flags & GONE > 0)
        over &= equal(stored.version, held.column("version_max").combine_chunks())
        store.write(keys.filter(pa.array(over)), constant(None, int(over.sum())))
