"""Ties: changes of a key with one version and other contents, and what decides between them.

Sources without places, such as files, may give one version to several changes.  So the last number
of their versions is a *tie-break*: ``UNTIED`` (eight zero bytes), or greater and negative where a
stage has let a change through whose key had another one of that version.  A row of a topic's
snapshot has its tie-break in the place of the offset.

*Law*: of one version, the greater tie-break is newer.  It is a hash of the content; the hash of a
row that is gone is least.
"""

from __future__ import annotations

import numpy as np
import xxhash

from fkjoin.codec.arrays import (
    Bools,
    Bytes,
    Ints,
    buffers,
    chosen,
    concat,
    fixed,
    numbers_at,
    slices,
    valid,
    window,
)
from fkjoin.codec.versions import HEAD_BYTES, PLACED, TIED, Words, numbers_in
from fkjoin.state import items

_TIE_BYTES = 8
_NOT_NEGATIVE = 0x80
"""The least first byte of numbers that are not negative."""


def may_tie(version: Bytes) -> Bools:
    """Tell which versions have a tie-break: all but versions of a topic's records.

    A row of a topic's snapshot has one in the place of the offset; offsets are never negative.
    """
    data, bounds = buffers(version)
    first, sizes = window(data, bounds[:-1], 1)[:, 0], np.diff(bounds)
    last = window(data, np.maximum(bounds[1:] - _TIE_BYTES, 0), 1)[:, 0]
    negative = last < _NOT_NEGATIVE
    return (first & (TIED | PLACED) > 0) & negative & (sizes == HEAD_BYTES + 8 * numbers_in(first))


def split_ties(version: Bytes) -> tuple[Bytes, Words]:
    """Split versions into what is before the tie-break, and the tie-break, 0 without one."""
    data, bounds = buffers(version)
    stems = slices(data, bounds[:-1], np.diff(bounds) - _TIE_BYTES)
    return stems, numbers_at(data, bounds[1:] - _TIE_BYTES, ">u8").view(np.uint64)


def with_ties(stems: Bytes, ties: Words) -> Bytes:
    """Undo ``split_ties``."""
    return concat(stems, fixed(ties.astype(">u8").view(np.uint8).reshape(-1, _TIE_BYTES)))


def of_contents(contents: Bytes) -> Words:
    """Tie-breaks of contents, as versions have them: 0 for null."""
    # Without the highest bit, which numbers of versions have turned round: so all are negative.  A
    # hash of 0 would be the tie-break of a row that is gone.
    hashes = fingerprints(contents).view(np.uint64) >> np.uint64(1)
    return np.where(valid(contents), np.maximum(hashes, 1), 0).astype(np.uint64)


def fingerprints(values: Bytes) -> Ints:
    """A 64-bit hash of each value; 0 for null."""
    present = valid(values)
    hashes = np.zeros(len(values), np.uint64)
    hashes[present] = np.fromiter(
        map(xxhash.xxh3_64_intdigest, items(chosen(values, present))), np.uint64, int(present.sum())
    )
    return hashes.view(np.int64)
