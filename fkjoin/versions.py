"""Versions: where in its source a row was written, as bytes that order it among the versions of the same row.

A version is one part or several: ``{n: 1 byte}{identity of the source: 8 bytes}{n int64, big-endian, sign bit
flipped}``.  A source row has one part; a join result has its left row's parts followed by its right row's, or by as
many *absent* parts (``n`` = 0) when no right row was ever seen.  So all versions of a table have equally many parts.

*Law* (``is_newer``): versions are compared at the first byte in which they differ.  Inside the integers the greater
one is newer.  An absent part is older than any other.  Otherwise the sources differ: they are never compared, and the
arriving version starts over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from fkjoin.arrays import Bools, Bytes, Ints, Octets, after, as_bytes, buffers, fixed, lengths, padded, slices, valid, window
from fkjoin.errors import FormatError

HEAD_BYTES = 9
SIGN = np.uint64(1 << 63)

Words = npt.NDArray[np.uint64]


def identity(source: str) -> bytes:
    """Eight bytes that stand for a source, compared for equality only."""
    return xxhash.xxh3_64_digest(source.encode())


def encode(source: bytes | Bytes, columns: Sequence[Ints]) -> Bytes:
    """One-part versions from ``columns`` of int64, one column per place of the tuple.

    ``source`` is an ``identity``, the same for all rows or one per row.
    """
    rows, n = len(columns[0]), len(columns)
    table = np.empty((rows, HEAD_BYTES + 8 * n), np.uint8)
    table[:, 0] = n
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
    """The parts of a version: identity and tuple of each."""
    parts: list[tuple[bytes, tuple[int, ...]]] = []
    at = 0
    while at < len(version):
        n = version[at]
        end = at + HEAD_BYTES + 8 * n
        if end > len(version):
            raise FormatError(f"version {version.hex()} is cut off in its part {len(parts)}")
        words = np.frombuffer(version, ">u8", n, at + HEAD_BYTES) ^ SIGN
        parts.append((version[at + 1 : at + HEAD_BYTES], tuple(int(w) for w in words.astype(np.uint64).view(np.int64))))
        at = end
    return parts


def split(versions: Bytes, parts: int) -> tuple[Bytes, Bytes]:
    """The first ``parts`` parts of each version, and the rest; both null for null."""
    data, bounds = buffers(versions)
    there = valid(versions)
    ends = np.zeros(len(versions), np.int64)
    for _ in range(parts):
        heads = window(data, bounds[:-1] + ends, 1)[:, 0].astype(np.int64)
        ends = np.where(there, ends + HEAD_BYTES + 8 * heads, 0)
    return slices(data, bounds[:-1], ends, there), after(versions, ends, there)


def numbers(versions: Bytes, first: int, last: int) -> pa.ListArray:
    """The integers of parts ``first`` up to but not including ``last``, as ``list<int64>``; null where all are absent."""
    data, bounds = buffers(versions)
    rows = np.arange(len(versions))
    starts, row, at = bounds[:-1], [], []
    for part in range(last):
        n = data[starts].astype(np.int64) if len(rows) else rows
        if part >= first:
            row.append(np.repeat(rows, n))
            at.append(np.repeat(starts + HEAD_BYTES - 8 * (np.cumsum(n) - n), n) + 8 * np.arange(n.sum()))
        starts = starts + HEAD_BYTES + 8 * n
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
    """Where ``arriving`` supersedes ``held`` (no nulls in either); equal versions do not."""
    return compare(arriving, held)[0]


def compare(arriving: Bytes, held: Bytes) -> tuple[Bools, Bools]:
    """Where ``arriving`` supersedes ``held``, and where it does so because it starts over from another source."""
    rows = len(arriving)
    if not rows:
        return np.zeros(0, bool), np.zeros(0, bool)
    size_a, size_h = lengths(arriving), lengths(held)
    width = int(max(size_a.max(), size_h.max(), 1))
    a, h = padded(as_bytes(arriving), width), padded(as_bytes(held), width)
    differs = a != h
    place = differs.argmax(axis=1)
    some = differs[np.arange(rows), place]
    shorter = np.minimum(size_a, size_h)
    inside = some & (place < shorter)
    at = np.arange(rows), np.where(inside, place, 0)
    length, head = _heads(a, size_a)
    greater = a[at] > h[at]
    vacant = length[at] & ((a[at] == 0) | (h[at] == 0))
    restarts = inside & head[at] & ~vacant
    newer = np.where(vacant, greater, head[at] | greater)
    return np.where(inside, newer, size_a > size_h), restarts


def _heads(table: Octets, sizes: Ints) -> tuple[Bools, Bools]:
    """Which bytes of each padded version are a part's ``n``, and which belong to the head of a part."""
    first, head = np.zeros(table.shape, bool), np.zeros(table.shape, bool)
    rows = np.arange(len(table))
    starts = np.zeros(len(table), np.int64)
    while (live := starts < sizes).any():
        row, start = rows[live], starts[live]
        first[row, start] = True
        head[row[:, None], start[:, None] + np.arange(HEAD_BYTES)] = True
        starts[live] = start + HEAD_BYTES + 8 * table[row, start].astype(np.int64)
    return first, head
