"""Lists of pairs of byte strings, a list for each row, as byte strings.

*Law*: ``decode(encode(pairs))`` are the pairs, by row, and within a row in byte order of their
first strings.  So equal sets of pairs have equal bytes, whatever the order in which they came.  A
row without pairs is null.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import BYTES, Bools, Bytes, Ints, concat, fixed, masked, stack, take, valid
from fkjoin.codec.rows import RowCodec
from fkjoin.state import byte_order

_PAIR = pa.struct([pa.field("first", BYTES), pa.field("second", BYTES)])
_CODEC = RowCodec(pa.schema([pa.field("pairs", pa.list_(_PAIR))]))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of rows; no string is null."""

    row: Ints
    """The number of each pair's row."""
    first: Bytes
    second: Bytes

    def __len__(self) -> int:
        return len(self.row)

    @property
    def names(self) -> Bytes:
        """A byte string for each pair, of its row's number and its first string."""
        return concat(fixed(self.row.astype(">u4")), self.first)

    def at(self, positions: Ints) -> Pairs:
        """Take the pairs at these positions."""
        return Pairs(self.row[positions], take(self.first, positions), take(self.second, positions))

    def where(self, which: Bools) -> Pairs:
        """Take some of the pairs."""
        return self if which.all() else self.at(np.flatnonzero(which))

    def and_more(self, other: Pairs) -> Pairs:
        """Return both, one after the other."""
        return Pairs(
            np.concatenate([self.row, other.row]),
            stack(self.first, other.first),
            stack(self.second, other.second),
        )

    def in_order(self) -> Pairs:
        """Sort them by row, and within a row by the bytes of their first strings."""
        return self.at(byte_order(self.names))


def encode(pairs: Pairs, rows: int) -> Bytes:
    """Encode the lists of so many rows."""
    pairs = pairs.in_order()
    sizes = np.bincount(pairs.row, minlength=rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    both = pa.StructArray.from_arrays([pairs.first, pairs.second], fields=list(_PAIR))
    return masked(_CODEC.encode([pa.ListArray.from_arrays(offsets, both)], rows), sizes > 0)


def decode(lists: Bytes) -> Pairs:
    """Undo ``encode``."""
    (column,) = _CODEC.decode(lists)
    sizes = np.where(valid(lists), np.diff(column.offsets.to_numpy()), 0)
    first, second = column.flatten().flatten()
    return Pairs(np.repeat(np.arange(len(lists)), sizes), first, second)
