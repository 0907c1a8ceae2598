"""Versions: where in its source a row was written, as bytes that order it among the versions of the
same row.

A version is one part or several:
``{n: 1 byte}{identity of the source: 8 bytes}{n int64, big-endian, sign bit flipped}``.  A source
row has one part; a join result has its left row's parts followed by its right row's, or by as many
*absent* parts (``n`` = 0) when no right row was ever seen.  So all versions of a table have equally
many parts.

The high bit of ``n`` (``PLACED``) is set in the version of a topic's record: its last three numbers
are the record's ``PLACE``. The identity is then four bytes for the topic's name and four for its
id, zeros where the id is unknown (``topic_identity``).

The next bit (``TIED``) is set in the versions of other sources: their last number is a tie-break
(see ``ties``), which no result shows.

*Law* (``is_newer``): the first part in which two versions differ decides.  An absent part is older
than any other.  Of one source, the greater numbers are newer; of one topic and partition, the
greater offset is, whatever the timestamps say. Different sources are never compared: the arriving
version starts over.
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
    Bytes,
    Ints,
    Octets,
    after,
    as_bytes,
    buffers,
    fixed,
    lengths,
    padded,
    slices,
    valid,
    window,
)
from fkjoin.errors import FormatError

HEAD_BYTES = 9
SIGN = np.uint64(1 << 63)
PLACED = 0x80
TIED = 0x40
PLACE = ("timestamp", "partition", "offset")
"""Place of a record in its topic: the milliseconds that its producer or broker gave it, its partition, its offset."""

OLDEST = -(1 << 63)
"""Each number of the versions of a snapshot's rows, but for the partition, which is 0: they are older than every change."""

UNTIED = OLDEST
"""The tie-break of a version as it is read."""
PLACE_BYTES = 24
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
    batch by bytes, and what comes from the topic made anew must be the last.  The high bit tells
    the two apart.
    """
    if generation:
        return identity(topic)[:4] + (_AGAIN | generation).to_bytes(4, "big")
    known = (
        bytes(4)
        if topic_id is None
        else (int.from_bytes(identity(topic_id)[:4], "big") & ~_AGAIN).to_bytes(4, "big")
    )
    return identity(topic)[:4] + known


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
    for place, column in enumerate(columns):
        words = (column.astype(np.int64).view(np.uint64) ^ SIGN).astype(">u8")
        start = HEAD_BYTES + 8 * place
        table[:, start : start + 8] = words.view(np.uint8).reshape(rows, 8)
    return fixed(table)


def absent(parts: int) -> bytes:
    """The version of a row that was never seen, in a table whose versions have so many parts."""
    return bytes(HEAD_BYTES) * parts


def decode(version: bytes) -> list[tuple[bytes, tuple[int, ...]]]:
    """The parts of a version: identity and tuple of each, without tie-breaks."""
    parts: list[tuple[bytes, tuple[int, ...]]] = []
    at = 0
    while at < len(version):
        n = version[at] & ~(PLACED | TIED)
        shown = n - (version[at] & TIED > 0)
        end = at + HEAD_BYTES + 8 * n
        if end > len(version):
            raise FormatError(f"version {version.hex()} is cut off in its part {len(parts)}")
        words = np.frombuffer(version, ">u8", shown, at + HEAD_BYTES) ^ SIGN
        parts.append(
            (
                version[at + 1 : at + HEAD_BYTES],
                tuple(int(w) for w in words.astype(np.uint64).view(np.int64)),
            )
        )
        at = end
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
    there = valid(versions)
    ends = np.zeros(len(versions), np.int64)
    for _ in range(parts):
        heads = numbers_in(window(data, bounds[:-1] + ends, 1)[:, 0])
        ends = np.where(there, ends + HEAD_BYTES + 8 * heads, 0)
    return slices(data, bounds[:-1], ends, there), after(versions, ends, there)


def numbers(versions: Bytes, first: int, last: int) -> pa.ListArray:
    """The integers of parts ``first`` up to but not including ``last``, as ``list<int64>``; null
    where all are absent.

    Tie-breaks are left out.
    """
    data, bounds = buffers(versions)
    rows = np.arange(len(versions))
    starts, row, at = bounds[:-1], [], []
    for part in range(last):
        first_byte = data[starts] if len(rows) else np.zeros(0, np.uint8)
        if part >= first:
            n = shown_in(first_byte)
            row.append(np.repeat(rows, n))
            at.append(
                np.repeat(starts + HEAD_BYTES - 8 * (np.cumsum(n) - n), n) + 8 * np.arange(n.sum())
            )
        starts = starts + HEAD_BYTES + 8 * numbers_in(first_byte)
    row_of, position = np.concatenate(row), np.concatenate(at)
    order = np.argsort(row_of, kind="stable")
    raw = np.ascontiguousarray(window(data, position[order], 8))
    values = (raw.view(">u8").reshape(-1).astype(np.uint64) ^ SIGN).view(np.int64)
    counts = np.bincount(row_of, minlength=len(rows))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values), mask=pa.array(counts == 0))


def sort_columns(versions: Bytes) -> list[Words]:
    """Arrays for ``np.lexsort``, the least significant first, that sort versions in byte order."""
    sizes = lengths(versions)
    if not len(sizes):
        return []
    width = -(-int(sizes.max()) // 8) * 8
    words = np.ascontiguousarray(padded(versions, width)).view(">u8")
    columns: list[Words] = [sizes.astype(np.uint64)] if sizes.min() != sizes.max() else []
    for place in reversed(range(width // 8)):
        column = words[:, place].astype(np.uint64)
        if column.min() != column.max():
            columns.append(column)
    return columns


def is_newer(arriving: Bytes, held: Bytes) -> Bools:
    """Tell where ``arriving`` supersedes ``held`` (no nulls in either); equal versions do not."""
    return compare(arriving, held)[0]


def compare(arriving: Bytes, held: Bytes) -> tuple[Bools, Bools]:
    """Tell where ``arriving`` supersedes ``held``, and where it does so because it starts over from another source."""
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
        for at, part in zip((at_a, at_h), parts, strict=True):
            at[row] += HEAD_BYTES + 8 * part.count
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
        words = (
            np.ascontiguousarray(window(data, starts + HEAD_BYTES, 8 * width))
            .view(">u8")
            .reshape(len(starts), width)
        )
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
    """Tell where part ``a`` is newer than ``h``, where it is of another source, and where they are equal."""
    one = (a.head == h.head).all(axis=1)
    if one.all():
        newer, equal = _of_one_source(a, h)
        return newer, np.zeros(len(one), bool), equal
    stem = (a.head[:, _STEM] == h.head[:, _STEM]).all(axis=1)
    unknown = ~a.head[:, _ID].any(axis=1) | ~h.head[:, _ID].any(axis=1)
    one |= stem & unknown & (a.first & h.first & PLACED > 0) & (a.count == h.count)
    restarts = ~(one | (a.first == 0) | (h.first == 0))
    newer, equal = restarts | (h.first == 0), np.zeros(len(one), bool)
    newer[one], equal[one] = _of_one_source(a[one], h[one])
    return newer, restarts, equal


def _of_one_source(a: _Parts, h: _Parts) -> tuple[Bools, Bools]:
    """Tell where part ``a`` is newer, and where they are equal: both have as many numbers."""
    width = min(a.words.shape[1], h.words.shape[1])  # what one has more of is of no row here
    unequal = a.words[:, :width] != h.words[:, :width]
    newer, differ = np.zeros(len(unequal), bool), np.zeros(len(unequal), bool)
    place = np.full(len(unequal), -1)
    for number in range(unequal.shape[1]):
        here = unequal[:, number] & ~differ
        newer[here] = a.words[here, number] > h.words[here, number]
        place[here] = number
        differ |= here
    inside = (
        (a.first & PLACED > 0)
        & (place >= 0)
        & (place == a.count - len(PLACE))
        & (a.last(1) == h.last(1))
    )
    if inside.any():  # the timestamps differ: in one partition the offset decides all the same
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
    """Versions of the topic of the identity that are older than any of its records, made like the given ones."""
    data, bounds = buffers(version)
    first = window(data, bounds[:-1], 1)[:, 0]
    width = int(numbers_in(first).max(initial=0))
    written = np.zeros((len(first), HEAD_BYTES + 8 * width), np.uint8)
    written[:, 0], written[:, 1:HEAD_BYTES] = first, np.frombuffer(identity, np.uint8)
    whole, starts = buffers(fixed(written))
    return slices(whole, starts[:-1], HEAD_BYTES + 8 * numbers_in(first))


def shown_in(first: Octets) -> Ints:
    """Read from its first byte how many numbers each part has besides a tie-break."""
    return numbers_in(first) - (first & TIED > 0)


def numbers_in(first: Octets) -> Ints:
    """Read from its first byte how many numbers each part has."""
    return (first & ~np.uint8(PLACED | TIED)).astype(np.int64)
