"""Formats of a Kafka record's key and value, as Spark expressions.

A format turns bytes into a struct, or says what is wrong with them; it never throws, and it never
takes a broken value for a null one.  A null value is a tombstone; a struct of nulls is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType

from fkjoin.codec.json_read import Reading
from fkjoin.codec.json_write import writable
from fkjoin.codec.units import UNSURE, Notation, everywhere, from_names, merged
from fkjoin.errors import TopologyError
from fkjoin.kafka.decoding import Decoded, Format, decoded, fields_of, shown, zone
from fkjoin.kafka.registry import Registry, records_of
from fkjoin.spark.change_events import ReadEvents, ReadKeys
from fkjoin.spark.copies import copy_fields
from fkjoin.spark.event_rows import EventRows
from fkjoin.spark.json_texts import require_json, written
from fkjoin.spark.registry_records import ReadAvroEvents, ReadRegistry
from fkjoin.spark.schemas import arrow_schema, kind_text, struct_type
from fkjoin.spark.topic_records import ReadBytes, Reader, ReadObjects
from fkjoin.spark.topic_values import WriteObjects, Writer, WriteTexts
from fkjoin.spark.unavailable import PLACEHOLDER
from fkjoin.stages.complete import UNAVAILABLE

_SOURCE_BLOCK = (
    "lsn bigint, txId bigint, pos bigint, row int, file string, server_id bigint, "
    "ts_ms bigint, ts_us bigint, ts_ns bigint, scn string, commit_scn string, "
    "change_lsn string, commit_lsn string, event_serial_no bigint, ord int, sequence string, "
    "snapshot string, db string, schema string, table string"
)
"""Columns in which Debezium's connectors give a change's position in the database's log."""


@dataclass(frozen=True)
class Bytes:
    """Bytes, unchanged, in one binary column.

    Parameters
    ----------
    name : str, default "value"
        The name of the column.

    Examples
    --------
    >>> key = Bytes("digest")
    """

    name: str = "value"

    def decode(self, data: Column) -> Decoded:
        row = F.when(data.isNotNull(), F.struct(data.alias(self.name)))
        return Decoded(row, data.isNull(), F.lit(None).cast("string"))

    def encode(self, row: Column, schema: StructType) -> Column:
        return _only_column(row, schema, "Bytes").cast("binary")

    def reader(self) -> Reader:
        return ReadBytes(self.name, text=False)


@dataclass(frozen=True)
class String:
    """UTF-8 text, in one string column.

    Parameters
    ----------
    name : str, default "value"
        The name of the column.

    Examples
    --------
    >>> key = String("order_id")
    """

    name: str = "value"

    def decode(self, data: Column) -> Decoded:
        row = F.when(data.isNotNull(), F.struct(data.cast("string").alias(self.name)))
        problem = F.when(~F.is_valid_utf8(data.cast("string")), F.lit("not UTF-8"))
        return Decoded(row, data.isNull(), problem)

    def encode(self, row: Column, schema: StructType) -> Column:
        return _only_column(row, schema, "String").cast("string").cast("binary")

    def reader(self) -> Reader:
        return ReadBytes(self.name, text=True)


@dataclass(frozen=True)
class Json:
    """A JSON object, read with a schema.

    Fields that the schema lacks are left out, and absent fields are null. A field of another type
    makes the record a dead letter. A text column takes any JSON as its text, with numbers as they
    are written.

    Parameters
    ----------
    schema : str or pyspark.sql.types.StructType
        The columns to take, as Spark's types: DDL text, or a ``StructType``.
    text : str, optional
        The name of a further column that contains the whole object as it was written.
    units : mapping of str to str, optional
        Units by column. What a number in a time, date or interval counts: ``days``, ``seconds``,
        ``millis``, ``micros`` or ``nanos``. Without a unit such a number makes the record a dead
        letter. How a text stands for a decimal: ``text`` or ``base64`` (with the column's scale);
        for bytes: ``base64``, ``base64-url``, ``hex`` or ``wkb``.

    Examples
    --------
    >>> units = {"created": "micros"}
    >>> value = Json("amount double, created timestamp", units=units)
    """

    schema: str | StructType
    text: str | None = None
    units: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        copy_fields(self)

    def decode(self, data: Column) -> Decoded:
        return decoded(self.reader(), self._type(), data, self.text)

    def encode(self, row: Column, schema: StructType) -> Column:
        require_json("Json", schema)
        return written(row, schema).cast("binary")

    def reader(self) -> Reader:
        kind = self._type()
        fields = fields_of(kind, "Json")
        how = Reading(from_names(self.units, fields, "Json", kind_text), zone())
        return ReadObjects(fields, shown(kind), self.text, how)

    def _type(self) -> StructType:
        kind = struct_type(self.schema, "Json")
        if self.text is not None and self.text.lower() in map(str.lower, kind.names):
            raise TopologyError(
                f"Json: the schema has a column {self.text!r} already; give text another name"
            )
        return kind


@dataclass(frozen=True)
class Debezium:
    """Debezium's change events: JSON, or Avro behind a registry's header.

    JSON may have the ``schema``/``payload`` wrapper or not. ``c``, ``u`` and ``r`` (snapshot) are
    upserts of ``after``. ``d`` is a delete, and so is the tombstone that may follow it. As the
    format of a key, it reads the key's fields, wrapped or not. The ``schema`` part or the Avro
    schema decides how times, decimals and bytes are read.

    Parameters
    ----------
    schema : str or pyspark.sql.types.StructType
        The columns of the row, as Spark's types: DDL text, or a ``StructType``.
    source : str or pyspark.sql.types.StructType, optional
        Columns of the event's ``source`` block, for example ``"lsn bigint, change_lsn string"``.
        The expressions of ``Table.from_kafka(…, version=, deleted=, timestamp=)`` may use them. By
        default the columns by which connectors order changes.
    units : mapping of str to str, optional
        Units by column, for messages without the ``schema`` part. What a number in a time, date or
        interval counts: ``days``, ``seconds``, ``millis``, ``micros`` or ``nanos``. Without a unit
        such a number makes the record a dead letter. How a text stands for a decimal: ``text`` or
        ``base64`` (with the column's scale); for bytes: ``base64``, ``base64-url``, ``hex`` or
        ``wkb``. A text that may be a decimal in base64 or a number makes it one, too.
    placeholder : str, default "__debezium_unavailable_value"
        The text that the connector writes for values that it does not have
        (``unavailable.value.placeholder``). These values are taken from ``before``.
    unavailable : {"problem", "keep"}, default "problem"
        What happens to an event that lacks these values in ``before``. ``"problem"`` makes it a
        dead letter. With ``"keep"`` the table keeps its rows in state, and the values that it has.
    inner : Registry, optional
        The registry of Avro events: ``Registry("avro", url=…)``, without a schema.

    Raises
    ------
    TopologyError
        If ``unavailable`` has another value, or ``inner`` is another format.

    Examples
    --------
    >>> value = Debezium("order_id string, customer_id string, amount double")
    >>> registry = Registry("avro", url="http://localhost:8081")
    >>> value = Debezium("order_id string, amount double", inner=registry)
    """

    schema: str | StructType
    source: str | StructType = _SOURCE_BLOCK
    units: Mapping[str, str] = field(default_factory=dict, hash=False)
    placeholder: str = PLACEHOLDER
    unavailable: Literal["problem", "keep"] = "problem"
    inner: Registry | None = None

    def __post_init__(self) -> None:
        if self.unavailable not in ("problem", "keep"):
            raise TopologyError(
                f'Debezium: unavailable {self.unavailable!r} is not one of "problem", "keep"'
            )
        copy_fields(self)
        if self.inner is None:
            return
        if isinstance(self.inner, Registry) and self.inner.kind == "protobuf":
            raise TopologyError(
                "Debezium: inner: events in Protobuf are not read, since nulls of a row are lost "
                "in them; let the connector write Avro, or JSON without a registry"
            )
        if not isinstance(self.inner, Registry) or self.inner.kind != "avro":
            raise TopologyError(
                'Debezium: inner can only be Registry("avro", url=…); JSON events need none'
            )
        if self.inner.schema is not None or self.inner.units:
            raise TopologyError(
                "Debezium: inner: leave out its schema and units; give them to Debezium(…)"
            )

    def about(self, data: Column) -> Column:
        """Read the parts of an event besides its row.

        Parameters
        ----------
        data : Column
            A binary column.

        Returns
        -------
        Column
            A struct of ``op``, ``ts_ms``, and ``source`` with the columns of the parameter
            ``source``.

        Examples
        --------
        >>> from pyspark.sql import functions as F
        >>> about = Debezium("order_id string").about(F.col("value"))
        """
        block = struct_type(self.source, "Debezium")
        envelope = (
            StructType().add("op", StringType()).add("ts_ms", LongType()).add("source", block)
        )
        if self.inner is not None:
            reading = ReadRegistry(arrow_schema("Debezium", envelope), records_of(self.inner, None))
            return decoded(reading, envelope, data, whatever=True).row
        kind = StructType([*envelope]).add("payload", envelope)
        objects = ReadObjects(fields_of(kind, "Debezium"), shown(kind))
        parsed = decoded(objects, kind, data, whatever=True).row
        unwrapped = [parsed.getField(name).alias(name) for name in envelope.names]
        return F.coalesce(parsed.getField("payload"), F.struct(*unwrapped))

    def decode(self, data: Column) -> Decoded:
        columns = StructType([*self._type()])
        if self.unavailable == "keep":
            columns.add(UNAVAILABLE, ArrayType(IntegerType()))
        return decoded(self.reader(), columns, data)

    def decode_key(self, data: Column) -> Decoded:
        return decoded(self.key_reader(), self._type(), data)

    def reader(self) -> Reader:
        kind = self._type()
        fields = fields_of(kind, "Debezium")
        rows = EventRows(fields, self.placeholder, marks=self.unavailable == "keep")
        if self.inner is not None:
            return ReadAvroEvents(rows, records_of(self.inner, {"after": self._units(fields)}))
        envelope = StructType().add("op", StringType()).add("after", kind)
        wrapped = StructType([*envelope]).add("payload", envelope)
        return ReadEvents(rows, shown(wrapped), self._how(fields))

    def key_reader(self) -> Reader:
        kind = self._type()
        if self.inner is not None:
            fields = arrow_schema("Debezium", kind)
            return ReadRegistry(fields, records_of(self.inner, self._units(fields)))
        if "payload" in kind.names:
            raise TopologyError(
                "Debezium: a key's column cannot be called 'payload', as the wrapper is; "
                "rename it in the source"
            )
        fields = fields_of(kind, "Debezium")
        wrapped = StructType([*kind]).add("payload", kind)
        return ReadKeys(fields, shown(wrapped), self._how(fields))

    def _how(self, fields: pa.Schema) -> Reading:
        unsure = everywhere(pa.struct(list(fields)), UNSURE, pa.types.is_decimal)
        return Reading(merged(self._units(fields), unsure), zone())

    def _units(self, fields: pa.Schema) -> Notation:
        return from_names(self.units, fields, "Debezium", kind_text)

    def _type(self) -> StructType:
        return struct_type(self.schema, "Debezium")


def decode_key(form: Format, data: Column) -> Decoded:
    """Decode a record's key, see ``decode``."""
    return form.decode_key(data) if isinstance(form, Debezium) else form.decode(data)


def reader(form: Format) -> Reader | None:
    """Make the function that reads the format in Python workers; None for expressions only."""
    if isinstance(form, String | Bytes | Json | Debezium | Registry):
        return form.reader()
    return None


def key_reader(form: Format) -> Reader | None:
    """Make the reader of a record's key, see ``reader``."""
    return form.key_reader() if isinstance(form, Debezium) else reader(form)


def writer(form: Format, schema: StructType, *, exact: bool = False) -> Writer | None:
    """Make the function that writes rows in Python workers; None if only Spark's expressions can.

    ``exact``: byte by byte as those do, so that a topic's keys are what they were.
    """
    if isinstance(form, String | Bytes):
        return WriteTexts(((schema[0].name,),))
    if not isinstance(form, Json):
        return None
    fields = arrow_schema("schema", schema)
    is_writable = writable(pa.struct(list(fields)), exact=exact)
    return WriteObjects(tuple(fields.names)) if is_writable else None


def header(name: str) -> Column:
    """The bytes of a record's last header of that name; null when it has none."""
    own = F.filter("headers", lambda item: item["key"] == name)
    return F.try_element_at(own, F.lit(-1)).getField("value")


def as_format(argument: str, form: Format | str, name: str) -> Format:
    """A format, or one of ``"string"`` and ``"bytes"`` in a column called ``name``."""
    if isinstance(form, str):
        named: dict[str, Format] = {"string": String(name), "bytes": Bytes(name)}
        if form in named:
            return named[form]
        raise TopologyError(
            f'{argument}: {form!r} is not a format: give "string", "bytes", Json(…) or Debezium(…)'
        )
    if not hasattr(form, "decode"):
        raise TopologyError(
            f"{argument}: a format is needed, this is a {type(form).__name__}; see fkjoin.kafka"
        )
    return form


def _only_column(row: Column, schema: StructType, format_name: str) -> Column:
    if len(schema) != 1 or not isinstance(schema[0].dataType, StringType | BinaryType):
        raise TopologyError(
            f"{format_name} writes one column of text or bytes, these are {schema.simpleString()}; "
            "use Json, or an expression"
        )
    return row.getField(schema[0].name)
