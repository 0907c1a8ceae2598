"""Files of Protobuf, made without a compiler, and records with their messages."""

from __future__ import annotations

from typing import Any

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.type import date_pb2, decimal_pb2, timeofday_pb2

KNOWN = [
    module.DESCRIPTOR
    for module in (timestamp_pb2, duration_pb2, struct_pb2, wrappers_pb2, date_pb2, decimal_pb2, timeofday_pb2)
]
DECIMAL = FileDescriptorProto(name="confluent/type/decimal.proto", package="confluent.type", syntax="proto3")
DECIMAL.message_type.add(name="Decimal").field.extend(
    FieldDescriptorProto(name=name, number=number, type=kind, label=1)
    for number, (name, kind) in enumerate((("value", 12), ("precision", 13), ("scale", 5)), 1)
)


def file_of(*messages: DescriptorProto, package: str = "shop", imports: tuple[str, ...] = ()) -> FileDescriptorProto:
    """A file in the third syntax; it imports what stands in ``KNOWN``, and Confluent's decimal."""
    for message in messages:
        _give_presence(message)
    known = [file.name for file in KNOWN], [DECIMAL.name], imports
    return FileDescriptorProto(
        name="default",
        package=package,
        syntax="proto3",
        message_type=messages,
        dependency=[name for some in known for name in some],
    )


def add_field(message: DescriptorProto, name: str, kind: int | str, **more: Any) -> FieldDescriptorProto:
    """Declare a field with the next number; ``kind``: a number of ``FieldDescriptorProto.Type``, or a message's name."""
    of = {"type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": kind} if isinstance(kind, str) else {"type": kind}
    number = max((one.number for one in message.field), default=0) + 1
    return message.field.add(**{"name": name, "number": number, "label": 1, **of, **more})


def message(name: str, *inner: DescriptorProto, **fields: int | str) -> DescriptorProto:
    """Make a message, with others in it and the types of its fields."""
    result = DescriptorProto(name=name, nested_type=inner)
    for title, kind in fields.items():
        add_field(result, title, kind)
    return result


def _give_presence(message: DescriptorProto) -> None:
    """Put each field with ``optional`` into a oneof of its own, after those that are real."""
    for field in message.field:
        if field.proto3_optional and not field.HasField("oneof_index"):
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
    for inner in message.nested_type:
        _give_presence(inner)


def add_map(message: DescriptorProto, path: str, name: str, key: int, kind: int | str, **more: Any) -> None:
    """Declare a map; ``path``: the name of the message, with its package."""
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    add_field(entry, "key", key)
    add_field(entry, "value", kind, **more)
    add_field(message, name, f".{path}.{entry.name}", label=3)


def classes(*files: FileDescriptorProto) -> dict[str, Any]:
    """The classes of the messages, by their names with the package; files come after those that they import."""
    pool, made = DescriptorPool(), {}
    for known in KNOWN:
        pool.AddSerializedFile(known.serialized_pb)
    pool.AddSerializedFile(DECIMAL.SerializeToString())
    for file in files:
        inside = list(pool.AddSerializedFile(file.SerializeToString()).message_types_by_name.values())
        while inside:
            message = inside.pop()
            made[message.full_name] = GetMessageClass(message)
            inside += message.nested_types
    return made


def record(number: int, message: Any, index: bytes = b"\0") -> bytes:
    """Write a message behind the header; ``index``: which of the schema it is."""
    return b"\0" + number.to_bytes(4, "big") + index + message.SerializeToString()
