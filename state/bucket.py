"""The bucket store: a change log that its owner commits, and a local index that makes it fast to
read.

*Law*: the index holds committed data only.  What a batch writes is overlaid on its reads and, when
it commits, goes to the log and to a pending file named by the attempt's token.  The next batch
reads from the log's meta record which attempt was committed: the store applies that attempt's
pending file, and throws every other away.  An index whose token the log does not lead on from is
rebuilt, and so is one that is not proven to be as it was closed (``state.seal``).  So an attempt
that failed, was repeated or came second leaves no trace, nor does what happens to local files.

Cleaning the log drops what the index says is dead, for good: an index that gave an old value would
take newer ones with it. That is why no index is read without proof.

Small batches are not applied at once: a few of them are the *tail*, which is overlaid on what is
read of the index, so that it need not be opened for writing, nor closed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.state import pending
from fkjoin.state.errors import DamagedIndexError, StoreMismatchError
from fkjoin.state.index import RocksIndex
from fkjoin.state.memory import MemoryStore
from fkjoin.state.private import private_folder
from fkjoin.state.protocol import BYTES, Bytes, KeyRange, Page, SegmentLog
from fkjoin.state.seal import Seal
from fkjoin.state.segments import (
    ENTRY_OVERHEAD,
    KEY_BYTES,
    SEGMENT_BYTES,
    Meta,
    Position,
    decode_segment,
    encode_segments,
    entry_bytes,
)
from fkjoin.state.tail import KeysAndValues, Tail, laid_over, latest

_START = Position(bytes(16), 0)
"""The position of an empty index."""

_EVERYTHING = (b"\0", b"\xff" * 256)
_REPLAYED_BYTES = 64 << 20
"""Bytes of the log that are applied at a time."""


Differs = Callable[[bytes, bytes], str | None]


def _plainly(stored: bytes, now: bytes) -> str:
    before, after = stored.decode(errors="replace"), now.decode(errors="replace")
    return f"its store was started with {before} and is now opened with {after}"


class Sizes(NamedTuple):
    """The size of a bucket; entries (an estimate) and the index's bytes are of the batch before."""

    entries: int
    live_bytes: int
    log_bytes: int
    index_bytes: int


class BucketStore:
    """A ``Store`` for one batch: open, read and write, ``commit`` or not, ``close``."""

    def __init__(
        self,
        log: SegmentLog,
        directory: Path,
        *,
        identity: bytes = b"",
        differs: Differs = _plainly,
        lock_wait_s: float = 10.0,
    ) -> None:
        """Open the bucket whose change log is ``log``, with its index under ``directory``.

        ``identity`` is stored with each commit and must stay the same: ``differs`` names what
        differs between the stored one and this one, or returns None (``StoreMismatchError``).  When
        another process keeps the index open for longer than ``lock_wait_s`` seconds, another one is
        built from the log.
        """
        self._log = log
        data = log.meta()
        fresh = Meta(_START.token, 0, 0, 0, 0, identity, os.urandom(KEY_BYTES))
        meta = fresh if data is None else Meta.decode(data)
        if meta.identity != identity:
            difference = differs(meta.identity, identity)
            if difference is not None:
                raise StoreMismatchError(
                    f"the checkpoint was made by another job: {difference}; "
                    "start this version of the job with a new checkpoint and an empty target, "
                    "or go back to what the checkpoint was made with"
                )
        self._meta = replace(meta, identity=identity)
        self._directory = directory
        self._token = uuid.uuid4().bytes
        self._read: list[tuple[Bytes, pa.Int64Array]] = []
        self._written: list[tuple[Bytes, Bytes]] = []
        self._over = 0, Tail()
        """The number of these that a scan has laid over the index, and these themselves."""
        self._tail = Tail()
        self.rebuilt: str | None = None
        """The reason why the index was rebuilt from the log, if it was."""
        private_folder(directory)
        self._index = self._open(lock_wait_s)

    def __enter__(self) -> BucketStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def meta(self) -> Meta:
        """The state of the log as committed; after ``commit`` as this attempt would leave it."""
        return self._meta

    @property
    def sizes(self) -> Sizes:
        entries, index_bytes = self._index.size()
        return Sizes(
            entries + len(self._tail), self._meta.live_bytes, self._meta.log_bytes, index_bytes
        )

    def get_many(self, keys: Bytes) -> Bytes:
        values = self._committed(keys)
        self._read.append((keys, lengths(values)))
        for entries in self._written:
            values = laid_over(keys, values, entries)
        return values

    def scan(
        self, ranges: Sequence[KeyRange], limit: int | None = None, each: int | None = None
    ) -> Iterator[Page]:
        count, over = self._over
        if count < len(self._written):
            over = over.followed_by(self._written[count:])
            self._over = len(self._written), over
        yield from over.scan(self._scanned, ranges, limit, each)

    def write(self, keys: Bytes, values: Bytes) -> None:
        if len(keys):
            self._written.append((keys, values))

    def commit(self) -> None:
        """Hand what was written to the log and keep it as a pending file.

        It is durable when the log's owner commits.
        """
        keys, values = latest(self._written)
        meta, token, base = self._meta, self._token, self._goal
        # A batch without writes leaves the log alone.  Only the first of all stores the meta record
        # nevertheless: without it the next batch would draw another key, and check no identity.
        if not len(keys) and self._log.meta() is not None:
            return
        written = entry_bytes(keys, values)
        live = meta.live_bytes + written - self._replaced(keys, values)
        first, moved, log_bytes = self._compacted(keys, written, live)
        # Compaction's segments come last, and so win a replay: they have none of the batch's keys.
        segments = [*encode_segments(token, keys, values), *moved]
        for number in range(meta.first, first):
            self._log.remove_segment(number)
        for number, segment in enumerate(segments, meta.next):
            self._log.put_segment(number, segment)
        next_ = meta.next + len(segments)
        self._meta = replace(
            meta, token=token, first=first, next=next_, live_bytes=live, log_bytes=log_bytes
        )
        # The pending file has no moved entries: the index has them already.
        pending.keep(self._directory, (keys, values), base, self._goal, meta.key)
        self._log.set_meta(self._meta.encode())

    def _compacted(self, keys: Bytes, written: int, live: int) -> tuple[int, list[bytes], int]:
        """Free the log's oldest segments of dead entries, if more than half of the log is dead.

        ``keys`` and ``written``: what the batch writes, and its charge; ``live``: live bytes after
        it.  Returns the first segment that stays, new segments, and the log's bytes after both::

            while the log is larger than twice what is live, and the budget lasts:
                read about a segment's worth of the oldest segments
                append again what the index still has, and the batch does not overwrite
                drop these segments
        """
        meta, segments = self._meta, list[bytes]()
        first, log_bytes = meta.first, meta.log_bytes + written
        most = 2 * live + SEGMENT_BYTES
        # Compaction starts a quarter of a segment above its goal.  Otherwise each small batch would
        # read a whole segment to free the few bytes that it has written itself.
        if log_bytes <= most + SEGMENT_BYTES // 4:
            return first, segments, log_bytes
        # A batch pays in proportion to what it writes: none takes long, even if all entries die at
        # once.  On average a byte read frees half a byte or more, so that four times catches up.
        budget = 4 * written + 2 * SEGMENT_BYTES
        while log_bytes > most and first < meta.next and budget > 0:
            oldest: list[KeysAndValues] = []
            size = 0
            while size < min(log_bytes - most, SEGMENT_BYTES) and first < meta.next:
                oldest.append(decode_segment(first, self._log.segment(first))[1:])
                size += entry_bytes(*oldest[-1])
                first += 1
            # An entry is live if the index has its very value.  A later segment may hold the same
            # value again: then the log contains it twice, which does no harm.  A deletion compares
            # as null, and goes: no older segment is left whose entry it hides.
            old_keys, old_values = latest(oldest)
            current = pc.fill_null(pc.equal(self._committed(old_keys), old_values), False)
            still = pc.and_(current, pc.invert(pc.is_in(old_keys, value_set=keys)))
            moved_keys, moved_values = old_keys.filter(still), old_values.filter(still)
            segments += encode_segments(self._token, moved_keys, moved_values)
            log_bytes += entry_bytes(moved_keys, moved_values) - size
            budget -= size
        return first, segments, log_bytes

    def disagreement(self) -> str | None:
        """Name the first difference between the log and what the store reads; None without one.

        Reads all of both.
        """
        replayed = MemoryStore()
        for number in range(self._meta.first, self._meta.next):
            replayed.write(*decode_segment(number, self._log.segment(number))[1:])
        logged = dict(replayed.items())
        for page in self.scan([_EVERYTHING]):
            for key, value in zip(page.keys.to_pylist(), page.values.to_pylist(), strict=True):
                if logged.pop(key, None) != value:
                    return f"the index has {key!r} otherwise than the log"
        if logged:
            return f"the index lacks {len(logged)} entries of the log, first {min(logged)!r}"
        live = sum(len(key) + len(value) + ENTRY_OVERHEAD for key, value in replayed.items())
        if live != self._meta.live_bytes:
            return f"its log counts {self._meta.live_bytes} live bytes, there are {live}"
        return None

    def close(self) -> None:
        """Release the index.  Without a ``commit`` before it, nothing that was written remains."""
        self._index.close()

    def _committed(self, keys: Bytes) -> Bytes:
        """Read the index and its tail; rebuild it first if it turns out to be damaged."""
        try:
            return self._tail.over(keys, self._index.get_many(keys))
        except DamagedIndexError as error:
            self._repair(error)
        return self._index.get_many(keys)

    def _scanned(
        self, ranges: Sequence[KeyRange], limit: int | None = None, each: int | None = None
    ) -> Iterator[Page]:
        """The pages of the index and its tail; of a rebuilt index from where a damaged one fails.

        The caller has already used the pages before: none may come twice, nor be taken back.
        """
        # The cursor: the range of the last entry, the entries of that range, and its bounds from
        # there on.  The least key behind a key is the same key with a zero byte.
        number, taken, room, bounds = 0, 0, limit, ranges[:1]
        try:
            for page in self._tail.scan(self._index.scan, ranges, room, each):
                yield page
                before, number = number, int(page.ranges[-1])
                taken = int((page.ranges == number).sum()) + (taken if number == before else 0)
                bounds = [(page.keys[-1].as_py() + b"\0", ranges[number][1])]
                room = None if room is None else room - len(page.keys)
            return
        except DamagedIndexError as error:
            self._repair(error)
        # Two scans: ``each`` is smaller for the range that has begun.  Each scan counts its ranges
        # from zero; the caller's numbers start later.
        rest = None if each is None else each - taken
        scans = (number, bounds, rest), (number + 1, ranges[number + 1 :], each)
        for start, some, most in scans:
            for page in self._index.scan(some, room, most):
                yield Page(page.ranges + start, page.keys, page.values)
                room = None if room is None else room - len(page.keys)

    def _repair(self, error: DamagedIndexError) -> None:
        """Put an index rebuilt from the log in the place of a damaged one."""
        self._index.give_up()
        self._index, self._tail = self._rebuilt(str(error)), Tail()

    def _open(self, wait_s: float) -> RocksIndex:
        why = f"index {self._directory} is missing, or a process died while it wrote to it"
        try:
            if (standing := self._standing()) is not None:
                return standing
            index = RocksIndex.taken(self._directory, self._meta.key, wait_s)
        except DamagedIndexError as error:
            return self._rebuilt(str(error))
        if index is not None:
            try:
                caught_up = self._catch_up(index)
            except BaseException:
                index.close()
                raise
            if caught_up:
                return index
            index.give_up()
            why = f"index {self._directory} belongs to a batch that the log does not continue"
        return self._rebuilt(why)

    def _rebuilt(self, why: str) -> RocksIndex:
        index = RocksIndex.new(self._directory, _START, self._meta.key)
        try:
            if self._goal != _START:
                self.rebuilt = why
                self._replay(index, self._meta.first)
        except BaseException:
            index.give_up()
            raise
        return index

    @property
    def _goal(self) -> Position:
        """The committed state."""
        return Position(self._meta.token, self._meta.next)

    def _standing(self) -> RocksIndex | None:
        """The index, only to be read, if the tail holds all that it lacks; else None."""
        sealed = Seal.of(self._directory, self._meta.key)
        if sealed is None:
            return None
        waiting = pending.waiting(self._directory, sealed.position, self._goal, self._meta.key)
        index = None if waiting is None else RocksIndex.standing(sealed, self._meta.key)
        if waiting is None or index is None:
            return None
        pending.discard(self._directory, waiting.positions)
        self._tail = waiting.tail
        return index

    def _catch_up(self, index: RocksIndex) -> bool:
        """Bring the index to the committed state by pending files or the log; False if neither can.

        Pending files that do not lead to the committed state are of attempts that failed: they go.
        """
        position = index.position
        assert position is not None, "an index that is taken stands somewhere"
        if position != self._goal:
            links = pending.chain(self._directory, position, self._goal, self._meta.key)
            if links is not None:
                self._take_in(index, links)
            elif self._leads_on_from(position):
                self._replay(index, position.next)
            else:
                return False
        pending.discard(self._directory)
        return True

    def _take_in(self, index: RocksIndex, links: list[pending.Pending]) -> None:
        gathered: list[KeysAndValues] = []
        for link in links:
            if link.entries is not None:
                gathered.append(link.entries)
            if link.file is not None:
                # Entries of earlier batches go first: of a key, RocksDB reads what came last.
                index.apply(*latest(gathered), None)
                index.take_in(link.file, None)
                gathered = []
        index.apply(*latest(gathered), self._goal)

    def _leads_on_from(self, position: Position) -> bool:
        """The log still has all segments that came after the position, and is the same log."""
        if position == _START:
            return self._meta.first == 0
        # The last segment that the index has must still be there: its token proves that the index
        # holds this attempt's data, and no data of another attempt with the same numbers.
        if not self._meta.first < position.next <= self._meta.next:
            return False
        token, _, _ = decode_segment(position.next - 1, self._log.segment(position.next - 1))
        return token == position.token

    def _replay(self, index: RocksIndex, first: int) -> None:
        """Apply segments from ``first`` on; on the way the index stands nowhere."""
        meta = self._meta
        gathered: list[tuple[Bytes, Bytes]] = []
        room = _REPLAYED_BYTES
        for number in range(first, meta.next):
            _, keys, values = decode_segment(number, self._log.segment(number))
            gathered.append((keys, values))
            room -= entry_bytes(keys, values)
            if room <= 0 or number == meta.next - 1:
                # The index sorts what it applies, and keeps the last value of a key.
                columns = zip(*gathered, strict=True)
                all_keys, all_values = (pa.concat_arrays(column) for column in columns)
                index.apply(all_keys, all_values, None)
                gathered, room = [], _REPLAYED_BYTES
        index.position = self._goal

    def _replaced(self, keys: Bytes, values: Bytes) -> int:
        """The charge of what the batch overwrites or deletes.

        The charge of deletions themselves is included: they are never live.
        """
        sizes = lengths_before(keys, self._read, self._committed)
        existing, deleted = keys.filter(pc.is_valid(sizes)), pc.is_null(values)
        # ``entry_bytes`` of the old entries; only the lengths of their values are known.
        before = entry_bytes(existing, pa.nulls(0, BYTES)) + (pc.sum(sizes).as_py() or 0)
        return before + entry_bytes(keys.filter(deleted), values.filter(deleted))


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
