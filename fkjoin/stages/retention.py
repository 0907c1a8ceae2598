"""Marks that outlive their row, and their end.

A record whose row is gone stays for a retention time, so that what arrives late is still seen to be late.  Beside it
stands an entry ``{'t'}{uint64 big-endian due time, ms}{record's key}``; when that is due and the record has not changed
its version since, both go.  Each call removes at most ``SWEEP`` marks, so that no batch pays for many.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from fkjoin.codec import records
from fkjoin.codec.arrays import Bools, Bytes, after, codes, concat, constant, equal, fixed, masked, stack, take
from fkjoin.state import Store

GONE = 1
"""The flag of a record whose row is gone."""

SWEEP = 10_000
_TAG = b"t"


def due_entries(keys: Bytes, versions: Bytes, due_ms: int) -> tuple[Bytes, Bytes]:
    """The entries to write beside records of rows that are gone."""
    due = np.full(len(keys), max(due_ms, 0), ">u8").view(np.uint8).reshape(-1, 8)
    return concat(constant(_TAG, len(keys)), fixed(due), keys), versions


def kept(
    names: Bytes, values: Bytes, versions: Bytes, gone: Bools, due_ms: int, in_order: bool | Bools = False
) -> tuple[Bytes, Bytes]:
    """The entries to write for records with those ``names``: marks of rows that are ``gone`` end at ``due_ms``.

    What comes ``in_order`` is never late: of its rows that are gone nothing is kept.
    """
    marks = pa.array(gone & ~np.broadcast_to(in_order, gone.shape))
    due = due_entries(names.filter(marks), versions.filter(marks), due_ms)
    return stack(names, due[0]), stack(masked(values, ~(gone & in_order)), due[1])


def later(retention_ms: int) -> int:
    """How long a stage keeps marks that a topic parts from the stage before: so much shorter that its marks are gone first, as
    long as messages are not late, nor clocks apart, by the other half.
    """
    return (retention_ms + 1) // 2


def sweep(store: Store, now_ms: int, needed: Callable[[Bytes], Bools] | None = None, again_ms: int = 0) -> None:
    """Remove the marks whose time is over; those of records that are ``needed`` get a new end, at ``again_ms``."""
    until = _TAG + (max(now_ms, 0) + 1).to_bytes(8, "big")
    for page in store.scan([(_TAG, until)], SWEEP):
        store.write(page.keys, constant(None, len(page.keys)))
        code, keys = codes(after(page.keys, np.full(len(page.keys), 9)))
        stored = records.decode(store.get_many(keys))
        ended = equal(take(stored.version, code), page.values)
        over: Bools = stored.found & (stored.flags & GONE > 0) & np.isin(np.arange(len(keys)), code[ended])
        names, version = keys.filter(pa.array(over)), stored.version.filter(pa.array(over))
        if needed is not None and len(names):
            stays = needed(names)
            store.write(*due_entries(names.filter(pa.array(stays)), version.filter(pa.array(stays)), again_ms))
            names = names.filter(pa.array(~stays))
        store.write(names, constant(None, len(names)))
