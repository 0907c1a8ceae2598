"""The local index of one bucket: rocksdict, holding committed data only.

The index can always be rebuilt from the change log, so it writes without a write-ahead log and never syncs.  One
write batch carries a batch's entries *and* the token of the attempt that they come from, and RocksDB keeps a write
batch in one memtable: after a crash the index is some older committed state, which its token names.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import BlockBasedOptions, Cache, DataBlockIndexType, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from state.errors import StateError
from state.protocol import BYTES, PAGE_ENTRIES, Bytes, KeyRange, Page
from state.segments import TOKEN_BYTES

_POSITION = b""
"""The one key that is not the caller's: token and next segment number."""

_FORMAT = b"\x01"


class Position(NamedTuple):
    """Which committed batch the index stands at."""

    token: bytes
    next: int


class IndexLockedError(StateError):
    """Another process has the index open."""


class RocksIndex:
    """Bulk reads and one atomic bulk write over a rocksdict directory; keys must not be empty."""

    def __init__(self, path: Path, *, wait_s: float = 0.0, page_entries: int = PAGE_ENTRIES) -> None:
        """Open or create; a lock held by another process is waited for at most ``wait_s`` seconds."""
        self.path = path
        self._page = page_entries
        path.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                self._db = Rdict(str(path), _options())
                return
            except Exception as error:
                if "lock" not in str(error).lower():
                    raise StateError(f"index {path} does not open: {error}") from error
                if time.monotonic() >= deadline:
                    raise IndexLockedError(f"index {path} is open in another process") from error
            time.sleep(0.02)

    def position(self) -> Position | None:
        """Where the index stands, or None when it is new."""
        data = self._db.get(_POSITION)
        if data is None or data[:1] != _FORMAT:
            return None
        return Position(data[1 : 1 + TOKEN_BYTES], int.from_bytes(data[1 + TOKEN_BYTES :], "big"))

    def get_many(self, keys: Bytes) -> Bytes:
        """As ``Store.get_many``; sorted keys cost half."""
        if not len(keys):
            return pa.array([], BYTES)
        order = pc.array_sort_indices(keys)
        found = pa.array(self._db.get(keys.take(order).to_pylist()), BYTES)
        inverse = np.empty(len(keys), np.int64)
        inverse[order.to_numpy()] = np.arange(len(keys))
        return found.take(pa.array(inverse))

    def scan(self, ranges: Sequence[KeyRange], limit: int | None = None) -> Iterator[Page]:
        """As ``Store.scan``."""
        numbers: list[int] = []
        keys: list[bytes] = []
        values: list[bytes] = []
        room = limit if limit is not None else -1
        for number, (first, last) in enumerate(ranges):
            options = ReadOptions()
            options.set_iterate_upper_bound(last)
            entries = cast(Iterator[tuple[bytes, bytes]], self._db.items(from_key=first, read_opt=options))
            for key, value in entries:
                if room == 0:
                    break
                room -= 1
                numbers.append(number)
                keys.append(key)
                values.append(value)
                if len(keys) >= self._page:
                    yield _page(numbers, keys, values)
                    numbers, keys, values = [], [], []
        if keys:
            yield _page(numbers, keys, values)

    def apply(self, keys: Bytes, values: Bytes, position: Position | None) -> None:
        """Write the entries (null: delete) and the position they lead to, atomically."""
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
            if value is None:
                delete(key)
            else:
                put(key, value)
        if position is not None:
            put(_POSITION, _FORMAT + position.token + position.next.to_bytes(8, "big"))
        self._db.write(batch, _unlogged())

    def close(self) -> None:
        """Flush and release the lock; the index stays on disk."""
        self._db.close()


def remove_index(path: Path) -> None:
    """Delete the directory of an index that nobody has open; it need not exist."""
    shutil.rmtree(path, ignore_errors=True)


def _page(numbers: list[int], keys: list[bytes], values: list[bytes]) -> Page:
    return Page(np.array(numbers, np.int64), pa.array(keys, BYTES), pa.array(values, BYTES))


@cache
def _block_cache() -> Cache:
    return Cache(128 << 20)


@cache
def _unlogged() -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, whatever its stub says
    return options


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(_block_cache())
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(64 << 20)
    options.set_memtable_prefix_bloom_ratio(0.05)
    options.set_memtable_whole_key_filtering(True)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    return options
