"""The position of an index: the committed batch of the change log that its data belong to."""

from __future__ import annotations

from typing import NamedTuple

from fkjoin.state.segments import TOKEN_BYTES

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
