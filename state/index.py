"""The local index of one bucket: rocksdict, holding committed data only.

The index can always be rebuilt from the change log.  A batch's entries come as a sorted file that it *takes in*; the
file ``POSITION`` beside its data names the committed batch that it stands at, and is away while a file is taken in: an
index that was left in the midst of that stands nowhere.  What RocksDB's own checksums do not notice (a damaged
manifest) is noticed by the *seal*, a hash of it that is left at close and broken at open.

Who only reads an index that is sealed and *stands* somewhere needs no lock: its files are there until it lets go of them,
whatever others do.  A process keeps such readers open from one batch to the next.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import IngestExternalFileOptions, Rdict, ReadOptions

from state.database import digest, merge, open_database, says
from state.errors import DamagedIndexError, StateError
from state.order import byte_order
from state.positions import POSITION, Position, position_of, say
from state.protocol import BYTES, PAGE_ENTRIES, SLICE_ROWS, Bytes, KeyRange, Page, slices
from state.sorted_file import write_sorted

_MOST_READERS = 16
"""That are kept open; each has all files of its index open."""

_SEAL = "SEAL"

_LOCKED = re.compile(r"While lock file|[Ll]ock hold by")

_ROOM = "the folder must be writable and its disk must have room"


class IndexLockedError(StateError):
    """Another process has the index open."""


class RocksIndex:
    """Bulk reads and one atomic bulk write over a rocksdict directory; keys must not be empty."""

    def __init__(self, path: Path, *, wait_s: float = 0.0, page_entries: int = PAGE_ENTRIES, standing: bool = False) -> None:
        """Open or create; a lock held by another process is waited for at most ``wait_s`` seconds.

        ``standing``: only to read it where it stands, without a lock; a ``StateError`` if it stands nowhere.
        """
        self.path = path
        self._page = page_entries
        if standing:
            self._open, self._db = False, _standing(path)
            return
        _let_go(path)
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
        """Where the index stands; None when it is new, or when that is not known."""
        return position_of(self.path)

    def size(self) -> tuple[int, int]:
        """About how many entries there are, and the bytes of the files."""
        return says(self._db, "estimate-num-keys"), says(self._db, "total-sst-files-size")

    def get_many(self, keys: Bytes) -> Bytes:
        """As ``Store.get_many``; sorted keys cost half."""
        if len(keys) <= SLICE_ROWS:
            return self._get_few(keys.to_pylist())
        order = byte_order(keys)
        wanted = keys.take(pa.array(order))
        with self._reading(), _passing(self._db):
            first, last = self._between(wanted[0].as_py(), wanted[-1].as_py())
            start, end = _count(pc.less(wanted, first)), _count(pc.less_equal(wanted, last))
            end = max(start, end)
            found = [pa.array(self._db.get(part.to_pylist()), BYTES) for part in slices(wanted.slice(start, end - start))]
        around = pa.nulls(start, BYTES), *found, pa.nulls(len(wanted) - end, BYTES)
        inverse = np.empty(len(keys), np.int64)
        inverse[order] = np.arange(len(keys))
        return pa.concat_arrays(around).take(pa.array(inverse))

    def _get_few(self, keys: list[Any]) -> Bytes:
        """Without Arrow, which takes longer for a few than it saves."""
        ordered = sorted(keys)
        with self._reading():
            values: Any = self._db.get(ordered)
        found = dict(zip(ordered, values, strict=True))
        return pa.array(map(found.__getitem__, keys), BYTES, size=len(keys))

    def _between(self, low: bytes, high: bytes) -> tuple[bytes, bytes]:
        """The first and the last key that there are from ``low`` to ``high``; in the wrong order when there is none.

        Keys outside of these need no look: new orders have numbers beyond all that are known.
        """
        entries = self._db.iter(ReadOptions())
        entries.seek(low)
        first = entries.key()
        entries.status()
        entries.seek_for_prev(high)
        last = entries.key()
        entries.status()
        return (high, b"") if first is None or last is None else (first, last)

    def scan(self, ranges: Sequence[KeyRange], limit: int | None = None, each: int | None = None) -> Iterator[Page]:
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
            key, left = last, each if each is not None else -1
            while room and left and (key := key_of()) is not None and key < last:
                numbers.append(number)
                keys.append(key)
                values.append(value_of())
                next_()
                room -= 1
                left -= 1
                if len(keys) >= self._page:
                    yield _page(numbers, keys, values)
                    numbers, keys, values = [], [], []
            if room and left and key is None:
                with self._reading():
                    entries.status()
        if keys:
            yield _page(numbers, keys, values)

    def apply(self, keys: Bytes, values: Bytes, position: Position | None) -> None:
        """Write the entries (null: delete); the index then stands at ``position``, with None nowhere."""
        if not len(keys):
            self.stand(position)
            return
        file = self.path / "incoming.sst"
        try:
            write_sorted(file, keys, values)
        except Exception as error:
            raise StateError(f"index {self.path} cannot be written: {error}; {_ROOM}") from error
        self.take_in(file, position)

    def take_in(self, file: Path, position: Position | None) -> None:
        """Make a sorted file part of the index, which then stands at ``position``; the file itself is gone afterwards."""
        moving = IngestExternalFileOptions()
        moving.set_move_files(True)
        try:
            self.stand(None)
            self._db.ingest_external_file([str(file)], moving)
            file.unlink(missing_ok=True)
            self.stand(position)
        except Exception as error:
            raise StateError(f"index {self.path} cannot be written: {error}; {_ROOM}") from error

    def stand(self, position: Position | None) -> None:
        """Say at which committed batch the index stands; with None at none, as long as that is not said again."""
        place = self.path / POSITION
        if position is not None:
            say(self.path, position)
        elif place.exists():
            place.unlink()
            _sync(self.path)

    def close(self) -> None:
        """Flush, release the lock and leave the seal; the index stays on disk.  Closing again does nothing."""
        if self._open:
            self._open = False
            try:
                merge(self._db)
                self._db.close()
            except Exception as error:
                del self._db  # lets go of the lock
                raise StateError(f"index {self.path} cannot be written: {error}; {_ROOM}") from error
            draft = self.path / f"{_SEAL}.draft"
            with contextlib.suppress(OSError):  # without a seal the index is opened all the same
                draft.write_bytes(digest(self.path))
                draft.replace(self.path / _SEAL)

    def _opened(self) -> Rdict | None:
        """The database, its seal broken; None while another process has it."""
        seal = self.path / _SEAL
        kept = _read(seal)
        if kept is not None and kept != digest(self.path):
            if _read(seal) != kept:  # somebody has opened it meanwhile
                return None
            raise DamagedIndexError(f"index {self.path} is damaged: its files are not those that it was closed with")
        try:
            seal.unlink(missing_ok=True)
            return open_database(self.path)
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


@contextlib.contextmanager
def _passing(db: Rdict) -> Iterator[None]:
    """Many keys in order come to each block of a file once: it is not kept in memory, as those are that few keys are in."""
    once = ReadOptions()
    once.fill_cache(False)  # type: ignore[call-arg]  # as rocksdict's types have it, it has no argument
    db.set_read_options(once)
    try:
        yield
    finally:
        db.set_read_options(ReadOptions())


def remove_index(path: Path) -> None:
    """Delete the directory of an index that nobody has open; it need not exist."""
    _let_go(path)
    shutil.rmtree(path, ignore_errors=True)


_Stamp = tuple[bytes, bytes, int, int]
"""New whenever somebody has written to the index or put another in its place: position, seal, and the first one's file."""

_readers: OrderedDict[tuple[int, Path], tuple[_Stamp, Rdict]] = OrderedDict()
"""By process (one that is forked must not use its parent's) and place; the one that was used last comes last."""


def _standing(path: Path) -> Rdict:
    """What reads the index where it stands."""
    stamp, key = _stamp(path), (os.getpid(), path)
    if key in _readers and _readers[key][0] == stamp:
        _readers.move_to_end(key)
        return _readers[key][1]
    _let_go(path)
    try:
        db = open_database(path, writing=False)
    except Exception as error:
        raise StateError(f"index {path} does not open: {error}; {_ROOM}") from error
    while len(_readers) >= _MOST_READERS:
        _readers.popitem(last=False)
    _readers[key] = stamp, db
    return db


def _let_go(path: Path) -> None:
    """Close what reads the index."""
    _readers.pop((os.getpid(), path), None)


def _stamp(path: Path) -> _Stamp:
    """``StateError`` if the index stands nowhere, or is open, or is not as it was closed."""
    files = digest(path)
    with contextlib.suppress(OSError):
        if (path / _SEAL).read_bytes() == files:
            position = path / POSITION
            said = position.stat()
            return position.read_bytes(), files, said.st_ctime_ns, said.st_ino
    raise StateError(f"index {path} stands nowhere, or is open")


def _count(where: pa.BooleanArray) -> int:
    return pc.sum(where).as_py() or 0


def _sync(directory: Path) -> None:
    """What was removed from the directory stays removed, whatever happens to the machine."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _page(numbers: list[int], keys: list[bytes], values: list[bytes]) -> Page:
    return Page(np.array(numbers, np.int64), pa.array(keys, BYTES), pa.array(values, BYTES))
