"""The records of a staged aggregate's repartition topic (KIP-904).

The key is the group's, the value a ``Change``: ``{old}{0}``, ``{new}{1}`` or ``{int32 big-endian:
length of new}{new}{old}{2}``.  Three headers say what fkjoin needs besides: ``fkjoin.version``
``{1-byte wire version}{version}``, ``fkjoin.row`` (the key of the row that contributes) and
``fkjoin.timestamp`` (int64, big-endian).

In wire version 0, the form of before KIP-904, of a group that stays the same the old and the new
value are two records.  The first then has a fourth header, ``fkjoin.pair``: a reader waits for the
second, so that nothing in between is seen.  Without that header the first one takes back, and the
second one adds what the row contributes (see ``fkjoin.stages.guard``).

*Law*: reading what was written gives the same messages, in either form; any other record is told
apart, by its reason.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import (
    Bytes,
    buffers,
    concat,
    constant,
    fixed,
    lengths,
    masked,
    numbers_at,
    slices,
    stack,
    untagged,
    valid,
)
from fkjoin.codec.messages import GROUPED, column, table
from fkjoin.kafka.wire import WIRE_VERSION, WireRecords, leading, octets, times, versioned

REPARTITION_HEADERS = ("version", "row", "timestamp", "pair")
"""The headers of a record; the last is null but in the first of two records."""
OLD, NEW, BOTH = 0, 1, 2
TWO_RECORDS = 0
"""The wire version of the form of before KIP-904."""
_SIZE = 4


def changes(grouped: pa.Table, *, two_records: bool = False) -> WireRecords:
    """``GROUPED`` messages as records; ``two_records``: in wire version ``TWO_RECORDS``."""
    old, new = column(grouped, "old"), column(grouped, "new")
    had, has = valid(old), valid(new)
    names = ("key", "version", "row", "ts")
    if two_records:
        first, second = np.flatnonzero(had), np.flatnonzero(has)
        order = np.lexsort((np.arange(len(first) + len(second)), np.concatenate([first, second])))
        rows = pa.array(np.concatenate([first, second])[order])
        key, version, row, ts = (column(grouped, name).take(rows) for name in names)
        is_new = (np.arange(len(order)) >= len(first))[order]
        value = stack(old.take(pa.array(first)), new.take(pa.array(second))).take(pa.array(order))
        value = concat(value, octets(np.where(is_new, NEW, OLD).astype(np.uint8)))
        paired = ~is_new & has[rows.to_numpy()]
    else:
        key, version, row, ts = (column(grouped, name) for name in names)
        flag = np.where(had & has, BOTH, np.where(has, NEW, OLD))
        size = np.where(has, lengths(new), 0).astype(">i4")
        sizes = fixed(size.view(np.uint8).reshape(-1, _SIZE))
        value = concat(masked(sizes, flag == BOTH), new, old, octets(flag.astype(np.uint8)))
        paired = np.zeros(len(grouped), bool)
    wire_version = TWO_RECORDS if two_records else WIRE_VERSION
    pair = masked(constant(b"\1", len(key)), paired)
    headers = versioned(wire_version, version), row, times(ts.to_numpy()), pair
    return WireRecords(key, value, headers)


def problems(records: WireRecords) -> pa.Array:
    """The reason why each record cannot be read; null: it can."""
    value, (version, row, time, _) = records.value, records.headers
    size = np.where(valid(value), lengths(value), 0)
    flag, new = _parts(value)
    is_cut = (size < _SIZE + 1) | (new < 0) | (new > size - _SIZE - 1)
    lacks_header = ~(valid(version) & valid(row) & valid(time))
    is_newer = valid(version) & (leading(version, "u1") > WIRE_VERSION)
    missing = "a header fkjoin.version, fkjoin.row or fkjoin.timestamp is missing"
    reasons = [
        (~valid(records.key), "the record has no key, so no group"),
        (size == 0, "the value is empty: a change of KIP-904 ends with a flag"),
        (flag > BOTH, "the value's last byte is not 0, 1 or 2 (KIP-904)"),
        ((flag == BOTH) & is_cut, "the new value is cut off (KIP-904)"),
        (lacks_header, missing),
        (valid(version) & (lengths(version) == 0), "the header fkjoin.version is empty"),
        (is_newer, f"its wire version is newer than {WIRE_VERSION}"),
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
    """Undo ``changes``, for records without problems; the first of two records is left out."""
    version, row, time, pair = records.headers
    old, new = parts(records)
    grouped = table(GROUPED, records.key, row, untagged(version), old, new, leading(time, ">i8"))
    return grouped.filter(pa.array(~valid(pair)))


def _parts(value: Bytes) -> tuple[np.ndarray, np.ndarray]:
    """The flag of each value, and the length of the new one where both are there.

    Of an empty value they are anything.
    """
    data, bounds = buffers(value)
    last = np.where(np.diff(bounds) > 0, bounds[1:] - 1, 0)
    return numbers_at(data, last, "u1"), leading(value, ">i4")
