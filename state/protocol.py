"""The protocol of stores, and the protocol of the place that keeps a bucket store's change log.

Keys and values travel in bulk as ``pyarrow.LargeBinaryArray``; a null value means "no such key"
when read and "delete" when written.  Keys are compared and scanned in unsigned byte order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = pa.LargeBinaryArray
"""An Arrow array of byte strings; nulls allowed only where said."""

BYTES = pa.large_binary()

KeyRange = tuple[bytes, bytes]
"""Half-open: first key included, last key excluded."""

PAGE_ENTRIES = 65_536
"""The most entries that one scanned page holds."""

SLICE_ROWS = 8_192


class Page(NamedTuple):
    """Some consecutive entries of a scan; entry ``i`` is of the range number ``ranges[i]``."""

    ranges: npt.NDArray[np.int64]
    keys: Bytes
    values: Bytes


class Reads(Protocol):
    """The two methods of a store that read it."""

    def get_many(self, keys: Bytes) -> Bytes:
        """Values for ``keys`` (distinct, no nulls), in their order; null where there is none."""
        ...

    def scan(
        self, ranges: Sequence[KeyRange], limit: int | None = None, each: int | None = None
    ) -> Iterator[Page]:
        """Entries of each range in turn, in key order, in pages.

        At most ``limit`` in all, the first ``each`` of a range.
        """
        ...


class Store(Reads, Protocol):
    """Three methods; reads see the writes that came before them."""

    def write(self, keys: Bytes, values: Bytes) -> None:
        """Put, or delete where the value is null; ``keys`` are distinct."""
        ...


class SegmentLog(Protocol):
    """A bucket's change log; all writes of one batch become durable together, or none does."""

    def meta(self) -> bytes | None:
        """The meta record of the last committed batch."""
        ...

    def set_meta(self, meta: bytes) -> None: ...

    def segment(self, number: int) -> bytes | None: ...

    def put_segment(self, number: int, data: bytes) -> None: ...

    def remove_segment(self, number: int) -> None: ...


def slices(array: pa.Array) -> Iterator[pa.Array]:
    """The array in short pieces, for what must be Python objects.

    A piece's objects take the memory of the piece before, which is still in the processor's cache.
    """
    return (array.slice(start, SLICE_ROWS) for start in range(0, len(array), SLICE_ROWS))


def items(array: pa.Array) -> Iterator[Any]:
    """The array's values as Python objects, made as they are asked for."""
    return chain.from_iterable(part.to_pylist() for part in slices(array))


def prefix_range(prefix: bytes) -> KeyRange:
    """The range of all keys that begin with ``prefix`` (not empty, not all 0xff)."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        raise ValueError("a prefix must have a byte below 0xff")
    return prefix, stem[:-1] + bytes((stem[-1] + 1,))
