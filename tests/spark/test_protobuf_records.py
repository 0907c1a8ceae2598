"""Records of Protobuf: read together as each alone, and as the values that were put into the messages."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protobuf import add_field, add_map, classes, file_of, message, record
from tests.support.schema_registry import (
    SmallRegistry,
    header,
    registry_reader,
    registry_rows,
    require_rows,
)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
INSTANT, CLOCK, SPAN = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us")
PREFIX = "not protobuf of the registry's schema: "


def same(value: Any) -> Any:
    return value


class Leaf(NamedTuple):
    """A type of a field, a column for it, and values."""

    type: int | str
    kind: pa.DataType
    values: st.SearchStrategy[Any]
    want: Callable[[Any], Any] = same
    """Function that makes the column's value of one."""
    send: Callable[[Any], Any] = same
    """Function that makes what stands in a message of one."""
    inner: tuple[DescriptorProto, ...] = ()
    """Messages that the type needs."""


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def natural(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def wrapper(name: str, kind: pa.DataType, values: st.SearchStrategy[Any]) -> Leaf:
    return Leaf(f".google.protobuf.{name}Value", kind, values, send=lambda value: {"value": value})


def parts(*names: str) -> Callable[[Any], Any]:
    """Names the items of a value."""
    return lambda value: dict(zip(names, value, strict=True))


def counted(value: tuple[int, int]) -> datetime.timedelta:
    return datetime.timedelta(seconds=value[0], microseconds=value[1] // 1000)


def unscaled(value: Decimal) -> dict[str, Any]:
    number = int(value.scaleb(3))
    data = number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
    return {"value": data, "scale": 3}


def rounded(value: Decimal) -> Decimal:
    return value.quantize(Decimal("0.01"), ROUND_HALF_UP)


def enum_name(value: int) -> str:
    return {0: "NEW", 1: "PAID"}.get(value, str(value))


NANOS = st.integers(0, 10**9 - 1)
MOMENTS = st.tuples(st.integers(-62135596800, 253402300799), NANOS)
SPANS = st.tuples(st.integers(0, 10**11), NANOS).flatmap(lambda one: st.sampled_from([one, (-one[0], -one[1])]))
THOUSANDTHS = st.integers(-(10**9), 10**9).map(lambda number: Decimal(number).scaleb(-3))
DAYS = st.dates().map(lambda day: (day.year, day.month, day.day))
TIMES = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), NANOS)
STAMP, DURATION = ".google.protobuf.Timestamp", ".google.protobuf.Duration"
DATE, DECIMAL, AMOUNT = ".google.type.Date", ".google.type.Decimal", pa.decimal128(14, 2)
SECONDS = parts("seconds", "nanos")
DATE_PARTS = parts("year", "month", "day")
CLOCK_PARTS = parts("hours", "minutes", "seconds", "nanos")


def clock(value: tuple[int, ...]) -> datetime.time:
    return datetime.time(*value[:3], value[3] // 1000)


LEAVES = [
    Leaf(F.TYPE_STRING, pa.string(), st.text()),
    Leaf(F.TYPE_BOOL, pa.bool_(), st.booleans()),
    Leaf(F.TYPE_BOOL, pa.string(), st.booleans(), lambda value: str(value).lower()),
    *(Leaf(of, pa.int32(), whole(32)) for of in (F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32)),
    *(Leaf(of, pa.int64(), whole(64)) for of in (F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64)),
    *(Leaf(of, pa.int64(), natural(32)) for of in (F.TYPE_UINT32, F.TYPE_FIXED32)),
    *(Leaf(of, pa.int64(), natural(63)) for of in (F.TYPE_UINT64, F.TYPE_FIXED64)),
    *(Leaf(of, pa.decimal128(20, 0), natural(64), Decimal) for of in (F.TYPE_UINT64, F.TYPE_FIXED64)),
    Leaf(F.TYPE_INT64, pa.string(), whole(64), str),
    Leaf(F.TYPE_DOUBLE, pa.float64(), st.floats(allow_nan=False)),
    Leaf(F.TYPE_FLOAT, pa.float32(), st.floats(width=32, allow_nan=False)),
    Leaf(F.TYPE_BYTES, pa.binary(), st.binary()),
    Leaf(F.TYPE_ENUM, pa.string(), st.sampled_from([0, 1, 7]), enum_name),
    Leaf(F.TYPE_ENUM, pa.int32(), st.sampled_from([0, 1, 7])),
    wrapper("Int32", pa.int64(), whole(32)),
    wrapper("String", pa.string(), st.text()),
    Leaf(STAMP, INSTANT, MOMENTS, lambda value: EPOCH + counted(value), SECONDS),
    Leaf(STAMP, pa.struct({"nanos": pa.int32(), "seconds": pa.int64()}), MOMENTS, SECONDS, SECONDS),
    Leaf(DURATION, SPAN, SPANS, counted, SECONDS),
    Leaf(DATE, pa.date32(), DAYS, lambda value: datetime.date(*value), DATE_PARTS),
    Leaf(".google.type.TimeOfDay", pa.time64("us"), TIMES, clock, CLOCK_PARTS),
    Leaf(DECIMAL, AMOUNT, THOUSANDTHS, rounded, lambda value: {"value": str(value)}),
    Leaf(".confluent.type.Decimal", AMOUNT, THOUSANDTHS, rounded, unscaled),
]
KEYS: dict[str, tuple[int, st.SearchStrategy[Any], pa.DataType]] = {
    "text": (F.TYPE_STRING, st.text(), pa.string()),
    "whole": (F.TYPE_SINT32, whole(32), pa.int32()),
}
"""Keys of maps."""
NUMBERS = itertools.count()
SHAPES = ["plain"] * 3 + ["optional", "oneof", "list", *KEYS, "unwanted"]


class Field(NamedTuple):
    """A field of a message: a type in a shape."""

    leaf: Leaf
    shape: str

    def declare(self, into: DescriptorProto, name: str) -> None:
        of, more = self.leaf.type, dict[str, Any]()
        if of == F.TYPE_ENUM:
            more["type_name"] = ".shop.Status"
        if self.shape in KEYS:
            add_map(into, f"shop.{into.name}", name, KEYS[self.shape][0], of, **more)
            return
        if self.shape == "oneof":
            more["oneof_index"] = len(into.oneof_decl)
            into.oneof_decl.add(name=f"{name}_choice")
            add_field(into, f"{name}_other", F.TYPE_INT32, oneof_index=more["oneof_index"])
        if self.shape == "optional" and isinstance(of, int):
            more["proto3_optional"] = True
        add_field(into, name, of, label=3 if self.shape == "list" else 1, **more)

    @property
    def kind(self) -> pa.DataType | None:
        """The column; None: it is not wanted."""
        if self.shape in KEYS:
            return pa.map_(KEYS[self.shape][2], self.leaf.kind)
        if self.shape == "list":
            return pa.list_(self.leaf.kind)
        return None if self.shape == "unwanted" else self.leaf.kind

    @property
    def values(self) -> st.SearchStrategy[Any]:
        """Values; None: it is not set."""
        if self.shape in KEYS:
            return st.dictionaries(KEYS[self.shape][1], self.leaf.values, max_size=3)
        if self.shape == "list":
            return st.lists(self.leaf.values, max_size=3)
        has_presence = self.shape != "plain" or isinstance(self.leaf.type, str)
        return st.none() | self.leaf.values if has_presence else self.leaf.values

    def send(self, name: str, value: Any) -> dict[str, Any]:
        """The field in a message; of a oneof the other member where there is no value."""
        if value is None:
            return {f"{name}_other": 5} if self.shape == "oneof" else {}
        if self.shape in KEYS:
            return {name: {key: self.leaf.send(item) for key, item in value.items()}}
        if self.shape == "list":
            return {name: [*map(self.leaf.send, value)]}
        return {name: self.leaf.send(value)}

    def want(self, value: Any) -> Any:
        """The column's value."""
        if value is None:
            return None
        if self.shape in KEYS:
            return [(key, self.leaf.want(value[key])) for key in sorted(value)]
        return [*map(self.leaf.want, value)] if self.shape == "list" else self.leaf.want(value)


@st.composite
def messages(draw: Any, depth: int = 2) -> Leaf:
    """A message of some fields, in a row's column."""
    result, fields = DescriptorProto(name=f"M{next(NUMBERS)}"), dict[str, Field]()
    for place in range(draw(st.integers(1, 5))):
        is_nested = depth and draw(st.integers(0, 3)) == 0
        leaf = draw(messages(depth - 1)) if is_nested else draw(st.sampled_from(LEAVES))
        field = fields[f"f{place}"] = Field(leaf, draw(st.sampled_from(SHAPES)))
        field.declare(result, f"f{place}")
    kinds = {name: field.kind for name, field in fields.items() if field.kind is not None}

    def send(value: dict[str, Any]) -> dict[str, Any]:
        sent = [field.send(name, value[name]) for name, field in fields.items()]
        return {name: item for items in sent for name, item in items.items()}

    def want(value: dict[str, Any]) -> dict[str, Any]:
        return {name: fields[name].want(value[name]) for name in kinds} | {"absent": None}

    row = pa.struct([*kinds.items(), ("absent", pa.int32())])  # the schema lacks it
    values = st.fixed_dictionaries({name: field.values for name, field in fields.items()})
    needed = [inner for field in fields.values() for inner in field.leaf.inner]
    return Leaf(f".shop.{result.name}", row, values, want, send, inner=(result, *needed))


def file_with(leaf: Leaf) -> Any:
    file = file_of(*{inner.name: inner for inner in leaf.inner}.values())
    status = file.enum_type.add(name="Status")
    for number, name in enumerate(("NEW", "PAID")):
        status.value.add(name=name, number=number)
    return file


@given(st.data(), messages())
def test_columns_are_what_was_put_into_the_messages_whatever_is_beside_them(
    lasting_registry: SmallRegistry, data: Any, leaf: Leaf
) -> None:
    """Under two schema ids in a batch, with nulls and broken records among them, in any order."""
    file = file_with(leaf)
    make = classes(file)[str(leaf.type)[1:]]
    numbers = [lasting_registry.add_protobuf(file) for _ in range(2)]
    good = list[tuple[bytes | None, Any]]()
    for value in data.draw(st.lists(leaf.values, min_size=1, max_size=5)):
        sent = record(data.draw(st.sampled_from(numbers)), make(**leaf.send(value)))
        good += [(sent, leaf.want(value)), (None, None)]
    head = header(numbers[0]) + b"\0"
    broken = st.binary(max_size=6) | st.binary(max_size=9).map(head.__add__)
    bad = [head + b"\xff", header(65535) + b"\0", *data.draw(st.lists(broken, max_size=4))]
    order = data.draw(st.permutations(range(len(good) + len(bad))))
    read = registry_reader("protobuf", lasting_registry.url, leaf.kind)
    first, second, *_ = require_rows(read, good, bad, order)
    assert first.startswith(f"{PREFIX}DecodeError: Error parsing message with type ")
    assert second.startswith(f"{PREFIX}Schema not found")


def read(registry: SmallRegistry, *records: bytes, **columns: pa.DataType) -> list[Any]:
    """A row, or a problem's text, for each."""
    reader = registry_reader("protobuf", registry.url, pa.struct(columns))
    return registry_rows(reader, *records)


STRUCT = ".google.protobuf.Struct"
MOMENT = datetime.datetime(2023, 7, 26, 10, 22, 47, 48491, datetime.timezone.utc)
WHEN = "it {seconds: 1690366967 nanos: 48491999}"
DEEP = """it {
  fields {key: "b" value {list_value {values {bool_value: true} values {null_value: NULL_VALUE} values {string_value: "é"}}}}
  fields {key: "a" value {struct_value {fields {key: "x" value {string_value: "1"}}}}}
}"""
KINDS: list[tuple[int | str, str, pa.DataType, Any]] = [
    (STAMP, WHEN, pa.string(), "2023-07-26T10:22:47.048491999Z"),
    (STAMP, "it {}", INSTANT, EPOCH),
    (STAMP, WHEN, pa.int64(), "give the column the type that it has"),
    (STAMP, WHEN, CLOCK, "it: 2023-07-26 10:22:47.048491+00:00 has a time zone; take a timestamp column"),
    (STAMP, "it {seconds: 253402300800}", INSTANT, "ValueError: 253402300800 s and 0 ns are not a google.protobuf.Timestamp"),
    (STAMP, "it {nanos: -1}", INSTANT, "ValueError: 0 s and -1 ns are not a google.protobuf.Timestamp"),
    (STAMP, "it {nanos: -1}", pa.string(), "ValueError: Timestamp is not valid: "),
    (DURATION, "it {seconds: -90 nanos: -500000000}", pa.string(), "-90.500s"),
    (DURATION, "it {seconds: -1 nanos: 500000000}", SPAN, "s and 500000000 ns are not a google.protobuf.Duration"),
    (STRUCT, DEEP, pa.string(), '{"a":{"x":"1"},"b":[true,null,"é"]}'),
    (STRUCT, DEEP, pa.map_(pa.string(), pa.string()), [("a", '{"x":"1"}'), ("b", '[true,null,"é"]')]),
    (".google.type.Date", "it {year: 2024 month: 2}", pa.date32(), "ValueError: day is out of range for month"),
    (".google.type.Date", "it {year: 2024 month: 2}", pa.string(), '{"day":0,"month":2,"year":2024}'),
    (".google.protobuf.Int64Value", "it {}", pa.int64(), 0),
    (".google.protobuf.Int64Value", "it {}", pa.struct([("value", pa.int64())]), {"value": 0}),
    (".confluent.type.Decimal", "it {}", pa.decimal128(5, 2), Decimal("0.00")),
    (".google.type.Decimal", "it {}", pa.decimal128(5, 2), Decimal("0.00")),
    (F.TYPE_UINT64, f"it: {1 << 63}", pa.int64(), "it: "),
    (F.TYPE_STRING, 'it: "2023-07-26T12:22:47.048491+02:00"', INSTANT, MOMENT),
]


@pytest.mark.parametrize(("of", "text", "kind", "wanted"), KINDS)
def test_a_value_is_of_the_column_or_there_is_a_problem(
    registry: SmallRegistry, of: int | str, text: str, kind: pa.DataType, wanted: Any
) -> None:
    """A problem is told by its words, and is that of its record alone; without the field there is its default, or null."""
    file = file_of(message("Row", it=of))
    number = registry.add_protobuf(file)
    sent = record(number, text_format.Parse(text, classes(file)["shop.Row"]()))
    empty = header(number) + b"\0"
    first, result, last = read(registry, empty, sent, empty, it=kind)
    assert first == last
    assert isinstance(first, str) or (first["it"] is None) == isinstance(of, str)
    if isinstance(wanted, str) and (wanted.count(" ") > 1 or wanted.endswith(": ")):
        assert wanted in result
    else:
        assert result == {"it": wanted}


def test_a_message_that_has_itself_and_one_in_a_text_column(registry: SmallRegistry) -> None:
    """In a text it is Protobuf's JSON in the order of names, also of a list and a map."""
    node = message("Node", long_name=F.TYPE_INT64, next=".shop.Node")
    add_field(node, "all", ".shop.Node", label=3)
    add_map(node, "shop.Node", "by", F.TYPE_INT32, ".shop.Node")
    file = file_of(node)
    inner = {"long_name": 2}
    value = {"long_name": 1, "next": inner, "all": [inner, inner], "by": {7: inner, -3: inner}}
    sent = record(registry.add_protobuf(file), classes(file)["shop.Node"](**value))
    text = '{"all":[],"by":{},"long_name":"2"}'
    step = pa.struct({"long_name": pa.int64(), "next": pa.struct({"long_name": pa.int64()})})
    (row,) = read(registry, sent, next=step, all=pa.string(), by=pa.string())
    texts = {"all": f"[{text},{text}]", "by": f'{{"-3":{text},"7":{text}}}'}
    assert row == {"next": {"long_name": 2, "next": None}, **texts}
    (row,) = read(registry, sent, next=pa.string(), all=pa.list_(pa.string()))
    assert row == {"next": text, "all": [text, text]}


def test_in_the_second_syntax_fields_have_presence(registry: SmallRegistry) -> None:
    """A default of the schema is null where nothing was written; an unknown number of an enum was not written."""
    row = DescriptorProto(name="Row")
    add_field(row, "count", F.TYPE_INT32, default_value="5")
    add_field(row, "status", F.TYPE_ENUM, type_name=".shop.Status", label=2)
    row.nested_type.append(message("Part", id=F.TYPE_INT32))
    add_field(row, "part", F.TYPE_GROUP, type_name=".shop.Row.Part")
    file = file_of(row)
    file.ClearField("syntax")
    file.enum_type.add(name="Status").value.add(name="NEW", number=0)
    value = {"count": 0, "status": 0, "part": {"id": 3}}
    number = registry.add_protobuf(file)
    head = header(number) + b"\0"
    records = record(number, classes(file)["shop.Row"](**value)), head, head + b"\x10\x07"
    columns = {"count": pa.int32(), "status": pa.string(), "part": pa.struct({"id": pa.int32()})}
    nothing = dict.fromkeys(columns)
    assert read(registry, *records, **columns) == [{**value, "status": "NEW"}, nothing, nothing]


def test_of_two_names_of_a_number_the_first_is_the_enums(registry: SmallRegistry) -> None:
    """Protobuf's JSON has it, too, and so does each implementation of the package."""
    row = DescriptorProto(name="Row")
    add_field(row, "state", F.TYPE_ENUM, type_name=".shop.State")
    file = file_of(row)
    state = file.enum_type.add(name="State")
    state.options.allow_alias = True
    for name, value in (("NEW", 0), ("STARTED", 1), ("RUNNING", 1)):
        state.value.add(name=name, number=value)
    sent = record(registry.add_protobuf(file), classes(file)["shop.Row"](state=1))
    assert read(registry, sent, state=pa.string()) == [{"state": "STARTED"}]
