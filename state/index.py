"""The local index of one bucket: rocksdict, holding committed data only.

The index can always be rebuilt from the change log.  Each index has a folder of its own in the
bucket's folder, ``index-{random}``.  A *seal* (``state.seal``) says which folder is the index,
where it stands, and that it is as it was closed.  Without a seal it is not opened.  A batch's
entries come as a sorted file that the index *takes in*.  Meanwhile it stands nowhere, and an index
that stands nowhere is not sealed.

While an index is open for writing, its folder is locked.  A folder without a lock and a seal is of
no use, and removed.

To read an index where it stands needs no lock: its files are there until the process lets go of
them, whatever others do.  A process keeps such readers open from one batch to the next.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import IngestExternalFileOptions, Rdict, ReadOptions

from fkjoin.state.database import live_files, merge, open_database, says, write_sorted
from fkjoin.state.errors import DamagedIndexError, StateError
from fkjoin.state.folders import FOLDERS, in_use, locked, remove, remove_abandoned
from fkjoin.state.order import byte_order
from fkjoin.state.private import private_folder
from fkjoin.state.protocol import BYTES, PAGE_ENTRIES, SLICE_ROWS, Bytes, KeyRange, Page, slices
from fkjoin.state.seal import SEAL, Seal, seal, taken
from fkjoin.state.segments import Position

_MOST_READERS = 16
"""Number of readers that are kept open; each has all files of its index open."""

_IN_MEMORY = "block-cache-usage", "estimate-table-readers-mem", "cur-size-all-mem-tables"

_ROOM = "the folder must be writable and its disk must have room"

_logger = logging.getLogger(__name__)


class RocksIndex:
    """Bulk reads and one atomic bulk write over a rocksdict directory; keys must not be empty."""

    page_entries = PAGE_ENTRIES

    def __init__(
        self, folder: Path, position: Position | None, key: bytes, db: Rdict, lock: int | None
    ) -> None:
        """Make a handle: see ``new``, ``taken``, ``standing``.

        ``lock``: the descriptor held while the index is written to.
        """
        self.folder, self.position = folder, position
        """Position of the index; None while it is not known."""
        self._key, self._db, self._lock = key, db, lock

    @classmethod
    def new(cls, directory: Path, position: Position, key: bytes) -> RocksIndex:
        """Make an empty index that stands at ``position``; ``StateError`` if that fails."""
        remove_abandoned(directory)
        lock = None
        while lock is None:  # until it is locked, another process may take it for abandoned
            folder = directory / f"index-{uuid.uuid4().hex}"
            private_folder(folder)
            lock = locked(folder)
        try:
            return cls(folder, position, key, open_database(folder), lock)
        except Exception as error:
            remove(folder)
            os.close(lock)
            raise StateError(f"index {folder} cannot be made: {error}; {_ROOM}") from error

    @classmethod
    def taken(cls, directory: Path, key: bytes, wait_s: float) -> RocksIndex | None:
        """Open the index for writing, which takes its seal away; None if there is none.

        While another process is writing to it, its seal is waited for, at most ``wait_s`` seconds.
        ``DamagedIndexError`` if it is not what was sealed.
        """
        _let_go(directory)
        deadline = time.monotonic() + wait_s
        used = True
        while (sealed := taken(directory, key)) is None:
            # The seal is looked for after the locks, too: a process may seal the index, and let go,
            # between both looks.
            if not used or time.monotonic() >= deadline:
                return None
            used = any(in_use(folder) for folder in directory.glob(FOLDERS))
            if used:
                time.sleep(0.02)
        # A process that has just sealed it still holds its lock, and lets go at once.
        while (lock := locked(sealed.folder)) is None:
            if time.monotonic() >= deadline:
                raise DamagedIndexError(
                    f"index {sealed.folder} is gone, or held by another process"
                )
            time.sleep(0.02)
        try:
            db = open_database(sealed.folder)
            sealed.require_version(live_files(db))
        except Exception as error:
            os.close(lock)
            raise _damaged(sealed.folder, error) from error
        return cls(sealed.folder, sealed.position, key, db, lock)

    @classmethod
    def standing(cls, sealed: Seal, key: bytes) -> RocksIndex | None:
        """Open a sealed index, only to read it where it stands; None if its seal is gone.

        ``DamagedIndexError`` if it is not what was sealed.
        """
        directory = sealed.folder.parent
        owner = os.getpid(), directory
        reader = _readers.get(owner)
        if reader is not None and reader[0] == sealed.data:
            _readers.move_to_end(owner)
            return cls(sealed.folder, sealed.position, key, reader[1], None)
        _let_go(directory)
        try:
            db = open_database(sealed.folder, writing=False)
            sealed.require_version(live_files(db))
        except Exception as error:
            # Without its seal the index belongs to a writer, which has changed its files: that is
            # no damage.
            if not _in_place(sealed):
                return None
            raise _damaged(sealed.folder, error) from error
        while len(_readers) >= _MOST_READERS:
            _readers.popitem(last=False)
        _readers[owner] = sealed.data, db
        return cls(sealed.folder, sealed.position, key, db, None)

    def size(self) -> tuple[int, int]:
        """About how many entries there are, and the bytes of the files."""
        return says(self._db, "estimate-num-keys"), says(self._db, "total-sst-files-size")

    def memory_bytes(self) -> int:
        """Bytes of the process's blocks in memory, and of the files' filters and indexes."""
        return sum(says(self._db, name) for name in _IN_MEMORY)

    def get_many(self, keys: Bytes) -> Bytes:
        """Read many keys, see ``Store.get_many``; sorted keys cost half."""
        if len(keys) <= SLICE_ROWS:
            return self._get_few(keys.to_pylist())
        order = byte_order(keys)
        wanted = keys.take(pa.array(order))
        # Many keys in order come to each block of a file once: in the cache these blocks would
        # displace those that few keys are read from again and again.
        once = ReadOptions()
        once.fill_cache(False)  # type: ignore[call-arg]  # rocksdict's types give it no argument
        with self._reading(), contextlib.ExitStack() as after:
            self._db.set_read_options(once)
            after.callback(self._db.set_read_options, ReadOptions())
            # Only the keys between the first and the last stored one are looked up.  New orders
            # have numbers beyond all that are known: nothing is read for them.
            first, last = self._between(wanted[0].as_py(), wanted[-1].as_py())
            start, end = _count(pc.less(wanted, first)), _count(pc.less_equal(wanted, last))
            end = max(start, end)
            values = [
                pa.array(self._db.get(part.to_pylist()), BYTES)
                for part in slices(wanted.slice(start, end - start))
            ]
        around = pa.nulls(start, BYTES), *values, pa.nulls(len(wanted) - end, BYTES)
        inverse = np.empty(len(keys), np.int64)
        inverse[order] = np.arange(len(keys))
        return pa.concat_arrays(around).take(pa.array(inverse))

    def _get_few(self, keys: list[Any]) -> Bytes:
        """Read a few keys without Arrow, which would take longer than it saves."""
        ordered = sorted(keys)
        with self._reading():
            values: Any = self._db.get(ordered)
        by_key = dict(zip(ordered, values, strict=True))
        return pa.array(map(by_key.__getitem__, keys), BYTES, size=len(keys))

    def _between(self, low: bytes, high: bytes) -> tuple[bytes, bytes]:
        """The first and the last stored key from ``low`` to ``high``.

        If there is none, the first is greater than the last.
        """
        entries = self._db.iter(ReadOptions())
        entries.seek(low)
        first = entries.key()
        entries.status()
        entries.seek_for_prev(high)
        last = entries.key()
        entries.status()
        return (high, b"") if first is None or last is None else (first, last)

    def scan(
        self, ranges: Sequence[KeyRange], limit: int | None = None, each: int | None = None
    ) -> Iterator[Page]:
        """Read a range of keys, see ``Store.scan``."""
        numbers: list[int] = []
        keys: list[bytes] = []
        values: list[bytes] = []
        room = limit if limit is not None else -1  # counts down, and below zero never stops
        # An iterator over items would end at a damaged block as if nothing came after it.  This one
        # tells by its status whether it has reached the end.
        entries = self._db.iter(ReadOptions())
        seek, next_, key_of, value_of = entries.seek, entries.next, entries.key, entries.value
        for number, (first, last) in enumerate(ranges):
            if not room:
                break
            seek(first)
            key, left = last, each if each is not None else -1
            while room and left and (key := key_of()) is not None and key < last:
                numbers.append(number)
                keys.append(key)
                values.append(value_of())
                next_()
                room -= 1
                left -= 1
                if len(keys) >= self.page_entries:
                    yield _page(numbers, keys, values)
                    numbers, keys, values = [], [], []
            # Neither limit is reached and no key is left: that is the end, or a damaged block.
            if room and left and key is None:
                with self._reading():
                    entries.status()
        if keys:
            yield _page(numbers, keys, values)

    def apply(self, keys: Bytes, values: Bytes, position: Position | None) -> None:
        """Write the entries (null: delete); the index then stands at ``position``, or nowhere."""
        if not len(keys):
            self.position = position
            return
        file = self.folder / "incoming.sst"
        try:
            write_sorted(file, keys, values)
        except Exception as error:
            raise StateError(f"index {self.folder} cannot be written: {error}; {_ROOM}") from error
        self.take_in(file, position)

    def take_in(self, file: Path, position: Position | None) -> None:
        """Move a sorted file into the index, which then stands at ``position``."""
        moving = IngestExternalFileOptions()
        moving.set_move_files(True)
        # Until all is in, the index stands nowhere: if this fails, ``close`` removes it unsealed.
        self.position = None
        try:
            self._db.ingest_external_file([str(file)], moving)
            file.unlink(missing_ok=True)
        except Exception as error:
            raise StateError(f"index {self.folder} cannot be written: {error}; {_ROOM}") from error
        self.position = position

    def close(self) -> None:
        """Flush, and seal the index if it stands somewhere; else it is removed.

        An index is only a copy: without it, the next batch builds another one from the log.
        """
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            if self.position is not None:  # else it is of no more use
                merge(self._db)
            live = live_files(self._db)
            self._db.close()
            del self._db
            if self.position is not None:
                seal(self.folder, self.position, live, self._key)
        except Exception as error:  # rocksdict has one kind of error
            _logger.warning("index %s is not kept: %s", self.folder, error)
            self.position = None
        if self.position is None:
            vars(self).pop("_db", None)
            remove(self.folder)
        os.close(lock)
        if self.position is not None:
            remove_abandoned(self.folder.parent, but=self.folder)

    def give_up(self) -> None:
        """Close an index that is not to be read any more."""
        if self._lock is None:
            _let_go(self.folder.parent)
        else:
            self.position = None
            self.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn an error of reading into damage."""
        try:
            yield
        except Exception as error:
            raise DamagedIndexError(f"index {self.folder} cannot be read: {error}") from error


_readers: OrderedDict[tuple[int, Path], tuple[bytes, Rdict]] = OrderedDict()
"""Seals and their readers by process and place, the last used last.

A forked process must not use its parent's.
"""


def _let_go(directory: Path) -> None:
    """Close what reads the index there."""
    _readers.pop((os.getpid(), directory), None)


def _in_place(sealed: Seal) -> bool:
    """The seal is still in its place."""
    try:
        return (sealed.folder.parent / SEAL).read_bytes() == sealed.data
    except OSError:
        return False


def _damaged(folder: Path, error: Exception) -> DamagedIndexError:
    if isinstance(error, DamagedIndexError):
        return error
    return DamagedIndexError(f"index {folder} does not open: {error}")


def _count(where: pa.BooleanArray) -> int:
    return pc.sum(where).as_py() or 0


def _page(numbers: list[int], keys: list[bytes], values: list[bytes]) -> Page:
    return Page(np.array(numbers, np.int64), pa.array(keys, BYTES), pa.array(values, BYTES))
