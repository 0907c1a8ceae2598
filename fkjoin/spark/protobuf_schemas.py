"""Messages of Protobuf behind a registry's header.

These are: which message of a schema a record has, and the message's class.  The registry gives a
schema as a descriptor, so no compiler is needed.  A schema has a pool of its own, with what it
imports.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import pyarrow as pa

from fkjoin.codec.protobuf_fields import FieldReader, fields_of
from fkjoin.errors import FkJoinError, needs_extra
from fkjoin.spark.schema_registry import SERIALIZED, SchemaProblemError, SchemaRegistry

Index = tuple[int, ...]
"""Place of a message in its file: of the outermost one, then of each in the one before."""

_FIRST = (0,)
_DEEPEST = 100
"""Messages within messages, which Protobuf itself does not parse when they are deeper."""
_KNOWN = re.compile(r"google/(protobuf|type)/(\w+)\.proto")
"""Files that every compiler has, which a registry does not name as references."""
_OF_CONFLUENT = {
    "confluent/meta.proto": ("meta_pb2", "Meta"),
    "confluent/type/decimal.proto": ("types.decimal_pb2", "Decimal"),
}
"""Files that Confluent's registries know, by a module of confluent-kafka and a message in it."""


class MessageReader(NamedTuple):
    """Reader of messages of one type, for rows of one type."""

    parse: Callable[[bytes], Any]
    fields: FieldReader

    def read(self, bodies: list[bytes]) -> list[Any]:
        """Read messages as mappings; one that is broken raises an error."""
        return self.fields.read([*map(self.parse, bodies)])


def message_index(data: bytes, start: int) -> tuple[Index, int]:
    """Read which message a record has, and where it begins.

    ``ValueError`` if the record ends before.
    """
    count, end = _number(data, start)
    if not count:
        return _FIRST, end
    if not 0 < count <= _DEEPEST:
        raise ValueError(f"{count} is not the length of a message's index")
    index = []
    for _ in range(count):
        number, end = _number(data, end)
        index.append(number)
    return tuple(index), end


def _number(data: bytes, start: int) -> tuple[int, int]:
    """Read a zigzag number of up to five bytes, and where it ends."""
    value = 0
    for position, octet in enumerate(data[start : start + 5]):
        value |= (octet & 127) << 7 * position
        if octet < 128:
            return (value >> 1) ^ -(value & 1), start + position + 1
    raise ValueError("the record ends in the index of its message")


@lru_cache(1000)
def messages(
    registry: SchemaRegistry, number: int, index: Index, kind: pa.StructType
) -> MessageReader:
    """Make the reader of a schema's message; ``SchemaProblemError`` if there is none."""
    from google.protobuf.message_factory import GetMessageClass

    descriptor = _descriptor(file_of(registry, number), number, index)
    try:
        message = GetMessageClass(descriptor)
        return MessageReader(message.FromString, fields_of(message.DESCRIPTOR, kind))
    except Exception as error:
        raise SchemaProblemError(
            f"schema {number} cannot be used: {type(error).__name__}: {error}"
        ) from error


def _descriptor(file: Any, number: int, index: Index) -> Any:
    """Find a message by its place, as Confluent's deserializer for Java counts.

    It counts the messages that maps consist of, too.
    """
    inside: list[Any] = list(file.message_types_by_name.values())
    message = None
    for position in index:
        if not 0 <= position < len(inside):
            raise SchemaProblemError(f"schema {number} has no message {list(index)}")
        message = inside[position]
        inside = list(message.nested_types)
    return message


@lru_cache(1000)
def file_of(registry: SchemaRegistry, number: int) -> Any:
    """Make the descriptor of a schema's file, in a pool of its own."""
    from google.protobuf.descriptor_pool import DescriptorPool

    return _Pool(registry, number, DescriptorPool(), {}).add(
        str(number), registry.serialized(number), {}
    )


class _Pool(NamedTuple):
    """A pool of files, by the names by which they are imported."""

    registry: SchemaRegistry
    number: int
    pool: Any
    names: dict[str, tuple[str, int] | None]
    """Subject and version of each file that was added, by its name.

    None of a file that is known without a registry.
    """

    def add(self, name: str, schema: Any, referred: Mapping[str, Any]) -> Any:
        """Add a schema, and before it what it imports.

        ``referred``: the references of those that import it.
        """
        file = self._parsed(schema.schema_str)
        file.name = name
        own = {reference.name: reference for reference in schema.references or ()}
        return self._add(file, {**referred, **own})

    def _add(self, file: Any, referred: Mapping[str, Any]) -> Any:
        for name in file.dependency:
            version = (referred[name].subject, referred[name].version) if name in referred else None
            if name in self.names:
                if version not in (None, before := self.names[name]):
                    raise SchemaProblemError(
                        f"schema {self.number} imports {name} in two versions: {before} "
                        f"and {version}"
                    )
                continue
            self.names[name] = version
            if name in referred:
                self.add(name, self.registry.referred(referred[name], SERIALIZED), referred)
            elif (known := _known(name)) is not None:
                self._add(known, {})
            else:
                raise SchemaProblemError(
                    f"schema {self.number} imports {name}, which is not among its references"
                )
        try:
            return self.pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise SchemaProblemError(f"schema {self.number} cannot be used: {error}") from error

    def _parsed(self, text: str) -> Any:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.message import DecodeError

        try:
            return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except DecodeError as error:
            raise SchemaProblemError(f"schema {self.number} cannot be parsed: {error}") from error
        except ValueError:  # no base64
            self.registry.forget()
            raise FkJoinError(
                f"{self.registry.place} gives schema {self.number} as a text, and no descriptor of "
                "it (format=serialized). The batch is not lost. Read the topic through a registry "
                "that gives descriptors, such as Confluent's"
            ) from None


def _known(name: str) -> Any:
    """The file of a type that is known without a registry; None if it is none."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    if name in _OF_CONFLUENT:
        path, message = _OF_CONFLUENT[name]
        module = import_module(f"confluent_kafka.schema_registry.confluent.{path}")
        descriptor = getattr(module, message).DESCRIPTOR.file
    elif (parts := _KNOWN.fullmatch(name)) is not None:
        require_types()
        try:
            descriptor = import_module(f"google.{parts[1]}.{parts[2]}_pb2").DESCRIPTOR
        except ModuleNotFoundError:
            return None
    else:
        return None
    file = FileDescriptorProto()
    descriptor.CopyToProto(file)
    file.name = name
    return file


def require_types() -> None:
    """Raise an error that says what to install if the files of ``google/type`` are not here."""
    with needs_extra("Registry", "registry"):
        from google.type import date_pb2  # noqa: F401
