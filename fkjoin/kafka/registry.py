"""Avro, JSON and Protobuf behind a schema registry's header (a zero byte and the schema's id)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from pyspark.sql import Column
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from fkjoin.codec.json_read import Reading
from fkjoin.codec.units import Notation, from_names
from fkjoin.errors import FkJoinError, TopologyError, needs_extra
from fkjoin.kafka.decoding import Decoded, decoded, zone
from fkjoin.spark.copies import copy_fields
from fkjoin.spark.outages import RETRY_S, require_retry_s
from fkjoin.spark.protobuf_schemas import require_types
from fkjoin.spark.registry_records import Kind, ReadRegistry, RegistryRecords
from fkjoin.spark.returned import row_function
from fkjoin.spark.schema_registry import OF_WRITERS, SchemaProblemError, SchemaRegistry, Settings
from fkjoin.spark.schemas import arrow_schema, kind_text, struct_type
from fkjoin.spark.topic_records import Reader

_OF_JSON = StringType, BooleanType, IntegralType, FloatType, DoubleType, NullType
_ADDRESSES = re.compile(r"https?://[^,]+(, *https?://[^,]+)*")


@dataclass(frozen=True)
class Registry:
    """Avro, JSON or Protobuf, by a schema in a registry whose id is in the record.

    fkjoin reads Protobuf and does not write it. While the registry does not answer, the batch
    waits; then it fails and is repeated. Records do not become dead letters for that.

    Parameters
    ----------
    kind : "avro", "json", or "protobuf"
        The kind of the registry's schema.
    schema : str or pyspark.sql.types.StructType, optional
        The columns to take, as Spark's types: DDL text, or a ``StructType``. Other fields are left
        out. Only ``Debezium(…, inner=Registry("avro", url=…))``, which names the columns itself,
        needs no schema.
    url : str, default ""
        The address of the registry, or several with commas between them.
    settings : tuple of pairs or mapping of str to value, default ()
        Further settings of confluent-kafka's ``SchemaRegistryClient``, for example
        ``{"basic.auth.user.info": "user:password"}``, and of its writers:
        ``auto.register.schemas``, ``use.latest.version``, ``normalize.schemas``.
    write_schema : str, optional
        The text of the Avro or JSON schema, needed to write.
    subject : str, optional
        The subject in the registry, needed to write.
    units : mapping of str to str, optional
        Units by column, for what the schema does not tell. What a number in a time, date or
        interval counts: ``days``, ``seconds``, ``millis``, ``micros`` or ``nanos``. Without a unit
        such a number makes the record a dead letter. How a text stands for a decimal: ``text`` or
        ``base64`` (with the column's scale); for bytes: ``base64``, ``base64-url``, ``hex`` or
        ``wkb``.
    retry_s : float, default 60.0
        How many seconds fkjoin asks a registry again that does not answer.

    Raises
    ------
    TopologyError
        If ``kind`` has another value or ``url`` is not an address. Also if you write Protobuf, or a
        column whose type JSON lacks.
    FkJoinError
        If the extra ``registry`` is not installed.

    Examples
    --------
    >>> columns = "customer_id string, amount double"
    >>> value = Registry("avro", columns, "http://localhost:8081")
    """

    kind: Kind
    schema: str | StructType | None = None
    url: str = field(default="", repr=False)
    settings: Settings | Mapping[str, Any] = field(default=(), repr=False)
    write_schema: str | None = None
    subject: str | None = None
    units: Mapping[str, str] = field(default_factory=dict, hash=False)
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        if self.kind not in ("avro", "json", "protobuf"):
            raise TopologyError(
                f'Registry: kind {self.kind!r} is not one of "avro", "json", "protobuf"'
            )
        if self.write_schema is not None or self.subject is not None:
            _require_writable(self.kind)
        if not _ADDRESSES.fullmatch(self.url):
            raise TopologyError(
                'Registry: url: an address such as "http://registry:8081" is needed'
            )
        require_retry_s(self.retry_s)
        with needs_extra("Registry", "registry"):
            import confluent_kafka.schema_registry  # noqa: F401
            import tenacity  # noqa: F401
        if self.kind == "protobuf":
            require_types()
        copy_fields(self)
        settings = tuple(dict(self.settings).items())  # a dict has no hash
        object.__setattr__(self, "settings", settings)
        _require(self._registry, self._registry.client)

    @property
    def _registry(self) -> SchemaRegistry:
        """The address with its settings."""
        return SchemaRegistry(self.url, cast(Settings, self.settings), self.retry_s)

    def decode(self, data: Column) -> Decoded:
        return decoded(self.reader(), self._type(), data)

    def reader(self) -> Reader:
        fields = arrow_schema("Registry", self._type())
        units = from_names(self.units, fields, "Registry", kind_text)
        return ReadRegistry(fields, records_of(self, units))

    def _type(self) -> StructType:
        if self.schema is None:
            raise TopologyError(
                'Registry: schema: the columns to take are needed, such as "id bigint, name string"'
            )
        return struct_type(self.schema, "Registry")

    def encode(self, row: Column, schema: StructType) -> Column:
        _require_writable(self.kind)
        if self.write_schema is None or self.subject is None:
            raise TopologyError("Registry: to write, give write_schema= and subject=")
        if self.kind == "json":
            _require_json(schema, "")
        registry = self._registry
        _require(registry, lambda: _serializer(self.kind, registry, self.write_schema or ""))
        encoder = _encoder(self.kind, registry, self.write_schema, self.subject)
        return row_function(encoder, BinaryType())(row)


def _require_writable(kind: Kind) -> None:
    if kind == "protobuf":
        raise TopologyError(
            "Registry: fkjoin reads Protobuf and does not write it; "
            'write with Registry("avro", …) or "json"'
        )


def records_of(form: Registry, units: Notation) -> RegistryRecords:
    """Make what reads the records in workers; ``units``: of what schemas do not tell."""
    return RegistryRecords(form.kind, form._registry, Reading(units, zone()))


def _require(registry: SchemaRegistry, make: Callable[[], Any]) -> None:
    """``TopologyError`` if what is made takes no such settings.

    Files that they name may be on the workers alone.
    """
    try:
        make()
    except (FileNotFoundError, PermissionError):
        pass
    except Exception as error:  # parsers of schemas have errors of their own
        raise TopologyError(
            f"Registry: settings or write_schema: {type(error).__name__}: "
            f"{registry.without_user(str(error))}"
        ) from None


def _require_json(kind: DataType, name: str) -> None:
    """``TopologyError`` if JSON has no values of the type."""
    if isinstance(kind, StructType):
        for item in kind:
            _require_json(item.dataType, f"{name}.{item.name}".lstrip("."))
    elif isinstance(kind, ArrayType):
        _require_json(kind.elementType, name)
    elif isinstance(kind, MapType):
        _require_json(kind.keyType, name)
        _require_json(kind.valueType, name)
    elif not isinstance(kind, _OF_JSON):
        raise TopologyError(
            f"Registry: JSON has no {kind.simpleString()}, and {name} is one; "
            f"write it as a text, with cast({name} as string) in map_values"
        )


def _encoder(
    kind: Kind, registry: SchemaRegistry, write_schema: str, subject: str
) -> Callable[[Any], Any]:
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(subject, MessageField.VALUE)

    def encode(row: Any) -> Any:
        if row is None:
            return None
        write, values = _serializer(kind, registry, write_schema), row.asDict(recursive=True)
        try:
            return registry.asking(lambda: write(values, context))
        except SchemaProblemError as error:
            raise FkJoinError(
                f"{registry.place} does not have the schema to write under {subject}: {error}. "
                "Register it there, or leave out the setting auto.register.schemas or "
                "use.latest.version, and start the query again"
            ) from error

    return encode


@lru_cache
def _serializer(kind: Kind, registry: SchemaRegistry, write_schema: str) -> Any:
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    own = {name: value for name, value in registry.settings if name in OF_WRITERS}
    conf = {"subject.name.strategy": lambda context, _: context.topic, **own}
    if kind == "avro":
        return AvroSerializer(registry.client(), write_schema, conf=conf)
    return JSONSerializer(write_schema, registry.client(), conf=conf)
