"""Bytes of Spark's state stores (RocksDB, checkpoint format 2), read without Spark.

Nothing here is about files.  A *change file* ``{version}_{id}.changelog`` has what a version
changed.  It is a stream of LZ4 blocks, or of zstd.  In it stand Java's ``writeUTF`` texts ``v4``
and the *lineage*, a JSON list of the versions before this one, and then records:

    {0x01}{int32 size}{key}{int32 size}{value}      put
    {0x10}{int32 size}{key}{int32 -1}               delete
    {0x00}                                          the end

Keys and values are ``UnsafeRow`` behind a format byte 0; before a key stands the number of its
state variable.

*Law*: bytes that are not of this form are refused, and none are left out.  Blocks have checksums.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import xxhash

from fkjoin.errors import FormatError

_BLOCK, _LZ4, _ZSTD = struct.Struct("<8sBiii"), b"LZ4Block", b"\x28\xb5\x2f\xfd"
_PLAIN, _PACKED = 0x10, 0x20
_SEED, _CHECKED_BITS = 0x9747B28C, 0x0FFFFFFF
"""Seed of the checksum of a block, and the bits of it that are kept."""

_PUT, _DELETE, _END = 0x01, 0x10, 0x00

_META_KEY = struct.Struct("<HBQi4x")
"""Number of the variable, format; null bits, bucket."""
_LOG_KEY = struct.Struct("<HiBQiiQi4xBQiiQq")
"""Number of the variable, size of what is grouped by.

Then format, null bits, size and place of the bucket's row, its null bits, bucket; the same of the
segment's number.
"""
_VALUE = struct.Struct("<BQii")
"""Format, null bits, size and place of the data."""


class ForeignFormatError(FormatError):
    """A file has a form that this release does not read."""


class Version(NamedTuple):
    """A version of a state store: after batch ``number - 1``, as the attempt ``id`` wrote it."""

    number: int
    id: str

    @property
    def name(self) -> str:
        """Beginning of the names of its files."""
        return f"{self.number}_{self.id}"


class LogPlace(NamedTuple):
    """A record of a bucket's log: its segment ``number``, or with None its meta record."""

    bucket: int
    number: int | None


class Changes(NamedTuple):
    """The changes of a version."""

    lineage: tuple[Version, ...]
    """Versions before it, the oldest first, back to a snapshot; none before the first."""
    written: Mapping[LogPlace, bytes | None]
    """The data of each record that was put; None of one that was deleted."""


def changes_of(name: str, data: bytes) -> Changes:
    """Read a change file; ``FormatError`` if it is damaged, or of another form."""
    try:
        return _changes(_inflated(data))
    except FormatError as error:
        raise type(error)(f"{name} {error}") from None
    except (struct.error, ValueError, KeyError, TypeError, pa.ArrowException, OSError) as error:
        raise FormatError(f"{name} is damaged and does not parse: {error}") from error


def place_of(key: bytes) -> LogPlace:
    """Read the key of a record; ``FormatError`` if it is none of a log's."""
    if len(key) == _META_KEY.size:
        _, form, nulls, bucket = _META_KEY.unpack(key)
        if form == nulls == 0:
            return LogPlace(bucket, None)
    if len(key) == _LOG_KEY.size:
        _, *fixed, number = _LOG_KEY.unpack(key)
        bucket = fixed.pop(6)
        if fixed == [33, 0, 0, 16, 16, 0, 0, 0, 16, 16, 0]:
            return LogPlace(bucket, number)
    raise FormatError(f"contains a key {key[:80].hex()} that does not belong to a change log")


def key_of(variable: int, record: LogPlace) -> bytes:
    """Make the key of a record, as Spark does."""
    bucket, number = record
    if number is None:
        return _META_KEY.pack(variable, 0, 0, bucket)
    return _LOG_KEY.pack(variable, 33, 0, 0, 16, 16, 0, bucket, 0, 0, 16, 16, 0, number)


def data_of(value: bytes) -> bytes:
    """Read the bytes that a record's value is; ``FormatError`` if it is of another form."""
    if len(value) >= _VALUE.size:
        form, nulls, size, offset = _VALUE.unpack_from(value)
        if form == nulls == 0 and offset == 16 and 0 <= size <= len(value) - _VALUE.size:
            return value[_VALUE.size : _VALUE.size + size]
    raise FormatError(f"contains a value {value[:17].hex()}… that does not belong to a change log")


def _changes(data: bytes) -> Changes:
    offset = 0

    def take(size: int) -> bytes:
        nonlocal offset
        if size < 0 or offset + size > len(data):
            raise FormatError("is damaged: it ends in the middle of a record")
        offset += size
        return data[offset - size : offset]

    def sized() -> bytes:
        return take(int.from_bytes(take(4), "big", signed=True))

    def text() -> str:
        return take(int.from_bytes(take(2), "big")).decode()

    if (form := text()) != "v4":
        raise ForeignFormatError(
            f"is a change file of the form {form!r}, and this release reads 'v4'"
        )
    items = json.loads(text())
    lineage = tuple(
        Version(int(item["version"]), str(item["checkpointUniqueId"])) for item in items
    )
    written: dict[LogPlace, bytes | None] = {}
    while (kind := take(1)[0]) != _END:
        if kind not in (_PUT, _DELETE):
            raise FormatError(f"contains a record of the unknown kind {kind:#04x}")
        record = place_of(sized())
        written[record] = data_of(sized()) if kind == _PUT else None
        if kind == _DELETE:
            take(4)
    if offset != len(data):
        raise FormatError("is corrupt: it has data after its end marker")
    return Changes(lineage, written)


def _inflated(data: bytes) -> bytes:
    """Decompress a file, and compare the checksums of its blocks."""
    if data.startswith(_ZSTD):
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return bytes(stream.read())
    if not data.startswith(_LZ4):
        raise ForeignFormatError(
            "is compressed by neither lz4 nor zstd: set "
            "spark.sql.streaming.stateStore.compression.codec to lz4, and begin a new checkpoint"
        )
    codec, parts, offset = pa.Codec("lz4_raw"), list[bytes](), 0
    while offset < len(data):
        magic, token, packed, size, checksum = _BLOCK.unpack_from(data, offset)
        offset += _BLOCK.size
        body = data[offset : offset + packed]
        offset += packed
        method = token & 0xF0
        if magic != _LZ4 or size < 0 or len(body) != packed or method not in (_PLAIN, _PACKED):
            raise FormatError("is damaged: a block of it does not parse")
        if not size:
            if offset != len(data):
                raise FormatError("is corrupt: it has data after its end marker")
            return b"".join(parts)
        part = body if method == _PLAIN else bytes(codec.decompress(body, size, asbytes=True))
        if len(part) != size or xxhash.xxh32_intdigest(part, _SEED) & _CHECKED_BITS != checksum:
            raise FormatError("is damaged: the checksum of a block does not match")
        parts.append(part)
    raise FormatError("is damaged: its end marker is missing")
