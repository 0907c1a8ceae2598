"""A copy of one store of a checkpoint, brought from batch to batch by what Spark has saved.

No Spark session takes part.

*Law*: the copy holds the entries of one committed batch, in all buckets.  It goes to a later
batch in one step: what is read in between is all of the one batch, or all of the other.

It is a RocksDB in a folder of this process.  A later batch's change files are read, and their
entries taken in as one sorted file.  Where change files do not lead on from the copy, such as after
a long pause, another copy is made of all of the log.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import NamedTuple

from fkjoin.checkpoint.damage import RESTORE
from fkjoin.checkpoint.saved_files import Commit, SavedFiles
from fkjoin.checkpoint.saved_log import SavedLog, SavedPartition
from fkjoin.checkpoint.spark_formats import Changes
from fkjoin.checkpoint.stores import kept_as, partitions_of, stores_of
from fkjoin.state.database import write_sorted
from fkjoin.state.errors import CorruptLogError
from fkjoin.state.index import RocksIndex
from fkjoin.state.segments import KEY_BYTES, Meta, Position, decode_segment, entry_bytes
from fkjoin.state.tail import KeysAndValues, latest

_AT_ONCE_BYTES = 64 << 20
"""Bytes of a log that are in memory at a time while a copy is made."""

_NOWHERE = Position(bytes(16), 0)


class Held(NamedTuple):
    """The batch that a copy is of."""

    commit: Commit
    metas: dict[int, Meta]
    """The meta record of each bucket's log."""
    file: Path | None = None
    """A sorted file of the entries that lead to it from the batch before, if there are any."""


class Replica:
    """A copy of the store that keeps the rows of the table ``name``."""

    def __init__(self, files: SavedFiles, name: str, folder: Path, commit: Commit) -> None:
        """Find the store and copy it into ``folder``, as of a batch.

        ``FileNotFoundError`` if Spark has removed its files.
        """
        self._files, self._folder = files, folder
        self.store = kept_as(name, stores_of(files, commit), files.checkpoint)
        self.described = self.store.described()
        self.index, self.held = self._copied(commit)

    def next(self, commit: Commit) -> Held | None:
        """Read what leads to a later batch, which no reader sees yet.

        None if change files do not lead there.
        """
        before, after = self._partitions(self.held.commit), self._partitions(commit)
        if len(before) != len(after):
            return None
        metas, entries = dict(self.held.metas), list[KeysAndValues]()
        for known, partition in zip(before, after, strict=True):
            later = partition.since(known.version)
            if later is None or not all(_follow(changes, metas, entries) for changes in later):
                return None
        keys, values = latest(entries)
        file = None
        if len(keys):
            file = self._folder / f"{uuid.uuid4().hex}.sst"
            write_sorted(file, keys, values)
        return Held(commit, metas, file)

    def go(self, following: Held) -> None:
        """Be of the later batch; nothing may be read meanwhile."""
        if following.file is not None:
            self.index.take_in(following.file, None)
        self.held = following

    def _partitions(self, commit: Commit) -> tuple[SavedPartition, ...]:
        return partitions_of(self._files, commit, self.store.operator, self.store.number)

    def _copied(self, commit: Commit) -> tuple[RocksIndex, Held]:
        index = RocksIndex.new(self._folder, _NOWHERE, os.urandom(KEY_BYTES))
        metas: dict[int, Meta] = {}
        try:
            for partition in self._partitions(commit):
                with partition.opened() as log:
                    for bucket, data in log.metas().items():
                        metas[bucket] = Meta.decode(data)
                        _replay(index, log, bucket, metas[bucket])
        except BaseException:
            index.give_up()
            raise
        return index, Held(commit, metas)


def _replay(index: RocksIndex, log: SavedLog, bucket: int, meta: Meta) -> None:
    """Write all entries of a bucket's log into a copy that is not read yet."""
    gathered, room = list[KeysAndValues](), _AT_ONCE_BYTES
    for number in range(meta.first, meta.next):
        gathered.append(_segment(number, log.segment(bucket, number), meta))
        room -= entry_bytes(*gathered[-1])
        if room <= 0:
            index.apply(*latest(gathered), None)
            gathered, room = [], _AT_ONCE_BYTES
    index.apply(*latest(gathered), None)


def _follow(changes: Changes, metas: dict[int, Meta], entries: list[KeysAndValues]) -> bool:
    """Add a version's entries, and go to its meta records.

    False if a log does not lead on from the one that is known.
    """
    for record, data in changes.written.items():
        if record.number is not None:
            continue
        if data is None:
            return False
        meta, known = Meta.decode(data), metas.get(record.bucket)
        # The job was started again, perhaps with other columns.
        if known is not None and known.identity != meta.identity:
            return False
        first = 0 if known is None else known.next
        if meta.next < first:
            return False
        # Another attempt wrote the last segment that is known.
        if known is not None and meta.next == first and meta.token != known.token:
            return False
        for number in range(first, meta.next):
            segment = changes.written.get(record._replace(number=number))
            entries.append(_segment(number, segment, meta))
        metas[record.bucket] = meta
    return True


def _segment(number: int, data: bytes | None, meta: Meta) -> KeysAndValues:
    token, keys, values = decode_segment(number, data)
    if number == meta.next - 1 and token != meta.token:
        raise CorruptLogError(
            f"change log segment {number} comes from another attempt than its meta record: "
            f"{RESTORE}"
        )
    return keys, values
