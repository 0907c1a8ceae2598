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

CHANGE = pa.schema(
    [
        ("key", BYTES),
        ("foreign_key", BYTES),
        ("value", BYTES),
        ("version", BYTES),
        ("ts", pa.int64()),
    ]
)
"""A change of a table: null ``value`` is a tombstone; ``foreign_key`` is null on the right side."""

SUBSCRIPTION = pa.schema(
    [
        ("foreign_key", BYTES),
        ("key", BYTES),
        ("subscribe", pa.bool_()),
        ("version", BYTES),
        ("value", BYTES),
        ("ts", pa.int64()),
    ]
)
"""rekey → subscription, keyed by CombinedKey: subscribe with the left row, or unsubscribe.

An unsubscribe gets no answer.
"""

ANSWER = pa.schema(
    [("key", BYTES), ("version", BYTES), ("left", BYTES), ("right", BYTES), ("ts", pa.int64())]
)
"""A message to the left key: both rows as the answering side knew them.

``version`` is the left row's, then the right row's.
"""

JOINED = pa.schema(
    [("key", BYTES), ("version", BYTES), ("value", BYTES), ("gone", pa.bool_()), ("ts", pa.int64())]
)
"""An answer after the joiner: null ``value`` is "no result"; ``gone``: the left row is no more."""

RESULT = pa.schema(
    [
        ("key", BYTES),
        ("operation", pa.int8()),
        ("value", BYTES),
        ("version", BYTES),
        ("ts", pa.int64()),
    ]
)
"""A change of the joined table."""


GROUPED = pa.schema(
    [
        ("key", BYTES),
        ("row", BYTES),
        ("version", BYTES),
        ("old", BYTES),
        ("new", BYTES),
        ("ts", pa.int64()),
    ]
)
"""A message to a group: what a row contributed to it, and contributes now (KIP-904's ``Change``);
null is nothing. ``row`` is the row's key, ``version`` its change's version."""


NUMBERED = pa.schema([*JOINED, ("number", pa.int8())])
"""A row of one of several tables, which ``number`` tells; ``gone`` says that it is no more."""

PART = pa.schema(
    [
        ("key", BYTES),
        ("number", pa.int8()),
        ("version", BYTES),
        ("value", BYTES),
        ("since", BYTES),
        ("ts", pa.int64()),
    ]
)
"""A message to the left key of a multi-way join: a row that its result is made of.

``number`` tells the right tables apart, and ``LEFT`` says that it is the left row, with ``since``:
from which versions of it each foreign key is what it is (null: there is none).  A right row's
``version`` is that one, then the right row's own."""
LEFT = -1

EVENT = pa.schema([("key", BYTES), ("named", pa.bool_()), ("event", BYTES)])
"""A row of a stream of events; ``key`` is the key of the table's row that it names.  An event that
is not ``named`` names none, and its ``key`` only spreads such events over the buckets."""

ENRICHED = pa.schema([("key", BYTES), ("event", BYTES), ("row", BYTES)])
"""An event with the table's row; null: the table has none."""

SUMS = pa.schema([("sender", pa.int64()), ("rows", pa.int64()), ("hashes", pa.int64())])
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
    if chunks.num_chunks == 1:
        return chunks.chunk(0)
    return chunks.combine_chunks() if chunks.num_chunks else pa.array([], chunks.type)
