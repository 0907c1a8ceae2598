"""The local index of one bucket: rocksdict, holding committed data only.

The index can always be rebuilt from the change log, so it writes without a write-ahead log and never syncs; what
RocksDB's own checksums do not notice (a damaged manifest) is noticed by the *seal*, a hash of it that is left at
close and broken at open. One write batch carries a batch's entries *and* the token of the attempt that they come
from, and RocksDB keeps a write batch in one memtable: after a crash the index is some older committed state, which
its token names.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from rocksdict import BlockBasedOptions, Cache, DataBlockIndexType, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from state.errors import DamagedIndexError, StateError
from state.protocol import BYTES, PAGE_ENTRIES, Bytes, KeyRange, Page
from state.segments import TOKEN_BYTES

_POSITION = b""
"""The one key that is not the caller's: token and next segment number."""

_FORMAT = b"\x01"

_SEAL = "SEAL"

_LOCKED = re.compile(r"While lock file|[Ll]ock hold by")

_ROOM = "the folder must be writable and its disk must have room"


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
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"index {path} cannot be made: {error}; {_ROOM}") from error
        self._open = False
        deadline = time.monotonic() + wait_s
        while (db := self._opened()) is None:
            if time.monotonic() >= deadline:
                raise IndexLockedError(f"index {path} is open in another process")
            time.sleep(0.02)
        self._db, self._open = db, True

    def position(self) -> Position | None:
        """Where the index stands, or None when it is new."""
        with self._reading():
            data = self._db.get(_POSITION)
        if data is None or data[:1] != _FORMAT:
            return None
        return Position(data[1 : 1 + TOKEN_BYTES], int.from_bytes(data[1 + TOKEN_BYTES :], "big"))

    def get_many(self, keys: Bytes) -> Bytes:
        """As ``Store.get_many``; sorted keys cost half."""
        if not len(keys):
            return pa.array([], BYTES)
        order = pc.array_sort_indices(keys)
        with self._reading():
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
        # An iterator over items would end at a damaged block as if nothing came after it; this one can be asked.
        entries = self._db.iter(ReadOptions())
        seek, next_, key_of, value_of = entries.seek, entries.next, entries.key, entries.value
        for number, (first, last) in enumerate(ranges):
            if not room:
                break
            seek(first)
            while room and (key := key_of()) is not None and key < last:
                numbers.append(number)
                keys.append(key)
                values.append(value_of())
                next_()
                room -= 1
                if len(keys) >= self._page:
                    yield _page(numbers, keys, values)
                    numbers, keys, values = [], [], []
            if room and key is None:
                with self._reading():
                    entries.status()
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
        try:
            self._db.write(batch, _unlogged())
        except Exception as error:
            raise StateError(f"index {self.path} cannot be written: {error}; {_ROOM}") from error

    def close(self) -> None:
        """Flush, release the lock and leave the seal; the index stays on disk.  Closing again does nothing."""
        if self._open:
            self._open = False
            try:
                self._db.close()
            except Exception as error:
                del self._db  # lets go of the lock
                raise StateError(f"index {self.path} cannot be written: {error}; {_ROOM}") from error
            draft = self.path / f"{_SEAL}.draft"
            with contextlib.suppress(OSError):  # without a seal the index is opened all the same
                draft.write_bytes(_digest(self.path))
                draft.replace(self.path / _SEAL)

    def _opened(self) -> Rdict | None:
        """The database, its seal broken; None while another process has it."""
        seal = self.path / _SEAL
        kept = _read(seal)
        if kept is not None and kept != _digest(self.path):
            if _read(seal) != kept:  # somebody has opened it meanwhile
                return None
            raise DamagedIndexError(f"index {self.path} is damaged: its files are not those that it was closed with")
        try:
            seal.unlink(missing_ok=True)
            return Rdict(str(self.path), _options())
        except Exception as error:
            if _LOCKED.search(str(error)):
                return None
            raise StateError(f"index {self.path} does not open: {error}; {_ROOM}") from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """What goes wrong while reading is damage."""
        try:
            yield
        except Exception as error:
            raise DamagedIndexError(f"index {self.path} cannot be read: {error}") from error


def remove_index(path: Path) -> None:
    """Delete the directory of an index that nobody has open; it need not exist."""
    shutil.rmtree(path, ignore_errors=True)


def _digest(path: Path) -> bytes:
    """A hash of the manifest and its name, and of the names and sizes of the data files; empty when they are not there."""
    try:
        manifest = (path / "CURRENT").read_bytes()
        sizes = sorted((file.name, file.stat().st_size) for file in path.glob("*.sst"))
        return xxhash.xxh3_64_digest(repr((manifest, sizes)).encode() + (path / manifest.decode().strip()).read_bytes())
    except (OSError, ValueError):
        return b""


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


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
