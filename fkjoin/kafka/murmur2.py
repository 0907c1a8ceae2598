"""Java's default partitioner: murmur2 of the key without its sign bit, modulo partitions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fkjoin.codec.arrays import Bytes, Ints, lengths, padded

_M = np.uint32(0x5BD1E995)
_SEED = 0x9747B28C
_WIDEST = 256
"""Longer keys are hashed one by one: as a table they would take too much memory."""


def partitions_of(keys: Bytes, partitions: int) -> Ints:
    """The partition of each key (no nulls)."""
    return ((murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int64)


def murmur2(keys: Bytes) -> npt.NDArray[np.uint32]:
    """The hash of each key, unsigned."""
    sizes = lengths(keys)
    if len(sizes) and sizes.max() > _WIDEST:
        hashes = np.zeros(len(sizes), np.uint32)
        short = sizes <= _WIDEST
        hashes[short] = _hashes(keys.take(np.flatnonzero(short)), sizes[short])
        for index in np.flatnonzero(~short):
            hashes[index] = _hashes(keys.slice(index, 1), sizes[index : index + 1])[0]
        return hashes
    return _hashes(keys, sizes)


def _hashes(keys: Bytes, sizes: Ints) -> npt.NDArray[np.uint32]:
    if not len(sizes):
        return np.zeros(0, np.uint32)
    blocks = int(sizes.max()) // 4 + 1
    words = np.ascontiguousarray(padded(keys, 4 * blocks)).view("<u4").astype(np.uint32)
    hashed = sizes.astype(np.uint32) ^ np.uint32(_SEED)
    with np.errstate(over="ignore"):
        for block in range(blocks):
            word = words[:, block] * _M
            word = (word ^ word >> np.uint32(24)) * _M
            hashed = np.where(sizes >= 4 * block + 4, hashed * _M ^ word, hashed)
        rest = words[np.arange(len(sizes)), sizes // 4]
        hashed = np.where(sizes % 4 > 0, (hashed ^ rest) * _M, hashed)
        hashed = (hashed ^ hashed >> np.uint32(13)) * _M
    return hashed ^ hashed >> np.uint32(15)
