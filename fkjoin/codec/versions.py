"""Versions: where in its source a row was written, as bytes that order the versions of one row.

A version is one part or several:
``{n: 1 byte}{identity of the source: 8 bytes}{n int64, big-endian, sign bit flipped}``.  A source
row has one part; a join result has its left row's parts followed by its right row's, or by as many
*absent* parts (``n`` = 0) when no right row was ever seen.  So all versions of a table have equally
many parts.

The high bit of ``n`` (``PLACED``) is set in the version of a topic's record: its last three numbers
are the record's ``PLACE``. The identity is then four bytes for the topic's name and four for its
id, zeros where the id is unknown (``topic_identity``).

The next bit (``TIED``) is set in the versions of other sources: their last number is a *tie-break*,
which no result shows.  Sources without places, such as files, may give one version to several
changes.  The tie-break is ``UNTIED`` (eight zero bytes), or greater and negative where a stage has
let a change through whose key had another one of that version.  A row of a topic's snapshot has its
tie-break in the place of the offset.

*Law* (``is_newer``): the first part in which two versions differ decides.  An absent part is older
than any other.  Of one source, the greater numbers are newer; of one topic and partition, the
greater offset is, whatever the timestamps say. Different sources are never compared: the arriving
version starts over.

*Law*: of one version, the greater tie-break is newer.  It is a hash of the content; the hash of a
row that is gone is least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from fkjoin.codec.arrays import (
    Bools,
    Ints,
    Octets,
    after,
    as_bytes,
    buffers,
    chosen,
    concat,
    fixed,
    lengths,
    numbers_at,
    padded,
    slices,
    valid,
    window,
)
from fkjoin.errors import FormatError
from fkjoin.state import Bytes, items

HEAD_BYTES = 9
SIGN = np.uint64(1 << 63)
PLACED = 0x80
TIED = 0x40
PLACE = ("timestamp", "partition", "offset")
"""Place of a record in its topic; the timestamp is the producer's or the broker's, in ms."""

OLDEST = -(1 << 63)
"""Each number of the versions of a snapshot's rows, but for the partition, which is 0.

They are older than every change.
"""

UNTIED = OLDEST
"""The tie-break of a version as it is read."""
PLACE_BYTES = 24
_TIE_BYTES = 8
_NOT_NEGATIVE = 0x80
"""The least first byte of numbers that are not negative."""
_STEM = slice(1, 5)
_ID = slice(5, HEAD_BYTES)
_AGAIN = 1 << 31

Words = npt.NDArray[np.uint64]


def identity(source: str) -> bytes:
    """Eight bytes that stand for a source, compared for equality only."""
    return xxhash.xxh3_64_digest(source.encode())


def topic_identity(topic: str, topic_id: str | None, generation: int = 0) -> bytes:
    """Eight bytes that stand for a topic: four for its name, four for its id.

    ``generation``: how often a checkpoint has started over with a topic of that name.  It stands in
    the place of the id then, so that the bytes are greater each time: stages sort the versions of a
    batch by bytes, and records of the topic that was created again must be the last.  The high bit
    tells the two apart.
    """
    if generation:
        return identity(topic)[:4] + (_AGAIN | generation).to_bytes(4, "big")
    if topic_id is None:
        return identity(topic)[:4] + bytes(4)
    number = int.from_bytes(identity(topic_id)[:4], "big") & ~_AGAIN
    return identity(topic)[:4] + number.to_bytes(4, "big")


def encode(
    source: bytes | Bytes, columns: Sequence[Ints], *, placed: bool = False, tied: bool = False
) -> Bytes:
    """Encode ``columns`` of int64, one per place of the tuple, into one-part versions.

    ``source`` is an ``identity``, the same for all rows or one per row.  ``placed``: the last
    columns are a ``PLACE``; ``tied``: add a tie-break.
    """
    rows = len(columns[0])
    columns = [*columns, np.full(rows, UNTIED)] if tied else columns
    n = len(columns)
    table = np.empty((rows, HEAD_BYTES + 8 * n), np.uint8)
    table[:, 0] = n | PLACED * placed | TIED * tied
    ids = np.frombuffer(source, np.uint8) if isinstance(source, bytes) else padded(source, 8)
    table[:, 1:HEAD_BYTES] = ids
    for index, column in enumerate(columns):
        # Big-endian, with the sign bit turned round: so numbers sort as their bytes do.
        words = (column.astype(np.int64).view(np.uint64) ^ SIGN).astype(">u8")
        start = HEAD_BYTES + 8 * index
        table[:, start : start + 8] = words.view(np.uint8).reshape(rows, 8)
    return fixed(table)


def absent(parts: int) -> bytes:
    """The version of a row that was never seen, in a table whose versions have so many parts."""
    return bytes(HEAD_BYTES) * parts


def decode(version: bytes) -> list[tuple[bytes, tuple[int, ...]]]:
    """The parts of a version: identity and tuple of each, without tie-breaks."""
    parts: list[tuple[bytes, tuple[int, ...]]] = []
    start = 0
    while start < len(version):
        n = version[start] & ~(PLACED | TIED)
        shown = n - (version[start] & TIED > 0)
        end = start + HEAD_BYTES + 8 * n
        if end > len(version):
            raise FormatError(f"version {version.hex()} is cut off in its part {len(parts)}")
        words = np.frombuffer(version, ">u8", shown, start + HEAD_BYTES) ^ SIGN
        numbers_of = tuple(words.astype(np.uint64).view(np.int64).tolist())
        parts.append((version[start + 1 : start + HEAD_BYTES], numbers_of))
        start = end
    return parts


class Places(NamedTuple):
    """Places of records in their topics."""

    timestamp: Ints
    partition: Ints
    offset: Ints


def first_places(version: Bytes) -> Places:
    """The places of the records that versions of topics' records begin with."""
    data, bounds = buffers(version)
    part = _Parts.at(data, bounds[:-1])
    return Places(*((part.last(number) ^ SIGN).view(np.int64) for number in (2, 1, 0)))


def split(versions: Bytes, parts: int) -> tuple[Bytes, Bytes]:
    """The first ``parts`` parts of each version, and the rest; both null for null."""
    data, bounds = buffers(versions)
    present = valid(versions)
    ends = np.zeros(len(versions), np.int64)
    for _ in range(parts):
        heads = numbers_in(window(data, bounds[:-1] + ends, 1)[:, 0])
        ends = np.where(present, ends + HEAD_BYTES + 8 * heads, 0)
    return slices(data, bounds[:-1], ends, present), after(versions, ends, present)


def numbers(versions: Bytes, first: int, last: int) -> pa.ListArray:
    """The integers of parts ``first`` up to but not including ``last``, as ``list<int64>``.

    Null where all are absent.  Tie-breaks are left out.
    """
    data, bounds = buffers(versions)
    rows = np.arange(len(versions))
    starts, row, position = bounds[:-1], [], []
    for part in range(last):
        first_byte = data[starts] if len(rows) else np.zeros(0, np.uint8)
        if part >= first:
            # A number stands 8 bytes behind the one before it in its part: ``arange`` counts on
            # over all rows, and each part's start takes off what the rows before it have.
            n = numbers_in(first_byte) - (first_byte & TIED > 0)  # a tie-break is not shown
            row.append(np.repeat(rows, n))
            part_starts = starts + HEAD_BYTES - 8 * (np.cumsum(n) - n)
            position.append(np.repeat(part_starts, n) + 8 * np.arange(n.sum()))
        starts = starts + HEAD_BYTES + 8 * numbers_in(first_byte)
    row_of = np.concatenate(row)
    order = np.argsort(row_of, kind="stable")
    words = numbers_at(data, np.concatenate(position)[order], ">u8").view(np.uint64)
    values = (words ^ SIGN).view(np.int64)
    counts = np.bincount(row_of, minlength=len(rows))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values), mask=pa.array(counts == 0))


def sort_columns(versions: Bytes) -> list[Words]:
    """Arrays for ``np.lexsort``, the least significant first, that sort versions in byte order."""
    sizes = lengths(versions)
    if not len(sizes):
        return []
    # As words of eight bytes, filled up with zeros: lengths decide where a version is the beginning
    # of another.  A word that is the same in all orders nothing, and is left out.
    width = -(-int(sizes.max()) // 8) * 8
    words = np.ascontiguousarray(padded(versions, width)).view(">u8")
    columns: list[Words] = [sizes.astype(np.uint64)] if sizes.min() != sizes.max() else []
    for index in reversed(range(width // 8)):
        column = words[:, index].astype(np.uint64)
        if column.min() != column.max():
            columns.append(column)
    return columns


def is_newer(arriving: Bytes, held: Bytes) -> Bools:
    """Tell where ``arriving`` supersedes ``held`` (no nulls in either); equal versions do not."""
    return compare(arriving, held)[0]


def compare(arriving: Bytes, held: Bytes) -> tuple[Bools, Bools]:
    """Tell where ``arriving`` supersedes ``held``, and where that is as it is of another source::

    for part after part, in the rows that are not decided:
        a version that has no more parts is older
        compare the parts (``_decided``); equal ones leave it to the next

    """
    newer, restarts = np.zeros(len(arriving), bool), np.zeros(len(arriving), bool)
    (data_a, bounds_a), (data_h, bounds_h) = buffers(as_bytes(arriving)), buffers(as_bytes(held))
    at_a, at_h = bounds_a[:-1].copy(), bounds_h[:-1].copy()
    row = np.arange(len(arriving))
    while len(row):
        more_a, more_h = at_a[row] < bounds_a[1:][row], at_h[row] < bounds_h[1:][row]
        newer[row] = more_a & ~more_h
        row = row[more_a & more_h]
        if not len(row):
            break
        parts = _Parts.at(data_a, at_a[row]), _Parts.at(data_h, at_h[row])
        newer[row], restarts[row], equal = _decided(*parts)
        for cursors, part in zip((at_a, at_h), parts, strict=True):
            cursors[row] += HEAD_BYTES + 8 * part.count
        row = row[equal]
    return newer, restarts


class _Parts:
    """A part of each version."""

    def __init__(self, head: Octets, words: Words) -> None:
        self.head, self.words = head, words
        self.first = head[:, 0]
        self.count = numbers_in(self.first)

    @classmethod
    def at(cls, data: Octets, starts: Ints) -> _Parts:
        """The parts that begin at ``starts``."""
        head = window(data, starts, HEAD_BYTES)
        count = numbers_in(head[:, 0])
        width = int(count.max(initial=0))
        raw = np.ascontiguousarray(window(data, starts + HEAD_BYTES, 8 * width))
        words = raw.view(">u8").reshape(len(starts), width)
        if count.min(initial=width) < width:
            words = np.where(np.arange(width) < count[:, None], words, np.uint64(0))
        return cls(head, words.astype(np.uint64))

    def __getitem__(self, rows: npt.NDArray[Any]) -> _Parts:
        return _Parts(self.head[rows], self.words[rows])

    def last(self, number: int) -> Words:
        """The number that stands so many places before the end; 0 where there are fewer."""
        width = self.words.shape[1]
        if not width:
            return np.zeros(len(self.count), np.uint64)
        if self.count.min(initial=width) == width:  # as it mostly is: a column, without a copy
            return self.words[:, max(width - 1 - number, 0)]
        return self.words[np.arange(len(self.count)), np.maximum(self.count - 1 - number, 0)]


def _decided(a: _Parts, h: _Parts) -> tuple[Bools, Bools, Bools]:
    """Tell where part ``a`` is newer than ``h``, where it starts over, and where they are equal."""
    same = (a.head == h.head).all(axis=1)
    if same.all():
        newer, equal = _of_one_source(a, h)
        return newer, np.zeros(len(same), bool), equal
    # One topic, too, if the name is the same and one of the ids is not known: else what a broker
    # that tells no ids has sent would start over.  An absent part starts nothing over.
    stem = (a.head[:, _STEM] == h.head[:, _STEM]).all(axis=1)
    unknown = ~a.head[:, _ID].any(axis=1) | ~h.head[:, _ID].any(axis=1)
    same |= stem & unknown & (a.first & h.first & PLACED > 0) & (a.count == h.count)
    restarts = ~(same | (a.first == 0) | (h.first == 0))
    newer, equal = restarts | (h.first == 0), np.zeros(len(same), bool)
    newer[same], equal[same] = _of_one_source(a[same], h[same])
    return newer, restarts, equal


def _of_one_source(a: _Parts, h: _Parts) -> tuple[Bools, Bools]:
    """Tell where part ``a`` is newer, and where they are equal: both have as many numbers."""
    # Both have as many numbers in each row: columns that only one side has are other rows' filling.
    width = min(a.words.shape[1], h.words.shape[1])
    unequal = a.words[:, :width] != h.words[:, :width]
    newer, differ = np.zeros(len(unequal), bool), np.zeros(len(unequal), bool)
    deciding = np.full(len(unequal), -1)
    for number in range(unequal.shape[1]):
        here = unequal[:, number] & ~differ
        newer[here] = a.words[here, number] > h.words[here, number]
        deciding[here] = number
        differ |= here
    # A timestamp decides across partitions; in one partition the offset does.  So where the first
    # difference is the timestamp, and the partition is the same, compare offsets instead.
    by_timestamp = (deciding >= 0) & (deciding == a.count - len(PLACE))
    inside = (a.first & PLACED > 0) & by_timestamp & (a.last(1) == h.last(1))
    if inside.any():
        newer = np.where(inside, a.last(0) > h.last(0), newer)
        differ &= ~inside | (a.last(0) != h.last(0))
    return newer, ~differ


def of_topic_before(version: Bytes, identity: bytes) -> Bools:
    """Find versions of another topic that has the name of the one of the identity."""
    data, bounds = buffers(version)
    head, sizes = window(data, bounds[:-1], HEAD_BYTES), np.diff(bounds)
    first = head[:, 0]
    single = (first & PLACED > 0) & (sizes == HEAD_BYTES + 8 * numbers_in(first))
    own = np.frombuffer(identity, np.uint8)
    return single & (head[:, _STEM] == own[:4]).all(axis=1) & (head[:, _ID] != own[4:]).any(axis=1)


def before_all(version: Bytes, identity: bytes) -> Bytes:
    """Versions of the identity's topic that are older than any of its records.

    They have as many numbers as ``version``.
    """
    data, bounds = buffers(version)
    first = window(data, bounds[:-1], 1)[:, 0]
    width = int(numbers_in(first).max(initial=0))
    written = np.zeros((len(first), HEAD_BYTES + 8 * width), np.uint8)
    written[:, 0], written[:, 1:HEAD_BYTES] = first, np.frombuffer(identity, np.uint8)
    whole, starts = buffers(fixed(written))
    return slices(whole, starts[:-1], HEAD_BYTES + 8 * numbers_in(first))


def numbers_in(first: Octets) -> Ints:
    """Read from its first byte how many numbers each part has."""
    return (first & ~np.uint8(PLACED | TIED)).astype(np.int64)


def may_tie(version: Bytes) -> Bools:
    """Tell which versions have a tie-break: all but versions of a topic's records.

    A row of a topic's snapshot has one in the place of the offset; offsets are never negative.
    """
    data, bounds = buffers(version)
    first, sizes = window(data, bounds[:-1], 1)[:, 0], np.diff(bounds)
    last = window(data, np.maximum(bounds[1:] - _TIE_BYTES, 0), 1)[:, 0]
    negative = last < _NOT_NEGATIVE
    return (first & (TIED | PLACED) > 0) & negative & (sizes == HEAD_BYTES + 8 * numbers_in(first))


def split_ties(version: Bytes) -> tuple[Bytes, Words]:
    """Split versions into what is before the tie-break, and the tie-break, 0 without one."""
    data, bounds = buffers(version)
    stems = slices(data, bounds[:-1], np.diff(bounds) - _TIE_BYTES)
    return stems, numbers_at(data, bounds[1:] - _TIE_BYTES, ">u8").view(np.uint64)


def with_ties(stems: Bytes, ties: Words) -> Bytes:
    """Undo ``split_ties``."""
    return concat(stems, fixed(ties.astype(">u8")))


def of_contents(contents: Bytes) -> Words:
    """Tie-breaks of contents, as versions have them: 0 for null."""
    # Without the highest bit, which numbers of versions have turned round: so all are negative.  A
    # hash of 0 would be the tie-break of a row that is gone.
    hashes = fingerprints(contents).view(np.uint64) >> np.uint64(1)
    return np.where(valid(contents), np.maximum(hashes, 1), 0).astype(np.uint64)


def fingerprints(values: Bytes) -> Ints:
    """A 64-bit hash of each value; 0 for null."""
    present = valid(values)
    hashes = np.zeros(len(values), np.uint64)
    hashes[present] = np.fromiter(
        map(xxhash.xxh3_64_intdigest, items(chosen(values, present))), np.uint64, int(present.sum())
    )
    return hashes.view(np.int64)
