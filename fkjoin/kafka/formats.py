"""Formats of a Kafka record's key and value, as Spark expressions.

A format turns bytes into a struct, or says what is wrong with them; it never throws, and it never takes a broken value
for a null one.  A null value is a tombstone; a struct of nulls is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from fkjoin.codec.json_read import Reading, parsable
from fkjoin.codec.json_write import writable
from fkjoin.codec.units import UNSURE, everywhere, from_names, merged
from fkjoin.errors import TopologyError
from fkjoin.sessions.settings import time_zone
from fkjoin.spark.change_events import PLACEHOLDER, ReadEvents, ReadKeys
from fkjoin.spark.json_texts import require_json, written
from fkjoin.spark.on_arrow import on_arrow
from fkjoin.spark.schemas import arrow_schema, kind_text, nullable, struct_type
from fkjoin.spark.topic_records import ReadBytes, Reader, ReadObjects
from fkjoin.spark.topic_values import WriteObjects, Writer, WriteTexts
from fkjoin.stages.complete import UNAVAILABLE

_SOURCE_BLOCK = (
    "lsn bigint, txId bigint, pos bigint, row int, file string, server_id bigint, ts_ms bigint, ts_us bigint, ts_ns bigint, "
    "scn string, commit_scn string, change_lsn string, commit_lsn string, event_serial_no bigint, ord int, sequence string, "
    "snapshot string, db string, schema string, table string"
)
"""Columns in which Debezium's connectors give a change's position in the database's log."""


class Decoded(NamedTuple):
    """Columns over a record: its row as a struct, whether it deletes, and why it cannot be read (null: it can)."""

    row: Column
    deleted: Column
    problem: Column


class Format(Protocol):
    """Reader of bytes; formats that also write have ``encode``."""

    def decode(self, data: Column) -> Decoded:
        """``data`` is a binary column; where it is null, ``deleted`` is true and ``row`` null."""
        ...


@dataclass(frozen=True)
class Bytes:
    """Bytes as they are, in one binary column."""

    name: str = "value"

    def decode(self, data: Column) -> Decoded:
        row = F.when(data.isNotNull(), F.struct(data.alias(self.name)))
        return Decoded(row, data.isNull(), _nothing())

    def encode(self, row: Column, schema: StructType) -> Column:
        return _only_column(row, schema, "Bytes").cast("binary")

    def reader(self) -> Reader:
        return ReadBytes(self.name, text=False)


@dataclass(frozen=True)
class String:
    """UTF-8 text, in one string column."""

    name: str = "value"

    def decode(self, data: Column) -> Decoded:
        row = F.when(data.isNotNull(), F.struct(data.cast("string").alias(self.name)))
        return Decoded(row, data.isNull(), _not_text(data))

    def encode(self, row: Column, schema: StructType) -> Column:
        return _only_column(row, schema, "String").cast("string").cast("binary")

    def reader(self) -> Reader:
        return ReadBytes(self.name, text=True)


@dataclass(frozen=True)
class Json:
    """A JSON object, read with a schema (DDL text such as ``"fk string, amount double"``, or a ``StructType``).

    Fields that the schema lacks are left out; fields that are absent are null; a field of another type is a problem.  A text
    column takes any JSON as its text, numbers as they are written.
    ``text``: a further column of that name has the whole object as it was written, to be passed on.
    ``units``: what numbers in times, dates and intervals count, such as ``{"created": "micros"}``: ``days``, ``seconds``,
    ``millis``, ``micros`` or ``nanos``; without one such a number is a problem.  How texts stand for decimals, ``text`` or
    ``base64`` (with the column's scale), and for bytes, ``base64``, ``base64-url``, ``hex`` or ``wkb``.
    """

    schema: str | StructType
    text: str | None = None
    units: Mapping[str, str] = field(default_factory=dict, hash=False)

    def decode(self, data: Column) -> Decoded:
        return _decoded(self.reader(), self._type(), data, self.text)

    def encode(self, row: Column, schema: StructType) -> Column:
        require_json("Json", schema)
        return written(row, schema).cast("binary")

    def reader(self) -> Reader:
        kind = self._type()
        fields = _fields(kind, "Json")
        how = Reading(from_names(self.units, fields, "Json", kind_text), _zone())
        return ReadObjects(fields, _shown(kind), self.text, how)

    def _type(self) -> StructType:
        kind = struct_type(self.schema, "Json")
        if self.text is not None and self.text.lower() in map(str.lower, kind.names):
            raise TopologyError(f"Json: the schema has a column {self.text!r} already; give text another name")
        return kind


@dataclass(frozen=True)
class Debezium:
    """Debezium's JSON change events, with or without the ``schema``/``payload`` wrapper; ``schema`` is the row's.

    ``c``, ``u`` and ``r`` (snapshot) are upserts of ``after``, ``d`` is a delete, and so is the tombstone that may follow it.
    As the format of a key it reads the key's fields, wrapped or not.

    ``source``: columns of the event's ``source`` block, such as ``"lsn bigint, change_lsn string"``, that the expressions of
    ``Table.from_kafka(…, version=, deleted=, timestamp=)`` may use; by default those that connectors order changes by.

    Times, decimals and bytes are read as the ``schema`` part says.  ``units``: for messages without it, as for ``Json``; a
    number in a time that has neither is a problem, and so is a text in a decimal that may be base64 or a number.
    ``placeholder``: what the connector writes for values that it does not have (``unavailable.value.placeholder``): they are
    taken from ``before``.  ``unavailable``: an event that does not have them there is a ``"problem"``; or ``"keep"``, the table
    keeps its rows in state, and the values that it has.
    """

    schema: str | StructType
    source: str | StructType = _SOURCE_BLOCK
    units: Mapping[str, str] = field(default_factory=dict, hash=False)
    placeholder: str = PLACEHOLDER
    unavailable: Literal["problem", "keep"] = "problem"

    def __post_init__(self) -> None:
        if self.unavailable not in ("problem", "keep"):
            raise TopologyError(f'Debezium: unavailable {self.unavailable!r} is not one of "problem", "keep"')

    def about(self, data: Column) -> Column:
        """Read what an event says besides its row: ``op``, ``ts_ms``, and ``source`` with the columns that were asked for."""
        block = struct_type(self.source, "Debezium")
        envelope = StructType([StructField("op", StringType()), StructField("ts_ms", LongType()), StructField("source", block)])
        kind = StructType([*envelope, StructField("payload", envelope)])
        parsed = _decoded(ReadObjects(_fields(kind, "Debezium"), _shown(kind)), kind, data, whatever=True).row
        return F.coalesce(parsed.getField("payload"), F.struct(*[parsed.getField(name).alias(name) for name in envelope.names]))

    def decode(self, data: Column) -> Decoded:
        lacking = [StructField(UNAVAILABLE, ArrayType(IntegerType()))] if self.unavailable == "keep" else []
        return _decoded(self.reader(), StructType([*self._type(), *lacking]), data)

    def decode_key(self, data: Column) -> Decoded:
        return _decoded(self.key_reader(), self._type(), data)

    def reader(self) -> Reader:
        kind = self._type()
        fields = _fields(kind, "Debezium")
        marks = self.unavailable == "keep"
        return ReadEvents(fields, _shown(self._envelope()), self._how(fields), self.placeholder, marks)

    def key_reader(self) -> Reader:
        kind = self._type()
        if "payload" in kind.names:
            raise TopologyError(
                "Debezium: a key's column cannot be called 'payload', as the wrapper is; rename it in the source"
            )
        fields = _fields(kind, "Debezium")
        return ReadKeys(fields, _shown(self._wrapped()), self._how(fields))

    def _how(self, fields: pa.Schema) -> Reading:
        unsure = everywhere(pa.struct(list(fields)), UNSURE, pa.types.is_decimal)
        return Reading(merged(from_names(self.units, fields, "Debezium", kind_text), unsure), _zone())

    def _type(self) -> StructType:
        return struct_type(self.schema, "Debezium")

    def _envelope(self) -> StructType:
        envelope = StructType([StructField("op", StringType()), StructField("after", self._type())])
        return StructType([*envelope, StructField("payload", envelope)])

    def _wrapped(self) -> StructType:
        return StructType([*self._type(), StructField("payload", self._type())])


def decode_key(given: Format, data: Column) -> Decoded:
    """Decode a record's key, see ``decode``."""
    return given.decode_key(data) if isinstance(given, Debezium) else given.decode(data)


def reader(given: Format) -> Reader | None:
    """Make the function that reads the format in Python workers; None if it has expressions only."""
    return given.reader() if isinstance(given, String | Bytes | Json | Debezium) else None


def key_reader(given: Format) -> Reader | None:
    """Make the reader of a record's key, see ``reader``."""
    return given.key_reader() if isinstance(given, Debezium) else reader(given)


def writer(given: Format, schema: StructType, *, exact: bool = False) -> Writer | None:
    """Make the function that writes rows of the schema in Python workers; None if only Spark's expressions can.

    ``exact``: byte by byte as those do, so that a topic's keys are what they were.
    """
    if isinstance(given, String | Bytes):
        return WriteTexts(((schema[0].name,),))
    if not isinstance(given, Json):
        return None
    fields = arrow_schema("schema", schema)
    return WriteObjects(tuple(fields.names)) if writable(pa.struct(list(fields)), exact=exact) else None


def header(name: str) -> Column:
    """The bytes of a record's last header of that name; null when it has none."""
    return F.try_element_at(F.filter("headers", lambda item: item["key"] == name), F.lit(-1)).getField("value")


def as_format(argument: str, given: Format | str, name: str) -> Format:
    """A format, or one of ``"string"`` and ``"bytes"`` in a column called ``name``."""
    if isinstance(given, str):
        named: dict[str, Format] = {"string": String(name), "bytes": Bytes(name)}
        if given in named:
            return named[given]
        raise TopologyError(f'{argument}: {given!r} is not a format: give "string", "bytes", Json(…) or Debezium(…)')
    if not hasattr(given, "decode"):
        raise TopologyError(f"{argument}: a format is needed, this is a {type(given).__name__}; see fkjoin.kafka")
    return given


def _decoded(read: Reader, kind: StructType, data: Column, text: str | None = None, *, whatever: bool = False) -> Decoded:
    """Decode the column with a reader of rows of that type; ``text``: a column more.

    ``whatever``: a row also of what has a problem; what does not fit is null in it.
    """
    row = kind if text is None else StructType([*kind, StructField(text, StringType())])
    told = [StructField("row", nullable(row)), StructField("deleted", BooleanType()), StructField("problem", StringType())]

    def decode(given: pa.Array) -> pa.Array:
        rows, deleted, problem = read(given)
        return pa.StructArray.from_arrays([rows, pa.array(deleted), problem], names=[field.name for field in told])

    found = on_arrow(decode, StructType(told), data)
    deleted, problem = found.getField("deleted"), found.getField("problem")
    usable = ~deleted if whatever else ~deleted & problem.isNull()
    return Decoded(F.when(usable, found.getField("row")), deleted, problem)


def _zone() -> str:
    """Return the time zone of clocks that name none."""
    session = SparkSession.getActiveSession()
    return "UTC" if session is None else time_zone(session)


def _shown(schema: StructType) -> str:
    return schema.simpleString()[:200]


def _fields(kind: StructType, what: str) -> pa.Schema:
    """The fields for Arrow; ``TopologyError`` if they cannot be read from JSON."""
    fields = arrow_schema(what, kind)
    if not parsable(pa.struct(list(fields))):
        raise TopologyError(
            f"{what}: {_shown(kind)} cannot be read from JSON: a name is in it twice, or a map whose keys are no text"
        )
    return fields


def _not_text(data: Column) -> Column:
    return F.when(~F.is_valid_utf8(data.cast("string")), F.lit("not UTF-8"))


def _nothing() -> Column:
    return F.lit(None).cast("string")


def _only_column(row: Column, schema: StructType, format_name: str) -> Column:
    if len(schema) != 1 or not isinstance(schema[0].dataType, StringType | BinaryType):
        raise TopologyError(
            f"{format_name} writes one column of text or bytes, these are {schema.simpleString()}; use Json, or an expression"
        )
    return row.getField(schema[0].name)
