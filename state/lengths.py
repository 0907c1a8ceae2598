"""Lengths of the values that a batch overwrites: what the batch has read is not read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.state.protocol import BYTES, Bytes


def lengths(values: Bytes) -> pa.Int64Array:
    """Length of each value; null for none."""
    return pc.binary_length(values).cast(pa.int64())


def lengths_before(
    keys: Bytes, read: Sequence[tuple[Bytes, pa.Int64Array]], look_up: Callable[[Bytes], Bytes]
) -> pa.Int64Array:
    """Length of what is stored under each key, null for nothing.

    ``read``: keys and the lengths of their values; ``look_up`` reads the values of the others.
    """
    # Stages mostly write the keys that they have read in one piece, with some others around them.
    # To compare that piece is cheaper than to hash all keys; what is around it goes the same way.
    for known, known_lengths in read:
        start = pc.index(keys, known[0]).as_py() if len(known) else -1
        if start >= 0 and keys.slice(start, len(known)).equals(known):
            around = keys.slice(0, start), keys.slice(start + len(known))
            before, behind = (lengths_before(some, read, look_up) for some in around)
            return pa.concat_arrays([before, known_lengths, behind])
    if not len(keys):
        return pa.array([], pa.int64())
    known = pa.concat_arrays([pa.array([], BYTES), *(known for known, _ in read)])
    known_lengths = pa.concat_arrays([pa.array([], pa.int64()), *(known for _, known in read)])
    # ``index_in`` hashes the whole value set, ``is_in`` here only the shorter side.
    if len(keys) < len(known):
        some = pc.is_in(known, value_set=keys)
        known, known_lengths = known.filter(some), known_lengths.filter(some)
    index = pc.index_in(keys, value_set=known)
    unread = pc.is_null(index)
    return pc.replace_with_mask(
        known_lengths.take(index), unread, lengths(look_up(keys.filter(unread)))
    )
