"""The byte order of many keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.state.protocol import Bytes

Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_WORD = 8


def byte_order(keys: Bytes) -> Ints:
    """The positions of the keys (no nulls) in key order; equal keys stay in the order they have.

    Bytes are sorted as numbers, in a third of the time that Arrow takes::

        eight bytes of each key, from the first byte in which keys differ: sort these numbers
        twice: of the keys that are equal so far, sort four further bytes within each run
        sort what is still equal as byte strings
    """
    order = np.arange(len(keys))
    if not len(keys):
        return order
    tied, runs, skipped = order.copy(), np.zeros(len(keys), np.uint64), 0
    octets, starts, ends = _buffers(keys)
    for width in (_WORD, _WORD // 2, _WORD // 2):
        if not len(tied):
            return order
        some = order[tied]
        words, skipped = _telling(octets, starts[some], ends[some], skipped)
        # Keys that are equal so far are a run.  Its number is the upper half of the word, so that
        # one sort orders all runs, and no key leaves its own.
        if width < _WORD:
            words = runs << np.uint64(32) | words >> np.uint64(32)
        by = np.argsort(words)
        words = words[by]
        first = np.insert(words[1:] != words[:-1], 0, True)
        order[tied] = some[by]
        # A key alone in its run is first, and so is the key after it; all others are still tied.
        equal = ~(first & np.append(first[1:], True))
        tied, runs = tied[equal], np.cumsum(first)[equal].astype(np.uint64)
        skipped += width
    # Ties stand in runs, in order: their keys fill the tied slots in one sort of them all.  It is
    # stable, and starts from ascending positions, so that equal keys stay in order.
    some = np.sort(order[tied])
    order[tied] = some[pc.array_sort_indices(keys.take(pa.array(some))).to_numpy()]
    return order


def _buffers(keys: Bytes) -> tuple[_Words, Ints, Ints]:
    """The eight bytes from each byte on, as big-endian numbers; start and end of each key.

    There is at least one key.
    """
    _, offsets, data = keys.buffers()
    bounds = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    filled = np.append(np.frombuffer(data or b"", np.uint8), np.zeros(_WORD, np.uint8))
    octets = np.ndarray((len(filled) - _WORD + 1,), ">u8", filled, strides=(1,))
    return octets, bounds[:-1], bounds[1:]


def _telling(octets: _Words, starts: Ints, ends: Ints, skipped: int) -> tuple[_Words, int]:
    """Eight bytes of each key, from the first byte on in which keys differ; and its number.

    Zeros stand beyond a key's end: the caller must compare keys that differ in trailing zeros.
    """
    while True:
        cursors = np.minimum(starts + skipped, ends)
        # Bytes beyond a key's end are the next key's: two shifts put zeros in their place.
        beyond = (8 * np.clip(_WORD - (ends - cursors), 0, _WORD)).astype(np.uint64)
        words = octets[cursors].astype(np.uint64) >> beyond << beyond
        # The bytes that the least and the greatest number share at their beginning, all share.
        equal = _WORD - -(-(int(words.min()) ^ int(words.max())).bit_length() // 8)
        if equal == 0 or (starts + skipped + equal >= ends).all():
            return words, skipped
        skipped += equal
