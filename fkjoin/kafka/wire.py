"""The records of internal topics: of a staged join (KIP-213) and a staged aggregate (KIP-904).

*Registration*, rekey → subscription: the key is the CombinedKey, the value the left row's bytes,
null when it only leaves. *Response*, subscription → resolve: the key is the left key, the value
both rows.  The rest travels in four headers: ``fkjoin.version`` ``{1-byte wire version}{version}``,
``fkjoin.instruction`` (1 byte, see ``_COMES``), ``fkjoin.propagate`` (1 byte, bit 0),
``fkjoin.timestamp`` (int64, big-endian).

*Law*: reading what was written gives the same messages; what another wire version wrote is refused
by name, and so is an instruction that fkjoin does not write with that propagate flag.

*Change*, regroup → aggregate: the key is the group's, the value a ``Change``: ``{old}{0}``,
``{new}{1}`` or ``{int32 big-endian: length of new}{new}{old}{2}``.  Three headers say what fkjoin
needs besides: ``fkjoin.version``, ``fkjoin.row`` (the key of the row that contributes) and
``fkjoin.timestamp``.

*Law*: reading what was written gives the same messages; any other record is told apart, by its
reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key
from fkjoin.codec.arrays import (
    Bools,
    Bytes,
    Ints,
    Octets,
    after,
    as_bytes,
    buffers,
    concat,
    constant,
    fixed,
    lengths,
    masked,
    numbers_at,
    slices,
    untagged,
    valid,
    window,
)
from fkjoin.codec.messages import ANSWER, GROUPED, SUBSCRIPTION, column, table
from fkjoin.errors import FormatError

WIRE_VERSION = 1
HEADERS: tuple[str, ...] = ("version", "instruction", "propagate", "timestamp")
REPARTITION_HEADERS: tuple[str, ...] = ("version", "row", "timestamp")
HEADER_PREFIX = "fkjoin."

_COMES, _LEAVES = 2, 0
"""Kafka's instructions to the subscription side that fkjoin writes.

They are PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE and DELETE_KEY_NO_PROPAGATE.  Of the others, 1 is
DELETE_KEY_AND_PROPAGATE, and 3 is PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE.
"""

_BODY = np.dtype([("flags", "u1"), ("left", ">u4")])
OLD, NEW, BOTH = 0, 1, 2
_SIZE = 4


class WireRecords(NamedTuple):
    """Keys, values and the headers of records."""

    key: Bytes
    value: Bytes
    headers: tuple[Bytes, ...]


def records_in(batch: pa.RecordBatch, headers: Iterable[str]) -> WireRecords:
    """The records of a batch with the columns of ``with_headers``."""
    columns: Any = tuple(as_bytes(batch.column(f"header_{name}")) for name in headers)
    return WireRecords(as_bytes(batch.column("key")), as_bytes(batch.column("value")), columns)


def registrations(subscriptions: pa.Table) -> WireRecords:
    """``SUBSCRIPTION`` messages as records."""
    key = combined_key.encode(column(subscriptions, "foreign_key"), column(subscriptions, "key"))
    subscribe = column(subscriptions, "subscribe").to_numpy(zero_copy_only=False)
    version, ts = column(subscriptions, "version"), column(subscriptions, "ts").to_numpy()
    value = masked(column(subscriptions, "value"), subscribe)
    return _records(key, value, version, propagate=subscribe, ts=ts)


def read_registrations(records: WireRecords) -> pa.Table:
    """Undo ``registrations``."""
    version, propagate, ts = _contents(records)
    foreign_key, key = combined_key.decode(records.key)
    value = masked(records.value, propagate)
    return table(SUBSCRIPTION, foreign_key, key, propagate, version, value, ts)


def responses(answers: pa.Table) -> WireRecords:
    """``ANSWER`` messages as records."""
    left, right = column(answers, "left"), column(answers, "right")
    head = np.empty(len(answers), _BODY)
    head["flags"] = valid(left) + 2 * valid(right)
    head["left"] = lengths(left)
    value = concat(fixed(head.view(np.uint8).reshape(len(head), _BODY.itemsize)), left, right)
    key, version = column(answers, "key"), column(answers, "version")
    propagate, ts = np.ones(len(answers), bool), column(answers, "ts").to_numpy()
    return _records(key, value, version, propagate=propagate, ts=ts)


def read_responses(records: WireRecords) -> pa.Table:
    """Undo ``responses``."""
    version, _, ts = _contents(records)
    value = records.value
    data, bounds = buffers(value)
    _require(lengths(value) >= _BODY.itemsize, "a response has a shorter value than the rows need")
    head = np.ascontiguousarray(window(data, bounds[:-1], _BODY.itemsize)).view(_BODY).reshape(-1)
    size = head["left"].astype(np.int64)
    left = slices(data, bounds[:-1] + _BODY.itemsize, size, head["flags"] & 1 > 0)
    right = after(value, _BODY.itemsize + size, head["flags"] & 2 > 0)
    return table(ANSWER, records.key, version, left, right, ts)


def _records(
    key: Bytes, value: Bytes, version: Bytes, *, propagate: Bools, ts: Ints
) -> WireRecords:
    flags = octets(propagate.astype(np.uint8))
    instructions = octets(_instructions(propagate))
    headers = versioned(WIRE_VERSION, version), instructions, flags, times(ts)
    return WireRecords(key, value, headers)


def versioned(wire_version: int, version: Bytes) -> Bytes:
    """The header that has the wire version before each version."""
    return concat(constant(bytes((wire_version,)), len(version)), version)


def times(ts: Ints) -> Bytes:
    """The header of timestamps."""
    return fixed(np.ascontiguousarray(ts.astype(">i8")).view(np.uint8).reshape(-1, 8))


def octets(numbers: Octets) -> Bytes:
    """Numbers as one byte each."""
    return fixed(numbers.reshape(-1, 1))


def leading(values: Bytes, kind: str) -> Ints:
    """The number of that type at the beginning of each value."""
    data, bounds = buffers(values)
    return numbers_at(data, bounds[:-1], kind)


def _instructions(propagate: Bools) -> Octets:
    """The instruction of each record: where a left row only leaves, nothing is propagated."""
    return np.where(propagate, _COMES, _LEAVES).astype(np.uint8)


def _contents(records: WireRecords) -> tuple[Bytes, Bools, Ints]:
    """Version, propagate flag and timestamp of each record."""
    version, instruction, propagate, time = records.headers
    for name, header in zip(HEADERS, records.headers, strict=True):
        _require(valid(header), f"a record lacks the header {HEADER_PREFIX}{name}")
    require_wire(leading(version, "u1"))
    _require(lengths(time) == 8, f"a header {HEADER_PREFIX}timestamp has not 8 bytes")
    flags = leading(propagate, "u1") & 1 > 0
    is_own = leading(instruction, "u1") == _instructions(flags)
    _require(is_own, f"a header {HEADER_PREFIX}instruction is not one that fkjoin writes")
    return untagged(version), flags, leading(time, ">i8")


def require_wire(wire_versions: Ints) -> None:
    """Raise ``FormatError`` for a record of another release, which must not be dropped."""
    others = wire_versions[wire_versions != WIRE_VERSION]
    if len(others):
        raise FormatError(
            f"a record has wire version {int(others[0])}, this release reads {WIRE_VERSION}: "
            "run all queries of a staged deployment with one release of fkjoin"
        )


def _require(fine: Bools, problem: str) -> None:
    if not fine.all():
        raise FormatError(f"{problem}: is something else writing to the join's internal topic?")


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
