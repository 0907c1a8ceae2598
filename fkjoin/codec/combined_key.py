"""CombinedKey: the key under which a subscription is kept (KIP-213).

``{int32 big-endian length of the foreign key}{foreign key}{left key}``.  The length keeps the
prefix of "a" from matching "aa", and ("a", "bc") apart from ("ab", "c"); both keys may be empty.
Under one foreign key, entries stand in byte order of the left key.
"""

from __future__ import annotations

import numpy as np

from fkjoin.codec.arrays import Bytes, after, buffers, concat, fixed, lengths, numbers_at, slices
from fkjoin.errors import FormatError


def encode(foreign_keys: Bytes, left_keys: Bytes) -> Bytes:
    """Element-wise; no nulls in either."""
    return concat(prefixes(foreign_keys), left_keys)


def prefixes(foreign_keys: Bytes) -> Bytes:
    """Encode the prefixes that all combined keys of a foreign key begin with, and no others."""
    sizes = lengths(foreign_keys).astype(">i4")
    return concat(fixed(sizes), foreign_keys)


def decode(combined: Bytes) -> tuple[Bytes, Bytes]:
    """Foreign keys and left keys."""
    data, bounds = buffers(combined)
    sizes = np.diff(bounds)
    heads = numbers_at(data, bounds[:-1], ">i4")
    bad = (sizes < 4) | (heads < 0) | (heads + 4 > sizes)
    if bad.any():
        row = int(bad.argmax())
        raise FormatError(
            f"combined key {combined[row].as_py().hex()} is cut off or not a combined key"
        )
    return slices(data, bounds[:-1] + 4, heads), after(combined, heads + 4)
