"""A store in memory, for tests and replays; the bucket store is compared with it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from fkjoin.state.protocol import BYTES, PAGE_ENTRIES, Bytes, KeyRange, Page


class MemoryStore:
    """A dict, with its sorted keys made again only when a scan follows a change of the key set."""

    def __init__(self, page_entries: int = PAGE_ENTRIES) -> None:
        self._data: dict[bytes, bytes] = {}
        self._sorted: list[bytes] | None = []
        self._page = page_entries

    def __len__(self) -> int:
        return len(self._data)

    def items(self) -> list[tuple[bytes, bytes]]:
        """List the entries in key order."""
        return sorted(self._data.items())

    def get_many(self, keys: Bytes) -> Bytes:
        return pa.array(map(self._data.get, keys.to_pylist()), BYTES, size=len(keys))

    def scan(
        self, ranges: Sequence[KeyRange], limit: int | None = None, each: int | None = None
    ) -> Iterator[Page]:
        if self._sorted is None:
            self._sorted = sorted(self._data)
        data = self._data
        entries = islice(_entries(self._sorted, ranges, each), limit)
        while chunk := list(islice(entries, self._page)):
            yield Page(
                np.array([number for number, _ in chunk], np.int64),
                pa.array([key for _, key in chunk], BYTES),
                pa.array([data[key] for _, key in chunk], BYTES),
            )

    def write(self, keys: Bytes, values: Bytes) -> None:
        written = dict(zip(keys.to_pylist(), values.to_pylist(), strict=True))
        gone = [key for key, value in written.items() if value is None]
        if gone or not written.keys() <= self._data.keys():
            self._sorted = None
        self._data |= written
        for key in gone:
            del self._data[key]


def _entries(
    ordered: list[bytes], ranges: Sequence[KeyRange], each: int | None
) -> Iterator[tuple[int, bytes]]:
    for number, (first, last) in enumerate(ranges):
        for key in islice(ordered[bisect_left(ordered, first) : bisect_left(ordered, last)], each):
            yield number, key
