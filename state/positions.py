"""Where an index stands: which committed batch of the change log its data are those of."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_digest

from state.segments import TOKEN_BYTES

POSITION_BYTES = TOKEN_BYTES + 8

POSITION = "POSITION"
"""The file in an index that says it: ``{1-byte format}{position}{xxh3 of what is before}``."""

_FORMAT = b"\x02"

_CHECKSUM_BYTES = 8


class Position(NamedTuple):
    """Which committed batch the index stands at; as bytes ``{16-byte token}{uint64 next segment}``."""

    token: bytes
    next: int

    @classmethod
    def decode(cls, data: bytes) -> Position:
        return cls(data[:TOKEN_BYTES], int.from_bytes(data[TOKEN_BYTES:POSITION_BYTES], "big"))

    def encode(self) -> bytes:
        return self.token + self.next.to_bytes(8, "big")


def position_of(path: Path) -> Position | None:
    """Where the index there stands; None when it is new, or when that is not known."""
    try:
        data = (path / POSITION).read_bytes()
    except FileNotFoundError:
        return None
    body = data[:-_CHECKSUM_BYTES]
    if body[:1] != _FORMAT or data != body + xxh3_64_digest(body):
        return None
    return Position.decode(body[1:])


def say(path: Path, position: Position) -> None:
    """Write where the index there stands."""
    body = _FORMAT + position.encode()
    draft = (path / POSITION).with_suffix(".draft")
    draft.write_bytes(body + xxh3_64_digest(body))
    draft.replace(path / POSITION)
