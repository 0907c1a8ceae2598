"""Messages between the stages: their kinds, as Arrow tables, and their packed form.

Packed, a table is ``{1-byte format}{1-byte kind}{Arrow IPC stream, LZ4}``: one binary cell instead
of thousands of rows. Timestamps are int64 in the unit of the source (Spark: microseconds since the
epoch); ``NO_TIMESTAMP`` where there is none.
"""

from __future__ import annotations

import enum

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import BYTES
from fkjoin.errors import FormatError

_FORMAT = 1
NO_TIMESTAMP = -(1 << 63)
"""Less than any timestamp, so that ``max`` needs no special case."""

_TYPES = {
    "ts": pa.int64(),
    "operation": pa.int8(),
    "number": pa.int8(),
    **dict.fromkeys(("subscribe", "gone", "named"), pa.bool_()),
    **dict.fromkeys(("sender", "rows", "hashes"), pa.int64()),
}
"""Types of columns; all others are byte strings."""


def _kind(*names: str) -> pa.Schema:
    return pa.schema([(name, _TYPES.get(name, BYTES)) for name in names])


CHANGE = _kind("key", "foreign_key", "value", "version", "ts")
"""A change of a table: null ``value`` is a tombstone; ``foreign_key`` is null on the right side."""

SUBSCRIPTION = _kind("foreign_key", "key", "subscribe", "version", "value", "ts")
"""rekey → subscription, keyed by CombinedKey: subscribe with the left row, or unsubscribe.

An unsubscribe gets no answer.
"""

ANSWER = _kind("key", "version", "left", "right", "ts")
"""A message to the left key: both rows as the answering side knew them.

``version`` is the left row's, then the right row's.
"""

JOINED = _kind("key", "version", "value", "gone", "ts")
"""An answer after the joiner: null ``value`` is "no result"; ``gone``: the left row is no more."""

RESULT = _kind("key", "operation", "value", "version", "ts")
"""A change of the joined table."""


GROUPED = _kind("key", "row", "version", "old", "new", "ts")
"""A message to a group: what a row contributed to it, and contributes now (KIP-904's ``Change``);
null is nothing. ``row`` is the row's key, ``version`` its change's version."""


NUMBERED = _kind(*JOINED.names, "number")
"""A row of one of several tables, which ``number`` tells; ``gone`` says that it is no more."""

PART = _kind("key", "number", "version", "value", "since", "ts")
"""A message to the left key of a multi-way join: a row that its result is made of.

``number`` tells the right tables apart, and ``LEFT`` says that it is the left row, with ``since``:
from which versions of it each foreign key is what it is (null: there is none).  A right row's
``version`` is that one, then the right row's own."""
LEFT = -1

EVENT = _kind("key", "named", "event")
"""A row of a stream of events; ``key`` is the key of the table's row that it names.  An event that
is not ``named`` names none, and its ``key`` only spreads such events over the buckets."""

ENRICHED = _kind("key", "event", "row")
"""An event with the table's row; null: the table has none."""

SUMS = _kind("sender", "rows", "hashes")
"""rekey → subscription, when batches are validated: the subscriptions that the sender knows of."""


class Operation(enum.IntEnum):
    """Effect of a result on the joined table."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2


_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""Payloads are copied a dozen times between Python and the JVM: smaller ones are faster."""


KINDS = {
    1: (CHANGE, "changes"),
    2: (SUBSCRIPTION, "subscriptions"),
    3: (ANSWER, "answers"),
    4: (JOINED, "joined rows"),
    5: (RESULT, "results"),
    6: (SUMS, "sums of subscriptions"),
    7: (GROUPED, "contributions"),
    8: (NUMBERED, "numbered rows"),
    9: (PART, "parts of rows"),
    10: (EVENT, "events"),
    11: (ENRICHED, "enriched events"),
}
"""The kinds by number: schema, which no other kind has, and what errors call such messages.

A stage outside of fkjoin adds its own, in the module of its class, since workers import that."""


def called(schema: pa.Schema) -> str:
    """Say what messages with this schema are called."""
    names = (name for kind, name in KINDS.values() if kind.equals(schema))
    return next(names, f"a table of {', '.join(schema.names)}")


def pack(messages: pa.Table) -> bytes:
    """The messages, of a kind that is known, as one byte string."""
    schema = messages.schema
    number = next(number for number, (kind, _) in KINDS.items() if kind.equals(schema))
    sink = pa.BufferOutputStream()
    sink.write(bytes((_FORMAT, number)))
    with pa.ipc.new_stream(sink, schema, options=_OPTIONS) as writer:
        writer.write_table(messages)
    return sink.getvalue().to_pybytes()


def is_answer(packed: bytes) -> bool:
    """Tell from their head whether packed messages are answers, or parts of a multi-way join."""
    return packed[:2] in (bytes((_FORMAT, 3)), bytes((_FORMAT, 9)))


def unpack(data: bytes) -> pa.Table:
    """Undo ``pack``."""
    if len(data) < 2 or data[0] != _FORMAT or data[1] not in KINDS:
        raise FormatError(
            f"packed messages begin with {data[:2].hex()}, "
            f"this release reads 01 and a kind up to {max(KINDS):02x}"
        )
    with pa.ipc.open_stream(pa.py_buffer(data).slice(2)) as reader:
        return reader.read_all()


def table(schema: pa.Schema, *columns: pa.Array | np.ndarray) -> pa.Table:
    """A table of messages from its columns, in the schema's order."""
    return pa.table(list(columns), schema=schema)


def column(messages: pa.Table, name: str) -> pa.Array:
    """A column as one contiguous array."""
    chunks = messages.column(name)
    return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
