"""Records behind a schema registry's header (a zero byte and a schema's id) → rows.

*Law*: a record's row and problem are those that it has alone.  Records of one schema are read
together: each is decoded by fastavro or Protobuf, and then each column is made at once.  The
schema's id is not a part of a row: two schema versions of one row are equal.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import Bools, Ints, as_bytes, buffers, valid, window
from fkjoin.codec.avro_schemas import Rewritten
from fkjoin.codec.json_read import Reading
from fkjoin.codec.units import Notation, merged
from fkjoin.errors import FkJoinError
from fkjoin.spark.event_rows import EventRows
from fkjoin.spark.json_lines import field_at
from fkjoin.spark.protobuf_schemas import Index, file_of, message_index, messages
from fkjoin.spark.python_columns import build
from fkjoin.spark.schema_registry import SchemaProblemError, SchemaRegistry, for_rows
from fkjoin.spark.topic_records import ValuesRead, put_back
from fkjoin.spark.unavailable import Placeholder

Kind = Literal["avro", "json", "protobuf"]

_HEADER = 5
_PLACES = np.array([1 << 24, 1 << 16, 1 << 8, 1])
_IDS = 1 << 31
"""A number above all ids: registries number schemas by Java's ``int``.

They answer that other numbers are pages that are not there.
"""
_LONGEST = 500
_SHALLOW = 1000
"""A record of Avro with no more bytes is not too deep for any stack: each level has a byte."""
_ADDRESS = re.compile(r" from <_io\.BytesIO object at 0x[0-9a-f]+>")
"""Words of fastavro's that are others at each attempt."""

_Read = Callable[[list[bytes]], list[Any]]
"""A function that decodes records; one that is broken raises an error."""
_Change = Callable[[int, dict[str, Any]], None]
"""A function that changes what a record is, before its columns are made.

The number is the record's place.
"""


@dataclass(frozen=True)
class RegistryRecords:
    """Records of one kind, by the schemas of a registry."""

    kind: Kind
    registry: SchemaRegistry
    how: Reading
    """Units of what the schemas do not tell, and the zone of clocks that name none."""

    def read(
        self,
        data: pa.BinaryArray,
        kind: pa.StructType,
        change: _Change | None = None,
        silent: str = "",
    ) -> ValuesRead:
        """Read the members that the type has; what cannot be read is null in the row.

        ``silent``: a member whose name is not in the paths of problems.
        """
        present = valid(data)
        places: list[Ints] = []
        parts: list[ValuesRead] = []
        for group in self._groups(data, present, kind):
            places.append(group.places)
            parts.append(self._built(group, kind, change, silent))
        nothing = np.flatnonzero(~present)
        count = len(nothing)
        if count or not parts:
            places.append(nothing)
            nulls = pa.nulls(count, kind), np.ones(count, bool), pa.nulls(count, pa.string())
            parts.append(ValuesRead(*nulls))
        return put_back(places, parts)

    def _built(
        self, group: _Records, kind: pa.StructType, change: _Change | None, silent: str
    ) -> ValuesRead:
        values = group.values
        if change is not None:
            for row, value in zip(group.places, values, strict=True):
                change(int(row), value)
        rows, unfit = build(
            values, kind, Reading(merged(group.units, self.how.units), self.how.zone), silent
        )
        problems = {**unfit, **group.problems}
        words: list[str | None] = [None] * len(values)
        for index, problem in problems.items():
            words[index] = f"not {self.kind} of the registry's schema: {problem}"[:_LONGEST]
        return ValuesRead(rows, np.zeros(len(values), bool), pa.array(words, pa.string()))

    def _groups(
        self, data: pa.BinaryArray, present: Bools, kind: pa.StructType
    ) -> Iterator[_Records]:
        """The records of each schema, decoded."""
        octets, bounds = buffers(as_bytes(data))
        head = window(octets, bounds[:-1], _HEADER).astype(np.int64)
        framed = present & (np.diff(bounds) > _HEADER) & (head[:, 0] == 0)
        if (present & ~framed).any():
            places = np.flatnonzero(present & ~framed)
            yield _Records.none(places, "no header of a registry: a zero byte and a schema's id")
        ids = head[:, 1:] @ _PLACES
        for number in np.unique(ids[framed]).tolist():
            places = np.flatnonzero(framed & (ids == number))
            if number >= _IDS:
                yield _Records.none(
                    places, f"no header of a registry: {number} is not a schema's id"
                )
                continue
            texts = data.take(pa.array(places)).to_pylist()
            try:
                if self.kind == "protobuf":
                    yield from self._messages(number, places, texts, kind)
                elif self.kind == "json":
                    self.registry.schema(number, "JSON")  # the client has it then
                    yield _Records.decoded(places, texts, _each(self.registry.from_json))
                else:
                    schema = for_rows(self.registry, number, kind)
                    read = _each(_avro(schema))
                    yield _Records.decoded(places, texts, read, schema.units)
            except SchemaProblemError as error:
                yield _Records.none(places, str(error))

    def _messages(
        self, number: int, places: Ints, texts: list[bytes], kind: pa.StructType
    ) -> Iterator[_Records]:
        """The records of each message of a Protobuf schema, decoded."""
        groups = dict[Index | str, tuple[list[int], list[bytes]]]()
        for row, text in zip(places.tolist(), texts, strict=True):
            index: Index | str
            try:
                index, start = message_index(text, _HEADER)
            except ValueError as error:
                index, start = str(error), _HEADER
            some, bodies = groups.setdefault(index, ([], []))
            some.append(row)
            bodies.append(text[start:])
        file_of(self.registry, number)  # once for all messages, also if there is no such schema
        for index, (some, bodies) in groups.items():
            rows = np.array(some)
            if isinstance(index, str):
                yield _Records.none(rows, index)
                continue
            try:
                reader = messages(self.registry, number, index, kind)
            except SchemaProblemError as error:
                yield _Records.none(rows, str(error))
                continue
            yield _Records.decoded(rows, bodies, reader.read, reader.fields.units)


class _Records(NamedTuple):
    """Records of one schema, decoded."""

    places: Ints
    values: list[dict[str, Any]]
    problems: dict[int, str]
    """Reasons why records cannot be used, by their places among these records."""
    units: Notation = None
    """The notation of the values."""

    @classmethod
    def none(cls, places: Ints, problem: str) -> _Records:
        """Make the records that cannot be decoded."""
        return cls(places, [{} for _ in places], dict.fromkeys(range(len(places)), problem))

    @classmethod
    def decoded(
        cls, places: Ints, texts: list[bytes], read: _Read, units: Notation = None
    ) -> _Records:
        """Decode records, together as each alone.

        One that cannot be decoded has a problem.
        """
        try:
            values, problems = read(texts), dict[int, str]()
        except FkJoinError:  # of the registry
            raise
        except Exception:
            values, problems = _one_by_one(texts, read)
        if {dict} != set(map(type, values)):
            for index, value in enumerate(values):
                if value is not None and not isinstance(value, dict):
                    problems[index] = f"{value!r:.100} is not a record"
                    values[index] = None
        return cls(places, [value or {} for value in values], problems, units)


def _one_by_one(texts: list[bytes], read: _Read) -> tuple[list[Any], dict[int, str]]:
    values, problems = [], dict[int, str]()
    for index, text in enumerate(texts):
        value = None
        try:
            (value,) = read([text])
        except FkJoinError:
            raise
        except Exception as error:
            problems[index] = f"{type(error).__name__}: {_ADDRESS.sub('', str(error))}"
        values.append(value)
    return values, problems


def _each(decode: Callable[[bytes], Any]) -> _Read:
    """Decode records one after the other."""
    # No map: a StopIteration in a decoder would end it, and leave the rest of the records out.
    return lambda texts: [decode(text) for text in texts]


def _avro(how: Rewritten) -> Callable[[bytes], Any]:
    from fastavro import _read_py, schemaless_reader

    def decode(text: bytes) -> Any:
        # Records in records by the thousand end the process in fastavro's C, and are a
        # RecursionError in its Python.
        deep = how.endless and len(text) > _SHALLOW
        read = _read_py.schemaless_reader if deep else schemaless_reader
        return read(io.BytesIO(text[_HEADER:]), how.schema, None)

    return decode


@dataclass(frozen=True)
class ReadRegistry:
    """Rows of records."""

    schema: pa.Schema
    records: RegistryRecords

    def __call__(self, data: pa.BinaryArray) -> ValuesRead:
        return self.records.read(data, pa.struct(list(self.schema)))


@dataclass(frozen=True)
class ReadAvroEvents:
    """Rows of Debezium's change events in Avro."""

    rows: EventRows
    records: RegistryRecords

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def __call__(self, data: pa.BinaryArray) -> ValuesRead:
        fields = self.rows.fields
        lacking = Placeholder(self.rows.placeholder)
        missing = dict[int, list[str]]()
        suspects = set(lacking.in_avro(data, fields).tolist())

        def complete(row: int, event: dict[str, Any]) -> None:
            if row in suspects and (names := lacking.complete(event, fields.names)):
                missing[row] = names

        envelope = pa.struct([("op", pa.string()), ("after", pa.struct(list(fields)))])
        records = self.records.read(data, envelope, complete if suspects else None, "after")
        op, after = (field_at(records.rows, (name,)) for name in ("op", "after"))
        return self.rows.applied(records, op, after, missing)
