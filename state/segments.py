"""Formats of the change log: its meta record and its segments.

A segment holds part of what one attempt wrote:
``{1-byte format}{16-byte token}{8-byte xxh3 of the rest}{Arrow IPC stream, ZSTD}`` with the columns
``key`` and ``value`` (null: deleted). Segments are numbered without gaps; applying
``first..next-1`` in order gives the store. *Law*: every live entry is in some segment, so the
oldest segment may go once its live entries have been appended again; a deletion in the oldest
segment has nothing left to hide.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from fkjoin.state.errors import CorruptLogError, UnknownFormatError
from fkjoin.state.protocol import BYTES, Bytes

META_FORMAT = 3
_FORMAT = 2
TOKEN_BYTES = 16
CHECKSUM_BYTES = 8
SEGMENT_BYTES = 4 << 20
"""Largest payload of a segment before compression, unless a single entry is larger."""

ENTRY_OVERHEAD = 16
"""Bytes that an entry is charged besides the lengths of its key and value."""

_SCHEMA = pa.schema([("key", BYTES), ("value", BYTES)])
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
_RESTORE = "restore the checkpoint from a backup, or start from a new one and replay the sources"
_META = struct.Struct(">B16sQQQQ")
"""Format, token, first and next segment, live and log bytes; then come the key and the identity."""

KEY_BYTES = 16
POSITION_BYTES = TOKEN_BYTES + 8


class Position(NamedTuple):
    """A committed batch that an index stands at, as bytes ``{16-byte token}{uint64 segment}``.

    The segment is the next one of the log.
    """

    token: bytes
    next: int

    @classmethod
    def decode(cls, data: bytes) -> Position:
        return cls(data[:TOKEN_BYTES], int.from_bytes(data[TOKEN_BYTES:POSITION_BYTES], "big"))

    def encode(self) -> bytes:
        return self.token + self.next.to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class Meta:
    """A batch's summary: the attempt that wrote last, the segments, and how much in them is live.

    ``identity`` is the caller's: a store opened with another identity is refused.  ``key`` is the
    secret that local files of the store are sealed with: it stays the same from the first batch on.
    """

    token: bytes
    first: int
    next: int
    live_bytes: int
    log_bytes: int
    identity: bytes = b""
    key: bytes = bytes(KEY_BYTES)

    def encode(self) -> bytes:
        head = _META.pack(
            META_FORMAT, self.token, self.first, self.next, self.live_bytes, self.log_bytes
        )
        return head + self.key + self.identity

    @classmethod
    def decode(cls, data: bytes) -> Meta:
        if not data or data[0] != META_FORMAT:
            raise UnknownFormatError(
                f"change log meta has format {data[:1].hex() or 'none'}, "
                f"this release reads {META_FORMAT:02x}: open the checkpoint "
                "with the release that wrote it, or a newer one"
            )
        size = _META.size + KEY_BYTES
        if len(data) < size:
            raise CorruptLogError(
                f"change log meta has {len(data)} bytes, at least {size} are needed"
            )
        _, token, first, next_, live, log = _META.unpack_from(data)
        return cls(token, first, next_, live, log, data[size:], data[_META.size : size])


def entry_bytes(keys: Bytes, values: Bytes) -> int:
    """Sum up what these entries are charged in ``live_bytes`` and ``log_bytes``."""
    return _data_bytes(keys) + _data_bytes(values) + ENTRY_OVERHEAD * len(keys)


def encode_segments(token: bytes, keys: Bytes, values: Bytes) -> Iterator[bytes]:
    """The entries as one segment or several of at most ``SEGMENT_BYTES`` each."""
    start, rows = 0, len(keys)
    if not rows:
        return
    # As many rows as fit if all are of average size; a part with larger rows becomes larger.
    step = max(1, rows * SEGMENT_BYTES // max(1, entry_bytes(keys, values)))
    while start < rows:
        yield _encode(token, keys.slice(start, step), values.slice(start, step))
        start += step


def decode_segment(number: int, data: bytes | None) -> tuple[bytes, Bytes, Bytes]:
    """Token, keys and values of segment ``number``."""
    if data is None:
        raise CorruptLogError(
            f"change log segment {number} is missing from the checkpoint's state: {_RESTORE}"
        )
    if not data or data[0] != _FORMAT:
        raise UnknownFormatError(
            f"change log segment {number} has format {data[:1].hex() or 'none'}, "
            f"this release reads {_FORMAT:02x}: open the checkpoint "
            "with the release that wrote it, or a newer one"
        )
    head = 1 + TOKEN_BYTES
    token, checksum = data[1:head], data[head : head + CHECKSUM_BYTES]
    body = memoryview(data)[head + CHECKSUM_BYTES :]
    if checksum != xxhash.xxh3_64_digest(body):
        raise CorruptLogError(
            f"change log segment {number} is damaged, its checksum does not match: {_RESTORE}"
        )
    try:
        return token, *read_entries(body)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptLogError(
            f"change log segment {number} is damaged and does not parse ({error}): {_RESTORE}"
        ) from error


def write_entries(
    keys: Bytes, values: Bytes, options: pa.ipc.IpcWriteOptions | None = None
) -> pa.Buffer:
    """Write the entries as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=options) as writer:
        writer.write_batch(pa.record_batch([keys, values], schema=_SCHEMA))
    return sink.getvalue()


def read_entries(stream: bytes | memoryview) -> tuple[Bytes, Bytes]:
    """Undo ``write_entries``."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        table = reader.read_all().combine_chunks()
    return _chunk(table.column("key")), _chunk(table.column("value"))


def _encode(token: bytes, keys: Bytes, values: Bytes) -> bytes:
    body = write_entries(keys, values, _OPTIONS)
    return b"".join((bytes((_FORMAT,)), token, xxhash.xxh3_64_digest(body), body))


def _chunk(column: pa.ChunkedArray) -> Bytes:
    return column.chunk(0) if column.num_chunks else pa.array([], BYTES)


def _data_bytes(array: Bytes) -> int:
    # Not the size of the buffers: bytes may stand under nulls, and beside a slice.
    return pc.sum(pc.binary_length(array)).as_py() or 0
