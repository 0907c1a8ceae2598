"""Debezium's change events and their keys → rows, by the ``schema`` part of a message where it has one.

PostgreSQL leaves out large values that an update did not change (TOAST), and Debezium puts a placeholder in their place.  Where
``before`` has the value it is taken from there; an event that has it nowhere is not usable, or is marked as lacking it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import Bools, Ints, after, as_bytes, bools, buffers, concat, constant, valid
from fkjoin.codec.json_read import PLAIN, Reading, as_json, loaded
from fkjoin.codec.units import Notation, field_of, from_connect, merged, needs_units
from fkjoin.spark.json_lines import at
from fkjoin.spark.topic_records import JsonObjects, Read, read_bytes, where
from fkjoin.stages.complete import UNAVAILABLE

PLACEHOLDER = "__debezium_unavailable_value"

_NOWHERE = frozenset({"-99999999", "-99999999.0", "-9.9999999E7"})
"""Spellings of the coordinates of a point that the event does not have."""
_SHAPES = "0101000020e6100000000000fc83d797c1000000fc83d797c1", "0101000020e61000000c21e7fdff7f66401842cefbff7f5640"
"""The points that stand for a geometry and a geography that the event does not have, as WKB."""

_SCHEMA_FIRST = re.compile(r'[ \t\r\n]*\{[ \t\r\n]*"schema"[ \t\r\n]*:[ \t\r\n]*')
_PAYLOAD_NEXT = re.compile(r'[ \t\r\n]*,[ \t\r\n]*"payload"[ \t\r\n]*:')

_NO_ROW = {
    "t": "operation 't' (truncate) empties the whole table, which a change of one row cannot; delete the rows, or start anew",
    "m": "operation 'm' (a logical decoding message) is about no row",
}


@dataclass(frozen=True)
class ReadEvents:
    """Change events.  ``how``: for what the ``schema`` part does not tell."""

    fields: pa.Schema
    what: str
    """Name of the schema in errors."""
    how: Reading = PLAIN
    placeholder: str = PLACEHOLDER
    marks: bool = False
    """Rows that lack values have a column ``UNAVAILABLE``, and are no problem."""

    @property
    def schema(self) -> pa.Schema:
        return self.fields.append(pa.field(UNAVAILABLE, pa.list_(pa.int32()))) if self.marks else self.fields

    def __call__(self, data: pa.BinaryArray) -> Read:
        row = pa.struct(list(self.fields))
        inner = [pa.field("op", pa.string()), pa.field("after", row)]
        envelope = pa.struct([*inner, pa.field("payload", pa.struct(inner))])
        data, missing = self._completed(data)

        def units(schema: Any) -> Notation:
            inside = merged(from_connect(field_of(schema, "after"), row), self.how.units)
            return {"after": inside, "payload": {"after": inside}}

        found = _read(data, envelope, units, zone=self.how.zone, what=self.what, by_schema=needs_units(row))
        rows = found.rows
        op = pc.coalesce(at(rows, ("payload", "op")), at(rows, ("op",)))
        made = pc.if_else(pc.is_valid(at(rows, ("payload", "after"))), at(rows, ("payload", "after")), at(rows, ("after",)))
        known, deletes = bools(pc.is_in(op, pa.array(["c", "u", "r"]))), bools(pc.is_in(op, pa.array(["d"])))
        named = valid(op)
        problem = pc.coalesce(
            found.problem,
            where(found.there & ~named, "a change event without op"),
            *[where(bools(pc.is_in(op, pa.array([name]))), words) for name, words in _NO_ROW.items()],
            where(named & ~known & ~deletes, "unknown operation '", op, "'"),
            where(known & ~valid(made), "operation '", op, "' without after"),
        )
        if self.marks:
            made = self._marked(made, missing)
        else:
            problem = pc.coalesce(problem, self._told(missing, len(data)))
        return Read(made, ~found.there | deletes, problem)

    def _marked(self, rows: pa.StructArray, missing: Mapping[int, list[str]]) -> pa.StructArray:
        """The rows with a column that says which columns have no value."""
        names = self.fields.names
        lacking = [[names.index(name) for name in missing[place]] if place in missing else None for place in range(len(rows))]
        columns = [*(at(rows, (name,)) for name in names), pa.array(lacking, pa.list_(pa.int32()))]
        return pa.StructArray.from_arrays(columns, fields=list(self.schema), mask=rows.is_null())

    def _told(self, missing: Mapping[int, list[str]], count: int) -> pa.StringArray:
        """Say what is wrong with events that lack values."""
        if not missing:
            return pa.nulls(count, pa.string())
        words = f'the event has no value, only {self.placeholder}; set REPLICA IDENTITY FULL, or give unavailable="keep"'
        told = {place: f"{', '.join(names)}: {words}" for place, names in missing.items()}
        return pa.array([told.get(place) for place in range(count)], pa.string())

    def _completed(self, data: pa.BinaryArray) -> tuple[pa.BinaryArray, Mapping[int, list[str]]]:
        """The events with what ``before`` has in the place of placeholders; of some, the columns that have no value."""
        forms = _forms(self.placeholder)
        if not any(map(_may_lack, self.fields.types)) or not _has(data, forms):
            return data, {}
        suspects = np.logical_or.reduce([_true(pc.match_substring(data, form)) for form in forms])
        texts, missing = data.to_pylist(), dict[int, list[str]]()
        for place in np.flatnonzero(suspects):
            event = loaded(texts[place])
            if not isinstance(event, dict):
                continue
            body = event["payload"] if isinstance(event.get("payload"), dict) else event
            if lacking := self._complete(body):
                missing[int(place)] = lacking
            texts[place] = as_json(event).encode(errors="replace")
        return pa.array(texts, pa.binary()), missing

    def _complete(self, body: dict[str, Any]) -> list[str]:
        """Put values of ``before`` into ``after``; the columns for which there are none."""
        row = body.get("after")
        if not isinstance(row, dict):
            return []
        before = body["before"] if isinstance(body.get("before"), dict) else {}
        lacking = []
        for name in self.fields.names:
            if self._is_placeholder(row.get(name)):
                # With REPLICA IDENTITY USING INDEX, before has a null for each column outside the index.
                there = before.get(name) is not None and not self._is_placeholder(before[name])
                row[name] = before[name] if there else None
                lacking += [] if there else [name]
        return lacking

    def _is_placeholder(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in _texts(self.placeholder)
        if isinstance(value, list):
            return [str(item) for item in value] == [str(byte) for byte in self.placeholder.encode()] or (
                len(value) == 1 and self._is_placeholder(value[0])
            )
        if isinstance(value, dict):
            nowhere = {str(value.get("x")), str(value.get("y"))} <= _NOWHERE
            return nowhere or value == {self.placeholder: self.placeholder} or self._is_placeholder(value.get("wkb"))
        return False


@dataclass(frozen=True)
class ReadKeys:
    """The keys of change events: their fields, or these in a ``payload``."""

    schema: pa.Schema
    what: str
    how: Reading = PLAIN

    def __call__(self, data: pa.BinaryArray) -> Read:
        row = pa.struct(list(self.schema))
        kind = pa.struct([*self.schema, pa.field("payload", row)])

        def units(schema: Any) -> Notation:
            found = merged(from_connect(schema, row), self.how.units)
            return {**(found if isinstance(found, Mapping) else {}), "payload": found}

        found = _read(data, kind, units, zone=self.how.zone, what=self.what, by_schema=needs_units(row))
        columns = [pc.coalesce(at(found.rows, ("payload", name)), at(found.rows, (name,))) for name in self.schema.names]
        return Read(pa.StructArray.from_arrays(columns, fields=list(self.schema)), ~found.there, found.problem)


def _read(data: pa.BinaryArray, kind: pa.StructType, units: Any, *, zone: str, what: str, by_schema: bool) -> JsonObjects:
    """The objects, those of each ``schema`` part with the units that it gives."""
    one = _all_alike(data)
    groups = [one] if one is not None else list(_by_schema(data)) if by_schema else [_Group(None, b"", None)]
    parts = [read_bytes(group.payloads(data), kind, Reading(units(group.schema), zone), what) for group in groups]
    if len(parts) == 1:
        return parts[0]
    back = pa.array(np.argsort(np.concatenate([group.rows for group in groups]), kind="stable"))
    there = np.concatenate([part.there for part in parts])[back.to_numpy()]
    rows = pa.concat_arrays([part.rows for part in parts]).take(back)
    return JsonObjects(there, rows, pa.concat_arrays([part.problem for part in parts]).take(back))


class _Group(NamedTuple):
    """Messages with the same ``schema`` part."""

    schema: Any
    head: bytes
    """The bytes up to the payload, if the schema stands in front of it."""
    rows: Ints | None
    """Rows that they are for; None: all."""

    def payloads(self, data: pa.BinaryArray) -> pa.BinaryArray:
        """The messages, without the schema if it stands in front: it is long, and always the same."""
        some = data if self.rows is None else data.take(pa.array(self.rows))
        if not self.head:
            return some
        rest = after(as_bytes(some), np.full(len(some), len(self.head)))
        return concat(constant(b'{"payload":', len(some)), rest).cast(pa.binary())


def _all_alike(data: pa.BinaryArray) -> _Group | None:
    """The messages, if all have the same ``schema`` part in front."""
    first = data[0].as_py() if len(data) else None
    head, schema = (
        _head(first) if first is not None and _SCHEMA_FIRST.match(first[:64].decode(errors="replace")) else (b"", None)
    )
    return _Group(schema, head, None) if head and _true(pc.starts_with(data, head)).all() else None


def _by_schema(data: pa.BinaryArray) -> Iterator[_Group]:
    """The ``schema`` parts.  Connect writes one in front, byte by byte the same as long as the table is unchanged."""
    wrapped = _true(pc.match_substring(data, '"payload"'))
    left = wrapped.copy()
    if not wrapped.all() or not len(data):
        yield _Group(None, b"", np.flatnonzero(~wrapped))
    while left.any():
        first = int(left.argmax())
        head, schema = _head(data[first].as_py())
        same = left & _true(pc.starts_with(data, head)) if head else np.arange(len(data)) == first
        yield _Group(schema, head, None if same.all() else np.flatnonzero(same))
        left &= ~same


def _head(text: bytes) -> tuple[bytes, Any]:
    """The bytes up to the payload, and the schema in them; without bytes, if the schema does not stand in front."""
    told = text.decode(errors="surrogateescape")
    if (start := _SCHEMA_FIRST.match(told)) is not None:
        try:
            _, end = json.JSONDecoder().raw_decode(told, start.end())
        except (ValueError, RecursionError):
            return b"", None
        if (next_part := _PAYLOAD_NEXT.match(told, end)) is not None:
            head = told[: next_part.end()].encode(errors="surrogateescape")
            return head, _schema(told[start.end() : end])
    whole = loaded(text)
    return b"", whole.get("schema") if isinstance(whole, dict) else None


@lru_cache(64)
def _schema(text: str) -> Any:
    return json.loads(text)


@lru_cache(8)
def _forms(placeholder: str) -> tuple[bytes, ...]:
    """List the forms of Debezium's placeholder in JSON: for texts, bytes, arrays of numbers, shapes."""
    texts = json.dumps(placeholder)[1:-1], *_texts(placeholder), *_NOWHERE
    numbers = (between.join(map(str, placeholder.encode())) for between in (",", ", "))
    return tuple(dict.fromkeys(form.encode() for form in (*texts, *numbers)))


@lru_cache
def _texts(placeholder: str) -> tuple[str, ...]:
    """List the texts that stand for no value: the placeholder, its bytes and those of shapes, and in arrays of UUIDs a UUID."""
    raw = placeholder.encode()
    uuid = UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3)
    texts = [placeholder, str(uuid)]
    for octets in (raw, *map(bytes.fromhex, _SHAPES)):
        texts += [base64.b64encode(octets).decode(), _url_safe(octets), octets.hex()]
    return tuple(texts)


def _has(data: pa.BinaryArray, forms: Iterable[bytes]) -> bool:
    """Tell whether one of the forms may be in it."""
    octets, bounds = buffers(as_bytes(data))
    whole = octets[bounds[0] : bounds[-1]].tobytes()
    return any(form in whole for form in forms)


def _url_safe(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()


def _may_lack(kind: pa.DataType) -> bool:
    """Tell whether PostgreSQL may keep a value of the type out of the row."""
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _true(found: pa.BooleanArray) -> Bools:
    """Replace nulls with false."""
    return bools(pc.fill_null(found, False))
