"""Emission: a table gets only what differs from what was emitted last (KIP-557).

*Law*: a key without a result gets no second tombstone, and a result that is unchanged goes no
further, unless every update is wanted.  What counts as unchanged is the stage's to say; what
follows from it is the same for all stages, and stands here.

A record with a result has the flag ``HAS_RESULT``; one whose row is gone is a tombstone marker (see
``retention``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from fkjoin.codec import records, versions
from fkjoin.codec.arrays import Bools, Ints, buffers, chosen, lengths, masked, numbers_at, stack
from fkjoin.codec.messages import RESULT, Operation, table
from fkjoin.stages import counters
from fkjoin.stages.retention import GONE, due_entries
from fkjoin.state import BYTES, Bytes, items

HAS_RESULT = 2
"""The flag of a record whose key has a result."""

DIGEST_BYTES = 16


class EmitDecision(NamedTuple):
    """The decision about each key that a batch touched."""

    had: Bools
    """The keys that had a result."""
    has: Bools
    """The keys that have one after the batch."""
    emit: Bools
    """The keys whose result, or whose end, is emitted."""

    @classmethod
    def of(
        cls,
        had: Bools,
        has: Bools,
        unchanged: Bools,
        count: counters.Counters,
        *,
        every: bool = False,
        among: Bools | None = None,
    ) -> EmitDecision:
        """Decide about keys that ``had`` a result and that ``has`` one.

        Counts what is emitted, and what is not: no result, or an unchanged one.  ``unchanged``:
        looked at where there was a result and is one.  ``every``: emit these, too.  ``among``: the
        keys to decide about; of others nothing is emitted.
        """
        emit = (had | has) & (every | ~(had & has & unchanged))
        held_back = ~emit
        if among is not None:
            emit, held_back = emit & among, held_back & among
        count[counters.TOMBSTONES] += int((held_back & ~has).sum())
        count[counters.IDEMPOTENT] += int((held_back & has).sum())
        count[counters.OUT] += int(emit.sum())
        return cls(had, has, emit)

    def results(self, keys: Bytes, value: Bytes, version: Bytes, ts: Ints) -> pa.Table:
        """Changes of the table (``RESULT``): of all keys' columns what is to be emitted."""
        upsert = np.where(self.had, Operation.UPDATE, Operation.INSERT)
        operation = np.where(self.has, upsert, Operation.DELETE).astype(np.int8)
        key, row, number = (chosen(part, self.emit) for part in (keys, value, version))
        return table(RESULT, key, operation[self.emit], row, number, ts[self.emit])

    def own_versions(self, held: records.Records, source: bytes, now_ms: int) -> Bytes:
        """Versions of a table that has its own: a counter per key, one more with each result.

        It is never behind the clock's milliseconds.  So a key whose tombstone marker has ended, and
        whose counter starts again, still continues above what was emitted for it.  ``source``:
        identity of the versions.
        """
        counter = counters_of(held.version)
        following = np.maximum(counter + 1, now_ms)
        return versions.encode(source, [np.where(self.emit | ~held.exists, following, counter)])


class Ending(NamedTuple):
    """The rows that are gone, and how long their tombstone markers are kept."""

    gone: Bools
    due_ms: int
    """The end of the markers, in milliseconds since 1970."""
    in_order: bool | Bools = False
    """True for rows that come in order: they are never stale, and leave no markers."""


def entries(
    names: Bytes,
    ts: Ints,
    version: Bytes,
    body: Bytes,
    ending: Ending,
    *,
    has: Bools | bool = False,
    flags: Ints | int = 0,
    among: Bools | None = None,
) -> tuple[Bytes, Bytes]:
    """The entries of records, and the due entries of the tombstone markers among them.

    ``ts``: for each, or the hash that the stage keeps in its place.  ``has``: which of them have a
    result; ``flags``: the stage's own.  ``among``: which entries to write.
    """
    gone, due_ms, in_order = ending
    all_flags = flags | np.where(has, HAS_RESULT, 0) | np.where(gone, GONE, 0)
    values = records.encode(all_flags.astype(np.uint8), ts, version, body)
    values = masked(values, ~(gone & in_order))
    markers = gone & ~np.broadcast_to(in_order, gone.shape)
    if among is not None:
        names, values, version = (chosen(part, among) for part in (names, values, version))
        markers = markers[among]
    due = due_entries(chosen(names, markers), chosen(version, markers), due_ms)
    return stack(names, due[0]), stack(values, due[1])


def counters_of(version: Bytes) -> Ints:
    """The counters that a table's own versions are; 0 where there is none."""
    known = lengths(version) > 0
    data, bounds = buffers(version)
    # Behind the head of a version's only part; of no version anything is read, and dropped.
    words = numbers_at(data, bounds[:-1] + versions.HEAD_BYTES * known, ">u8").view(np.uint64)
    return np.where(known, (words ^ versions.SIGN).view(np.int64), 0)


def digests(values: Bytes) -> Bytes:
    """A 128-bit hash of each value, which is kept in its place; null for null."""
    return pa.array(map(_digest, items(values)), BYTES, size=len(values))


def _digest(value: bytes | None) -> bytes | None:
    return None if value is None else xxhash.xxh3_128_digest(value)
