"""The records of a staged aggregate's repartition topic (KIP-904).

The key is the group's, the value a ``Change``: ``{old}{0}``, ``{new}{1}`` or ``{int32 big-endian:
length of new}{new}{old}{2}``.  Three headers say what fkjoin needs besides: ``fkjoin.version``
``{1-byte wire version}{version}``, ``fkjoin.row`` (the key of the row that contributes) and
``fkjoin.timestamp`` (int64, big-endian).

*Law*: reading what was written gives the same messages; any other record is told apart, by its
reason.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import (
    Bytes,
    buffers,
    concat,
    fixed,
    lengths,
    masked,
    numbers_at,
    slices,
    untagged,
    valid,
)
from fkjoin.codec.messages import GROUPED, column, table
from fkjoin.kafka.wire import (
    WIRE_VERSION,
    WireRecords,
    leading,
    octets,
    require_wire,
    times,
    versioned,
)

REPARTITION_HEADERS = ("version", "row", "timestamp")
OLD, NEW, BOTH = 0, 1, 2
_SIZE = 4


def changes(grouped: pa.Table) -> WireRecords:
    """``GROUPED`` messages as records."""
    key, version, row, ts, old, new = (
        column(grouped, name) for name in ("key", "version", "row", "ts", "old", "new")
    )
    had, has = valid(old), valid(new)
    flag = np.where(had & has, BOTH, np.where(has, NEW, OLD))
    size = np.where(has, lengths(new), 0).astype(">i4")
    sizes = fixed(size.view(np.uint8).reshape(-1, _SIZE))
    value = concat(masked(sizes, flag == BOTH), new, old, octets(flag.astype(np.uint8)))
    headers = versioned(WIRE_VERSION, version), row, times(ts.to_numpy())
    return WireRecords(key, value, headers)


def problems(records: WireRecords) -> pa.Array:
    """The reason why each record cannot be read; null: it can.

    ``FormatError`` for a record of another wire version: another release wrote it.
    """
    value, (version, row, time) = records.value, records.headers
    size = np.where(valid(value), lengths(value), 0)
    flag, new = _parts(value)
    is_cut = (size < _SIZE + 1) | (new < 0) | (new > size - _SIZE - 1)
    lacks_header = ~(valid(version) & valid(row) & valid(time))
    require_wire(leading(version, "u1")[~lacks_header & (lengths(version) > 0)])
    missing = "a header fkjoin.version, fkjoin.row or fkjoin.timestamp is missing"
    reasons = [
        (~valid(records.key), "the record has no key, so no group"),
        (size == 0, "the value is empty: a change of KIP-904 ends with a flag"),
        (flag > BOTH, "the value's last byte is not 0, 1 or 2 (KIP-904)"),
        ((flag == BOTH) & is_cut, "the new value is cut off (KIP-904)"),
        (lacks_header, missing),
        (valid(version) & (lengths(version) == 0), "the header fkjoin.version is empty"),
        (valid(time) & (lengths(time) != 8), "the header fkjoin.timestamp has not 8 bytes"),
    ]
    problem = pa.nulls(len(value), pa.string())
    for wrong, reason in reversed(reasons):  # the first reason wins
        problem = pc.if_else(pa.array(wrong), reason, problem)
    return problem


def parts(records: WireRecords) -> tuple[Bytes, Bytes]:
    """Old and new values of records without problems."""
    flag, new_size = _parts(records.value)
    data, bounds = buffers(records.value)
    size = np.diff(bounds) - 1
    head = np.where(flag == BOTH, _SIZE, 0)
    new_size = np.where(flag == BOTH, new_size, np.where(flag == NEW, size, 0))
    new = slices(data, bounds[:-1] + head, new_size, flag != OLD)
    return slices(data, bounds[:-1] + head + new_size, size - head - new_size, flag != NEW), new


def read_changes(records: WireRecords) -> pa.Table:
    """Undo ``changes``, for records without problems."""
    version, row, time = records.headers
    old, new = parts(records)
    return table(GROUPED, records.key, row, untagged(version), old, new, leading(time, ">i8"))


def _parts(value: Bytes) -> tuple[np.ndarray, np.ndarray]:
    """The flag of each value, and the length of the new one where both are there.

    Of an empty value they are anything.
    """
    data, bounds = buffers(value)
    last = np.where(np.diff(bounds) > 0, bounds[1:] - 1, 0)
    return numbers_at(data, last, "u1"), leading(value, ">i4")
