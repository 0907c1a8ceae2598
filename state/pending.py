"""Pending files: what one attempt wrote, kept beside the index until it is known whether the attempt was committed.

Only a short cut: without its file, or with a damaged one, the next batch reads the same entries from the log.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from state.index import Position
from state.protocol import BYTES, Bytes

_SCHEMA = pa.schema([("key", BYTES), ("value", BYTES)])


def path(directory: Path, token: bytes) -> Path:
    """Where the entries of the attempt ``token`` are kept."""
    return directory / f"pending-{token.hex()}.arrow"


def keep(place: Path, keys: Bytes, values: Bytes, base: Position) -> None:
    """Write the entries, and the position that they lead on from; a disk that is full is no error here."""
    about = {b"base": base.token, b"next": str(base.next).encode(), b"checksum": _checksum(keys, values)}
    schema = _SCHEMA.with_metadata(about)
    draft = place.with_suffix(".draft")
    try:
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch([keys, values], schema=schema))
        draft.replace(place)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def read(place: Path, at: Position) -> tuple[Bytes, Bytes] | None:
    """The entries kept in ``place``; None unless they are whole and lead on from ``at``."""
    if not place.exists():
        return None
    try:
        with pa.memory_map(str(place)) as source, pa.ipc.open_file(source) as reader:
            about = reader.schema.metadata
            if about[b"base"] != at.token or int(about[b"next"]) != at.next:
                return None
            batch = reader.get_batch(0)
            batch.validate()
            keys, values = batch.column(0), batch.column(1)
            return (keys, values) if about[b"checksum"] == _checksum(keys, values) else None
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError):
        return None


def discard_all(directory: Path) -> None:
    """Remove every pending file of ``directory``."""
    for stale in directory.glob("pending-*"):
        with contextlib.suppress(OSError):
            stale.unlink()


def _checksum(keys: Bytes, values: Bytes) -> bytes:
    """A hash of the entries, wherever in their buffers they lie."""
    found = xxhash.xxh3_64()
    for column in (keys, values):
        found.update(np.packbits(pc.is_valid(column).to_numpy(zero_copy_only=False)).tobytes())
        if len(column):
            _, offsets, data = column.buffers()
            bounds = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset)
            found.update(np.diff(bounds).tobytes())
            if data is not None:
                found.update(memoryview(data)[bounds[0] : bounds[-1]])
    return found.digest()
