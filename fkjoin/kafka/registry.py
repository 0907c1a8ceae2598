"""Avro and JSON behind a schema registry's header (a zero byte and the schema's id), by confluent-kafka's (de)serializers.

Rows become columns before they are compared, so the schema id is not part of a key: two schema versions of one key are equal.
A text column has a text as it is, and of anything else its JSON; bytes in one are a problem.
Each record is decoded in Python; it is the slow road.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Literal
from uuid import UUID

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    _make_type_verifier,
)

from fkjoin.errors import TopologyError, needs_extra
from fkjoin.kafka.formats import Decoded
from fkjoin.spark.copies import copy_fields
from fkjoin.spark.returned import row_function
from fkjoin.spark.schemas import struct_type

Kind = Literal["avro", "json"]
Settings = tuple[tuple[str, Any], ...]

_PROBLEM = "__fkjoin_problem"


@dataclass(frozen=True)
class Registry:
    """Avro or JSON by a schema of a registry, whose id is in the record.

    Parameters
    ----------
    kind : {"avro", "json"}
        The kind of the registry's schema.
    schema : str or pyspark.sql.types.StructType
        The columns to take, as Spark's types; fields it lacks are left out.
    url : str
        The registry's address.
    settings : tuple of (str, value), optional
        Further settings of confluent-kafka's ``SchemaRegistryClient``, such as ``(("basic.auth.user.info",
        "user:password"),)``.
    write_schema : str, optional
        The Avro or JSON schema's text, needed to write.
    subject : str, optional
        The registry's subject, needed to write.

    Raises
    ------
    TopologyError
        If ``kind`` is neither.
    FkJoinError
        If the extra ``registry`` is not installed.

    Examples
    --------
    >>> value = Registry("avro", "customer_id string, amount double", "http://localhost:8081")
    """

    kind: Kind
    schema: str | StructType
    url: str
    settings: Settings = field(default=(), repr=False)
    write_schema: str | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("avro", "json"):
            raise TopologyError(f'Registry: kind {self.kind!r} is not one of "avro", "json"')
        _require_extra()
        copy_fields(self)

    def decode(self, data: Column) -> Decoded:
        row = struct_type(self.schema, "Registry")
        kind = StructType([*row, StructField(_PROBLEM, StringType())])
        found = row_function(_decoder(self.kind, self.url, self.settings, row), kind)(data)
        columns = F.struct(*[found.getField(name).alias(name) for name in row.names])
        return Decoded(F.when(data.isNotNull(), columns), data.isNull(), found.getField(_PROBLEM))

    def encode(self, row: Column, schema: StructType) -> Column:
        if self.write_schema is None or self.subject is None:
            raise TopologyError("Registry: to write, give write_schema= and subject=")
        encoder = _encoder(self.kind, self.url, self.settings, self.write_schema, self.subject)
        return row_function(encoder, BinaryType())(row)


def _require_extra() -> None:
    with needs_extra("Registry", "registry"):
        import confluent_kafka.schema_registry.avro  # noqa: F401
        import confluent_kafka.schema_registry.json_schema  # noqa: F401


def _decoder(kind: Kind, url: str, settings: Settings, row: StructType) -> Callable[[Any], Any]:
    columns = len(row)

    def decode(data: Any) -> Any:
        if data is None:
            return None
        deserialize = _deserializer(kind, url, settings)
        try:
            found = deserialize(bytes(data), None)
            values = tuple(typed((found or {}).get(field.name), field.dataType, field.name) for field in row)
            _verifier(row)(values)
        except Exception as error:
            if _is_outage(error):
                raise
            return (None,) * columns + (f"not {kind} of the registry's schema: {type(error).__name__}: {error}"[:500],)
        return (*values, None)

    return decode


def typed(value: Any, kind: DataType, name: str) -> Any:
    """The value for a column of the type; a text is what it is, or its JSON.  ``ValueError`` if neither is sure.

    An instant is none of a clock without a zone, nor the other way round.
    """
    if value is None:
        return None
    if isinstance(kind, StringType):
        return value if isinstance(value, str) else _text(value, name)
    if isinstance(kind, StructType) and isinstance(value, Mapping):
        return tuple(typed(value.get(field.name), field.dataType, f"{name}.{field.name}") for field in kind)
    if isinstance(kind, ArrayType) and isinstance(value, list | tuple):
        return [typed(item, kind.elementType, name) for item in value]
    if isinstance(kind, MapType) and isinstance(value, Mapping):
        return {key: typed(item, kind.valueType, name) for key, item in value.items()}
    zoned = isinstance(value, datetime.datetime) and value.tzinfo is not None
    if isinstance(kind, TimestampType):
        if not isinstance(value, datetime.datetime):
            raise ValueError(f"{name}: {value!r} has no unit here; take a bigint column, and timestamp_micros(…) or the like")
        if not zoned:
            raise ValueError(f"{name}: {value} is a clock without a zone; take a timestamp_ntz column")
    if isinstance(kind, TimestampNTZType) and zoned:
        raise ValueError(f"{name}: {value} is an instant; take a timestamp column")
    return value


def _text(value: Any, name: str) -> str:
    if isinstance(value, bytes):
        raise ValueError(f"{name}: bytes are no text; take a binary column")
    made = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=partial(_named, name))
    return json.loads(made) if made.startswith('"') else made


def _named(name: str, value: Any) -> Any:
    """Write values that JSON has no type for into a text column."""
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise ValueError(f"{name}: {type(value).__name__} in a text column; give the column the type that it has")


def _is_outage(error: Exception) -> bool:
    """Tell whether the registry fails, not the record: such an error stops the query, or good records would be lost."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    if isinstance(error, SchemaRegistryError):
        return error.http_status_code not in (404, 422)
    return isinstance(error, OSError) or type(error).__module__.startswith(("http", "requests"))


def _encoder(kind: Kind, url: str, settings: Settings, write_schema: str, subject: str) -> Callable[[Any], Any]:
    def encode(row: Any) -> Any:
        if row is None:
            return None
        return _serializer(kind, url, settings, write_schema)(row.asDict(recursive=True), _context(subject))

    return encode


def _context(subject: str) -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    return SerializationContext(subject, MessageField.VALUE)


@lru_cache
def _verifier(row: StructType) -> Callable[[Any], None]:
    return _make_type_verifier(row)


@lru_cache
def _client(url: str, settings: Settings) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient({"url": url, **dict(settings)})


@lru_cache
def _deserializer(kind: Kind, url: str, settings: Settings) -> Any:
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer

    client = _client(url, settings)
    conf = {"subject.name.strategy": lambda *_: None}  # the writer's schema, by its id, is all that is wanted
    if kind == "avro":
        return AvroDeserializer(client, conf=conf)
    return JSONDeserializer(None, schema_registry_client=client, conf=conf)


@lru_cache
def _serializer(kind: Kind, url: str, settings: Settings, write_schema: str) -> Any:
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    conf = {"subject.name.strategy": lambda context, _: context.topic}
    make = AvroSerializer if kind == "avro" else JSONSerializer
    client = _client(url, settings)
    return make(client, write_schema, conf=conf) if kind == "avro" else make(write_schema, client, conf=conf)
