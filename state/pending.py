"""Pending files: what one attempt wrote, kept beside the index until it is known whether the attempt was committed.

``pending-{token}.sst`` is a sorted file that the index can take in; ``pending-{token}.head`` says what it leads on from:
``{16-byte token}{uint64 next segment}{xxh3 of the sorted file}``.  Only a short cut: without its files, or with damaged
ones, the next batch reads the same entries from the log.
"""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

import xxhash

from state.index import Position
from state.protocol import Bytes
from state.sorted_file import write_sorted


def path(directory: Path, token: bytes) -> Path:
    """Where the entries of the attempt ``token`` are kept."""
    return directory / f"pending-{token.hex()}.sst"


def keep(place: Path, keys: Bytes, values: Bytes, base: Position) -> None:
    """Write the entries, and the position that they lead on from; a disk that is full is no error here."""
    if not len(keys):
        return
    head = place.with_suffix(".head")
    try:
        write_sorted(place, keys, values)
        head.write_bytes(_head(place, base))
    except Exception:  # rocksdict has one kind of error
        for file in (place, head):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


def whole(place: Path, at: Position) -> bool:
    """Whether the entries kept in ``place`` are as they were written and lead on from ``at``."""
    try:
        return place.with_suffix(".head").read_bytes() == _head(place, at)
    except (OSError, ValueError):
        return False


def discard_all(directory: Path) -> None:
    """Remove every pending file of ``directory``."""
    for stale in directory.glob("pending-*"):
        with contextlib.suppress(OSError):
            stale.unlink()


def _head(place: Path, base: Position) -> bytes:
    with place.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return base.token + base.next.to_bytes(8, "big") + xxhash.xxh3_64_digest(data)
