"""What the bytes of a Kafka record's key and value mean, as Spark expressions.

A format turns bytes into a struct, or says what is wrong with them; it never throws, and it never takes a broken value
for a null one.  A null value is a tombstone; a struct of nulls is a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from fkjoin.columns import arrow_schema
from fkjoin.errors import TopologyError
from fkjoin.json_text import readable
from fkjoin.json_values import require_json, written
from fkjoin.spark.topic_records import ReadBytes, Reader, ReadEvents, ReadObjects
from fkjoin.spark.topic_values import WriteObjects, Writer, WriteTexts
from fkjoin.write_json import writable

_CORRUPT = "__fkjoin_corrupt"

_SOURCE_BLOCK = (
    "lsn bigint, txId bigint, pos bigint, row int, file string, server_id bigint, ts_ms bigint, ts_us bigint, ts_ns bigint, "
    "scn string, commit_scn string, change_lsn string, commit_lsn string, event_serial_no bigint, ord int, sequence string, "
    "snapshot string, db string, schema string, table string"
)
"""What Debezium's connectors say of where a change stands in their database's log."""


class Decoded(NamedTuple):
    """Columns over a record: its row as a struct, whether it deletes, and why it cannot be read (null: it can)."""

    row: Column
    deleted: Column
    problem: Column


class Format(Protocol):
    """How bytes are read; formats that also write have ``encode``."""

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

    Fields that the schema lacks are left out; fields that are absent are null; a field of another type is a problem.
    ``text``: a further column of that name has the whole object as it was written, to be passed on.
    """

    schema: str | StructType
    text: str | None = None

    def decode(self, data: Column) -> Decoded:
        kind = self._type()
        parsed, bad = _parsed(data, kind)
        columns = [parsed.getField(name).alias(name) for name in kind.names]
        if self.text is not None:
            columns.append(data.cast("string").alias(self.text))
            bad = F.coalesce(bad, _not_text(data))
        return Decoded(F.when(data.isNotNull(), F.struct(*columns)), data.isNull(), bad)

    def encode(self, row: Column, schema: StructType) -> Column:
        require_json("Json", schema)
        return written(row, schema).cast("binary")

    def reader(self) -> Reader | None:
        fields = _readable(self._type())
        return None if fields is None else ReadObjects(fields, _shown(self._type()), self.text)

    def _type(self) -> StructType:
        kind = struct_type(self.schema, "Json")
        if self.text is not None and self.text.lower() in map(str.lower, kind.names):
            raise TopologyError(f"Json: the schema has a column {self.text!r} already; give text another name")
        return kind


@dataclass(frozen=True)
class Debezium:
    """Debezium's JSON change events, with or without the ``schema``/``payload`` wrapper; ``schema`` is the row's.

    ``c``, ``u`` and ``r`` (snapshot) are upserts of ``after``, ``d`` is a delete, and so is the tombstone that may follow it.
    ``before`` is not looked at.  As the format of a key it reads the key's fields, wrapped or not.

    ``source``: columns of the event's ``source`` block, such as ``"lsn bigint, change_lsn string"``, that the expressions of
    ``Table.from_kafka(…, version=, deleted=, timestamp=)`` may use; by default those that connectors order changes by.
    """

    schema: str | StructType
    source: str | StructType = _SOURCE_BLOCK

    def about(self, data: Column) -> Column:
        """What an event says besides its row: ``op``, ``ts_ms``, and ``source`` with the columns that were asked for."""
        block = struct_type(self.source, "Debezium")
        envelope = StructType([StructField("op", StringType()), StructField("ts_ms", LongType()), StructField("source", block)])
        parsed, _ = _parsed(data, StructType([*envelope, StructField("payload", envelope)]))
        return F.coalesce(parsed.getField("payload"), F.struct(*[parsed.getField(name).alias(name) for name in envelope.names]))

    def decode(self, data: Column) -> Decoded:
        parsed, bad = _parsed(data, self._envelope())
        payload = parsed.getField("payload")
        op = F.coalesce(payload.getField("op"), parsed.getField("op"))
        after = F.coalesce(payload.getField("after"), parsed.getField("after"))
        known = op.isin("c", "u", "r")
        deleted = data.isNull() | F.coalesce(op == "d", F.lit(False))
        problem = F.coalesce(
            bad,
            F.when(data.isNotNull() & op.isNull(), F.lit("a change event without op")),
            F.when(~known & (op != "d"), F.concat(F.lit("unknown operation '"), op, F.lit("'"))),
            F.when(known & after.isNull(), F.concat(F.lit("operation '"), op, F.lit("' without after"))),
        )
        return Decoded(F.when(known, after), deleted, problem)

    def decode_key(self, data: Column) -> Decoded:
        parsed, bad = _parsed(data, self._wrapped())
        payload = parsed.getField("payload")
        names = self._type().names
        fields = [F.coalesce(payload.getField(name), parsed.getField(name)).alias(name) for name in names]
        return Decoded(F.when(data.isNotNull(), F.struct(*fields)), data.isNull(), bad)

    def reader(self) -> Reader | None:
        fields = _readable(self._type(), self._envelope())
        return None if fields is None else ReadEvents(fields, _shown(self._envelope()))

    def key_reader(self) -> Reader | None:
        fields = _readable(self._type(), self._wrapped())
        return None if fields is None else ReadObjects(fields, _shown(self._wrapped()), wrapped=True)

    def _type(self) -> StructType:
        return struct_type(self.schema, "Debezium")

    def _envelope(self) -> StructType:
        envelope = StructType([StructField("op", StringType()), StructField("after", self._type())])
        return StructType([*envelope, StructField("payload", envelope)])

    def _wrapped(self) -> StructType:
        return StructType([*self._type(), StructField("payload", self._type())])


def decode_key(given: Format, data: Column) -> Decoded:
    """As ``decode``, for a record's key."""
    return given.decode_key(data) if isinstance(given, Debezium) else given.decode(data)


def reader(given: Format) -> Reader | None:
    """What reads the format in Python workers; None if only Spark's expressions can."""
    return given.reader() if isinstance(given, String | Bytes | Json | Debezium) else None


def key_reader(given: Format) -> Reader | None:
    """As ``reader``, for a record's key."""
    return given.key_reader() if isinstance(given, Debezium) else reader(given)


def writer(given: Format, schema: StructType, *, exact: bool = False) -> Writer | None:
    """What writes rows of the schema in Python workers; None if only Spark's expressions can.

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


def struct_type(given: str | StructType, where: str) -> StructType:
    """The schema, parsed from DDL text if need be."""
    if isinstance(given, StructType):
        return given
    try:
        kind = DataType.fromDDL(given)
    except Exception as error:
        raise TopologyError(f"{where}: schema {given!r} does not parse: {str(error).splitlines()[0]}") from error
    if not isinstance(kind, StructType):
        raise TopologyError(f"{where}: schema {given!r} is not a list of columns, such as 'id bigint, name string'")
    return kind


def _parsed(data: Column, schema: StructType) -> tuple[Column, Column]:
    """The JSON object of ``data``, and what is wrong with it."""
    text = data.cast("string")
    whole = StructType([*schema, StructField(_CORRUPT, StringType())])
    parsed = F.from_json(text, whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    bad = F.when(
        data.isNotNull()
        & (~F.ltrim(text, F.lit(" \t\r\n")).startswith("{") | parsed.isNull() | parsed.getField(_CORRUPT).isNotNull()),
        F.lit(f"not a JSON object of {_shown(schema)}"),
    )
    return parsed, bad


def _shown(schema: StructType) -> str:
    return schema.simpleString()[:200]


def _readable(row: StructType, whole: StructType | None = None) -> pa.Schema | None:
    """The fields for Arrow, if workers can read such rows (and what is around them)."""
    try:
        fields, around = (arrow_schema("schema", kind) for kind in (row, whole or row))
    except TopologyError:
        return None
    return fields if readable(pa.struct(list(around))) else None


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
