"""Lengths of the values that a batch overwrites: most were read by the batch, and are not read again."""

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
    """Length of what there is under each key, null for nothing.

    ``read``: keys and the lengths found; ``look_up`` is asked for the values of the others.  What
    was read is mostly written as it stood, with some other keys around it: then nothing is hashed.
    """
    for known, found in read:
        start = pc.index(keys, known[0]).as_py() if len(known) else -1
        if start >= 0 and keys.slice(start, len(known)).equals(known):
            around = keys.slice(0, start), keys.slice(start + len(known))
            before, behind = (lengths_before(some, read, look_up) for some in around)
            return pa.concat_arrays([before, found, behind])
    if not len(keys):
        return pa.array([], pa.int64())
    known = pa.concat_arrays([pa.array([], BYTES), *(one for one, _ in read)])
    found = pa.concat_arrays([pa.array([], pa.int64()), *(one for _, one in read)])
    if len(keys) < len(known):
        some = pc.is_in(known, value_set=keys)
        known, found = known.filter(some), found.filter(some)
    place = pc.index_in(keys, value_set=known)
    unread = pc.is_null(place)
    return pc.replace_with_mask(found.take(place), unread, lengths(look_up(keys.filter(unread))))
