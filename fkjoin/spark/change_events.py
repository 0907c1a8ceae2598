"""Debezium's change events and their keys → rows.

A message is read by its ``schema`` part where it has one.  An event that has a value nowhere
(``fkjoin.spark.unavailable``) is not usable, or is marked as lacking it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import Ints, after, as_bytes, concat, constant
from fkjoin.codec.json_read import PLAIN, Reading, as_json, loaded
from fkjoin.codec.json_values import Number
from fkjoin.codec.units import Notation, field_of, from_connect, merged, needs_units
from fkjoin.spark.event_rows import EventRows
from fkjoin.spark.json_lines import field_at
from fkjoin.spark.topic_records import ValuesRead, put_back, read_bytes
from fkjoin.spark.unavailable import Placeholder, certain

_SCHEMA_FIRST = re.compile(r'[ \t\r\n]*\{[ \t\r\n]*"schema"[ \t\r\n]*:[ \t\r\n]*')
_DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number)
_PAYLOAD_NEXT = re.compile(r'[ \t\r\n]*,[ \t\r\n]*"payload"[ \t\r\n]*:')


@dataclass(frozen=True)
class ReadEvents:
    """Change events.  ``how``: for what the ``schema`` part does not tell."""

    rows: EventRows
    label: str
    """Name of the schema in errors."""
    how: Reading = PLAIN

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def __call__(self, data: pa.BinaryArray) -> ValuesRead:
        row = pa.struct(list(self.rows.fields))
        inner = [("op", pa.string()), ("after", row)]
        envelope = pa.struct([*inner, ("payload", pa.struct(inner))])
        data, missing = self._completed(data)

        def units(schema: Any) -> Notation:
            inside = merged(from_connect(field_of(schema, "after"), row), self.how.units)
            return {"after": inside, "payload": {"after": inside}}

        objects = _read(self, data, envelope, units, by_schema=needs_units(row))
        rows = objects.rows
        op = pc.coalesce(field_at(rows, ("payload", "op")), field_at(rows, ("op",)))
        inside, outside = field_at(rows, ("payload", "after")), field_at(rows, ("after",))
        newest = pc.if_else(pc.is_valid(inside), inside, outside)
        return self.rows.applied(objects, op, newest, missing)

    def _completed(self, data: pa.BinaryArray) -> tuple[pa.BinaryArray, Mapping[int, list[str]]]:
        """The events with what ``before`` has in the place of placeholders.

        Beside them, by the places of events: the columns that have no value.
        """
        fields, lacking = self.rows.fields, Placeholder(self.rows.placeholder)
        suspects = lacking.in_json(data, fields)
        if not len(suspects):
            return data, {}
        texts, missing = data.to_pylist(), dict[int, list[str]]()
        for index in suspects:
            event = loaded(texts[index])
            if not isinstance(event, dict):
                continue
            body = event["payload"] if isinstance(event.get("payload"), dict) else event
            if names := lacking.complete(body, fields.names):
                missing[int(index)] = names
            texts[index] = as_json(event).encode()
        return pa.array(texts, pa.binary()), missing


@dataclass(frozen=True)
class ReadKeys:
    """The keys of change events: their fields, or these in a ``payload``."""

    schema: pa.Schema
    label: str
    how: Reading = PLAIN

    def __call__(self, data: pa.BinaryArray) -> ValuesRead:
        row = pa.struct(list(self.schema))
        kind = pa.struct([*self.schema, pa.field("payload", row)])

        def units(schema: Any) -> Notation:
            notation = merged(from_connect(schema, row), self.how.units)
            return {**(notation if isinstance(notation, Mapping) else {}), "payload": notation}

        objects = _read(self, data, kind, units, by_schema=needs_units(row))
        columns = [
            pc.coalesce(field_at(objects.rows, ("payload", name)), field_at(objects.rows, (name,)))
            for name in self.schema.names
        ]
        rows = pa.StructArray.from_arrays(columns, fields=list(self.schema))
        return objects._replace(rows=rows)


def _read(
    to: ReadEvents | ReadKeys,
    data: pa.BinaryArray,
    kind: pa.StructType,
    units: Any,
    by_schema: bool,
) -> ValuesRead:
    """The objects, of each ``schema`` part with the units that it gives."""
    alike = _all_alike(data)
    if alike is not None:
        groups = [alike]
    elif by_schema:
        groups = list(_by_schema(data))
    else:
        groups = [_Group(None, b"", None)]
    parts = [
        read_bytes(group.payloads(data), kind, Reading(units(group.schema), to.how.zone), to.label)
        for group in groups
    ]
    return put_back([group.rows for group in groups], parts)


class _Group(NamedTuple):
    """Messages with the same ``schema`` part."""

    schema: Any
    head: bytes
    """The bytes up to the payload, if the schema stands in front of it."""
    rows: Ints | None
    """Rows that they are for; None: all."""

    def payloads(self, data: pa.BinaryArray) -> pa.BinaryArray:
        """The messages, without the schema if it stands in front: it is long, and always equal."""
        some = data if self.rows is None else data.take(pa.array(self.rows))
        if not self.head:
            return some
        rest = after(as_bytes(some), np.full(len(some), len(self.head)))
        return concat(constant(b'{"payload":', len(some)), rest).cast(pa.binary())


def _all_alike(data: pa.BinaryArray) -> _Group | None:
    """The messages, if all have the same ``schema`` part in front."""
    first = (data[0].as_py() or b"") if len(data) else b""
    if not _SCHEMA_FIRST.match(first[:64].decode("latin-1")):  # parsing it would take its length
        return None
    head, schema = _head(first)
    if head and certain(pc.starts_with(data, head)).all():
        return _Group(schema, head, None)
    return None


def _by_schema(data: pa.BinaryArray) -> Iterator[_Group]:
    """The ``schema`` parts.

    Connect writes one in front, byte by byte the same as long as the table is unchanged.
    """
    wrapped = certain(pc.match_substring(data, '"payload"'))
    left = wrapped.copy()
    if not wrapped.all() or not len(data):
        yield _Group(None, b"", np.flatnonzero(~wrapped))
    while left.any():
        first = int(left.argmax())
        head, schema = _head(data[first].as_py())
        same = left & certain(pc.starts_with(data, head)) if head else np.arange(len(data)) == first
        yield _Group(schema, head, None if same.all() else np.flatnonzero(same))
        left &= ~same


def _head(text: bytes) -> tuple[bytes, Any]:
    """The bytes up to the payload, and the schema in them.

    There are none if the schema does not stand in front.
    """
    whole = loaded(text)
    if not isinstance(whole, dict):
        return b"", None
    string = text.decode()
    if (start := _SCHEMA_FIRST.match(string)) is not None:
        schema, end = _DECODER.raw_decode(string, start.end())
        if (next_part := _PAYLOAD_NEXT.match(string, end)) is not None:
            return string[: next_part.end()].encode(), schema
    return b"", whole.get("schema")
