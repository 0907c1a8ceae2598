"""What the bytes of a Kafka record's key and value mean, as Spark expressions.

A format turns bytes into a struct, or says what is wrong with them; it never throws, and it never takes a broken value
for a null one.  A null value is a tombstone; a struct of nulls is a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from fkjoin.errors import TopologyError

_CORRUPT = "__fkjoin_corrupt"


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


@dataclass(frozen=True)
class String:
    """UTF-8 text, in one string column."""

    name: str = "value"

    def decode(self, data: Column) -> Decoded:
        text = data.cast("string")
        bad = F.when(~F.is_valid_utf8(text), F.lit("not UTF-8"))
        return Decoded(F.when(data.isNotNull(), F.struct(text.alias(self.name))), data.isNull(), bad)

    def encode(self, row: Column, schema: StructType) -> Column:
        return _only_column(row, schema, "String").cast("string").cast("binary")


@dataclass(frozen=True)
class Json:
    """A JSON object, read with a schema (DDL text such as ``"fk string, amount double"``, or a ``StructType``).

    Fields that the schema lacks are left out; fields that are absent are null; a field of another type is a problem.
    """

    schema: str | StructType

    def decode(self, data: Column) -> Decoded:
        parsed, bad = _parsed(data, struct_type(self.schema, "Json"))
        names = struct_type(self.schema, "Json").names
        row = F.struct(*[parsed.getField(name).alias(name) for name in names])
        return Decoded(F.when(data.isNotNull(), row), data.isNull(), bad)

    def encode(self, row: Column, schema: StructType) -> Column:
        return F.to_json(row, {"ignoreNullFields": "false"}).cast("binary")


@dataclass(frozen=True)
class Debezium:
    """Debezium's JSON change events, with or without the ``schema``/``payload`` wrapper; ``schema`` is the row's.

    ``c``, ``u`` and ``r`` (snapshot) are upserts of ``after``, ``d`` is a delete, and so is the tombstone that may follow it.
    ``before`` is not looked at.  As the format of a key it reads the key's fields, wrapped or not.
    """

    schema: str | StructType

    def decode(self, data: Column) -> Decoded:
        row = struct_type(self.schema, "Debezium")
        envelope = StructType([StructField("op", StringType()), StructField("after", row)])
        parsed, bad = _parsed(data, StructType([*envelope, StructField("payload", envelope)]))
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
        row = struct_type(self.schema, "Debezium")
        parsed, bad = _parsed(data, StructType([*row, StructField("payload", row)]))
        payload = parsed.getField("payload")
        fields = [F.coalesce(payload.getField(name), parsed.getField(name)).alias(name) for name in row.names]
        return Decoded(F.when(data.isNotNull(), F.struct(*fields)), data.isNull(), bad)


def decode_key(given: Format, data: Column) -> Decoded:
    """As ``decode``, for a record's key."""
    return given.decode_key(data) if isinstance(given, Debezium) else given.decode(data)


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
        data.isNotNull() & (~F.ltrim(text).startswith("{") | parsed.isNull() | parsed.getField(_CORRUPT).isNotNull()),
        F.lit(f"not a JSON object of {schema.simpleString()[:200]}"),
    )
    return parsed, bad


def _nothing() -> Column:
    return F.lit(None).cast("string")


def _only_column(row: Column, schema: StructType, format_name: str) -> Column:
    if len(schema) != 1 or not isinstance(schema[0].dataType, StringType | BinaryType):
        raise TopologyError(
            f"{format_name} writes one column of text or bytes, these are {schema.simpleString()}; use Json, or an expression"
        )
    return row.getField(schema[0].name)
