"""The value format of all of a join's stores:
``{1-byte format}{1-byte flags}{uint16 length of version}{int64 ts}``, little-endian, then the
version, then the body.

What body and flags mean is the stage's affair; a record that does not exist decodes as such.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fkjoin.codec.arrays import (
    Bools,
    Bytes,
    Ints,
    after,
    buffers,
    concat,
    fixed,
    lengths,
    slices,
    valid,
    window,
)
from fkjoin.errors import FormatError

_FORMAT = 1
_HEAD = np.dtype([("format", "u1"), ("flags", "u1"), ("version", "<u2"), ("ts", "<i8")])


class Records(NamedTuple):
    """Columns of decoded records; ``version`` is empty and ``body`` null where none ``exists``."""

    exists: Bools
    flags: npt.NDArray[np.uint8]
    ts: Ints
    version: Bytes
    body: Bytes


def encode(flags: npt.NDArray[np.uint8], ts: Ints, version: Bytes, body: Bytes) -> Bytes:
    """Element-wise; a null body is an empty one."""
    head = np.empty(len(version), _HEAD)
    head["format"] = _FORMAT
    head["flags"] = flags
    head["version"] = lengths(version)
    head["ts"] = ts
    return concat(fixed(head), version, body)


def decode(values: Bytes) -> Records:
    """Nulls are records that are not there."""
    exists = valid(values)
    data, bounds = buffers(values)
    head = np.ascontiguousarray(window(data, bounds[:-1], _HEAD.itemsize)).view(_HEAD).reshape(-1)
    if (wrong := exists & (head["format"] != _FORMAT)).any():
        unknown = int(head["format"][int(wrong.argmax())])
        raise FormatError(
            f"a stored record has format {unknown}, this release reads {_FORMAT}: "
            "open the checkpoint with the release that wrote it, or a newer one"
        )
    sizes = np.where(exists, head["version"], 0).astype(np.int64)
    versions = slices(data, bounds[:-1] + _HEAD.itemsize, sizes)
    bodies = after(values, _HEAD.itemsize + sizes, exists)
    flags = np.where(exists, head["flags"], 0).astype(np.uint8)
    return Records(exists, flags, head["ts"].astype(np.int64), versions, bodies)
