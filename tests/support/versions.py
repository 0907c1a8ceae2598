"""Versions and arrays of bytes, made from plain values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES

SOURCE, OTHER = versions.identity("orders"), versions.identity("customers")


def array(*items: bytes | None) -> pa.LargeBinaryArray:
    return pa.array(items, BYTES)


def version(*numbers: int, source: bytes = SOURCE) -> bytes:
    return versions.encode(source, [np.array([number], np.int64) for number in numbers])[0].as_py()
