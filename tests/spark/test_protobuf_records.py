"""Records of Protobuf: read together as each alone, and as the values that were put into the messages."""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec.json_read import Reading
from fkjoin.spark.registry_records import ReadRegistry, RegistryRecords
from fkjoin.spark.schema_registry import SchemaRegistry
from tests.support.protobuf import add_field, add_map, classes, file_of, record
from tests.support.schema_registry import SmallRegistry, small_registry

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
INSTANT, CLOCK, SPAN = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us")
PREFIX = "not protobuf of the registry's schema: "


class Leaf(NamedTuple):
    """A type of a field, a column for it, and values."""

    type: int | str
    kind: pa.DataType
    values: st.SearchStrategy[Any]
    want: Callable[[Any], Any] = lambda value: value
    """Function that makes the column's value of one."""
    fill: Callable[[Any, Any], None] | None = None
    """Puts a value into a message; None: the type is none of a message."""
    more: Mapping[str, Any] = MappingProxyType({})
    inner: tuple[DescriptorProto, ...] = ()
    """Messages that the type needs."""


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def natural(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def wrapper(name: str, kind: pa.DataType, values: st.SearchStrategy[Any]) -> Leaf:
    return Leaf(f".google.protobuf.{name}Value", kind, values, fill=lambda message, value: setattr(message, "value", value))


def fill(**names: int) -> Callable[[Any, Any], None]:
    """Puts the items of a value into fields."""

    def put(message: Any, value: Any) -> None:
        for name, place in names.items():
            setattr(message, name, value[place])

    return put


def counted(value: tuple[int, int]) -> datetime.timedelta:
    return datetime.timedelta(seconds=value[0], microseconds=value[1] // 1000)


def put_decimal(message: Any, value: Decimal) -> None:
    unscaled, message.scale = int(value.scaleb(3)), 3
    message.value = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)


def put_text(message: Any, value: Decimal) -> None:
    message.value = str(value)


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
STATUS = {"type_name": ".shop.Status"}

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
    Leaf(F.TYPE_ENUM, pa.string(), st.sampled_from([0, 1, 7]), enum_name, more=STATUS),
    Leaf(F.TYPE_ENUM, pa.int32(), st.sampled_from([0, 1, 7]), more=STATUS),
    wrapper("Int32", pa.int64(), whole(32)),
    wrapper("String", pa.string(), st.text()),
    Leaf(".google.protobuf.Timestamp", INSTANT, MOMENTS, lambda value: EPOCH + counted(value), fill(seconds=0, nanos=1)),
    Leaf(".google.protobuf.Timestamp", pa.struct([("nanos", pa.int32()), ("seconds", pa.int64())]), MOMENTS,
         lambda value: {"nanos": value[1], "seconds": value[0]}, fill(seconds=0, nanos=1)),
    Leaf(".google.protobuf.Duration", SPAN, SPANS, counted, fill(seconds=0, nanos=1)),
    Leaf(".google.type.Date", pa.date32(), DAYS, lambda value: datetime.date(*value), fill(year=0, month=1, day=2)),
    Leaf(".google.type.TimeOfDay", pa.time64("us"), TIMES, lambda value: datetime.time(*value[:3], value[3] // 1000),
         fill(hours=0, minutes=1, seconds=2, nanos=3)),
    Leaf(".google.type.Decimal", pa.decimal128(14, 2), THOUSANDTHS, rounded, put_text),
    Leaf(".confluent.type.Decimal", pa.decimal128(14, 2), THOUSANDTHS, rounded, put_decimal),
]  # fmt: skip


class Field(NamedTuple):
    """A field of a message, its column (None: it is not wanted), and values (None: it is not set)."""

    declare: Callable[[DescriptorProto, str], None]
    kind: pa.DataType | None
    values: st.SearchStrategy[Any]
    put: Callable[[Any, str, Any], None]
    want: Callable[[Any], Any]
    inner: tuple[DescriptorProto, ...]


def put(leaf: Leaf, shape: str, message: Any, name: str, value: Any) -> None:
    """Puts a value into a field; of a oneof the other member where there is none."""
    field = getattr(message, name)
    if shape == "oneof":
        setattr(message, f"{name}_other", 5)
    if shape == "list":
        for one in value:
            if leaf.fill is None:
                field.append(one)
            else:
                leaf.fill(field.add(), one)
    elif shape in ("text", "whole"):
        for key, one in value.items():
            if leaf.fill is None:
                field[key] = one
            else:
                leaf.fill(field[key], one)
    elif value is not None and leaf.fill is None:
        setattr(message, name, value)
    elif value is not None:
        getattr(message, name).SetInParent()
        leaf.fill(getattr(message, name), value)  # type: ignore[misc]


def declared(leaf: Leaf, shape: str) -> Callable[[DescriptorProto, str], None]:
    def declare(message: DescriptorProto, name: str) -> None:
        if shape == "optional" and isinstance(leaf.type, int):
            add_field(message, name, leaf.type, proto3_optional=True, **leaf.more)
        elif shape == "oneof":
            at = len(message.oneof_decl)
            message.oneof_decl.add(name=f"{name}_choice")
            add_field(message, name, leaf.type, oneof_index=at, **leaf.more)
            add_field(message, f"{name}_other", F.TYPE_INT32, oneof_index=at)
        elif shape in ("text", "whole"):
            key = F.TYPE_STRING if shape == "text" else F.TYPE_SINT32
            add_map(message, f"shop.{message.name}", name, key, leaf.type, **leaf.more)
        else:
            add_field(message, name, leaf.type, label=3 if shape == "list" else 1, **leaf.more)

    return declare


NUMBERS = itertools.count()
SHAPES = ["plain"] * 3 + ["optional", "oneof", "list", "text", "whole", "unwanted"]


@st.composite
def fields(draw: Any, depth: int) -> Field:
    nested = depth and draw(st.integers(0, 3)) == 0
    leaf = draw(messages(depth - 1)) if nested else draw(st.sampled_from(LEAVES))
    shape = draw(st.sampled_from(SHAPES))
    declare, filled, want = declared(leaf, shape), functools.partial(put, leaf, shape), leaf.want
    if shape == "list":
        values = st.lists(leaf.values, max_size=3)
        return Field(declare, pa.list_(leaf.kind), values, filled, lambda value: [*map(want, value)], leaf.inner)
    if shape in ("text", "whole"):
        key, kind = (st.text(), pa.string()) if shape == "text" else (whole(32), pa.int32())
        made, values = pa.map_(kind, leaf.kind), st.dictionaries(key, leaf.values, max_size=3)
        return Field(declare, made, values, filled, lambda value: [(k, want(value[k])) for k in sorted(value)], leaf.inner)
    values = leaf.values if shape == "plain" and leaf.fill is None else st.none() | leaf.values
    kind = None if shape == "unwanted" else leaf.kind
    return Field(declare, kind, values, filled, lambda value: None if value is None else want(value), leaf.inner)


@st.composite
def messages(draw: Any, depth: int = 2) -> Leaf:
    """A message of some fields, in a row's column."""
    made = draw(st.lists(fields(depth), min_size=1, max_size=5))
    names = [f"f{place}" for place in range(len(made))]
    message = DescriptorProto(name=f"M{next(NUMBERS)}")
    for name, one in zip(names, made, strict=True):
        one.declare(message, name)
    parts = dict(zip(names, made, strict=True))
    wanted = {name: one.kind for name, one in parts.items() if one.kind is not None}

    def put_all(into: Any, value: dict[str, Any]) -> None:
        for name, one in parts.items():
            one.put(into, name, value[name])

    def want(value: dict[str, Any]) -> dict[str, Any]:
        return {**{name: parts[name].want(value[name]) for name in wanted}, "absent": None}

    return Leaf(
        f".shop.{message.name}",
        pa.struct([*wanted.items(), ("absent", pa.int32())]),  # the schema lacks it
        st.fixed_dictionaries({name: one.values for name, one in parts.items()}),
        want,
        put_all,
        inner=(message, *(inner for one in made for inner in one.inner)),
    )


def file_with(leaf: Leaf) -> Any:
    file = file_of(*{message.name: message for message in leaf.inner}.values())
    status = file.enum_type.add(name="Status")
    for number, name in enumerate(("NEW", "PAID")):
        status.value.add(name=name, number=number)
    return file


@pytest.fixture(scope="module")
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as made:
        yield made


def reader(registry: SmallRegistry, kind: pa.StructType) -> ReadRegistry:
    return ReadRegistry(pa.schema(list(kind)), RegistryRecords("protobuf", SchemaRegistry(registry.url), Reading()))


@given(st.data(), messages())
def test_columns_are_what_was_put_into_the_messages_whatever_is_beside_them(
    registry: SmallRegistry, data: Any, leaf: Leaf
) -> None:
    """Under two schema ids in a batch, with nulls and broken records among them, in any order."""
    file = file_with(leaf)
    made = classes(file)[leaf.type[1:]]  # type: ignore[index]
    numbers = registry.add_protobuf(file), registry.add_protobuf(file)
    records, wanted = list[bytes | None](), list[Any]()
    for value in data.draw(st.lists(leaf.values, min_size=1, max_size=5)):
        message = made()
        leaf.fill(message, value)  # type: ignore[misc]
        records += [record(data.draw(st.sampled_from(numbers)), message), None]
        wanted += [leaf.want(value), None]
    head = b"\0" + numbers[0].to_bytes(4, "big")
    broken = st.binary(max_size=6) | st.binary(max_size=9).map((head + b"\0").__add__)
    records += [head + b"\0\xff", b"\0\0\0\xff\xff\0", *data.draw(st.lists(broken, max_size=4))]
    order = data.draw(st.permutations(range(len(records))))
    read = reader(registry, leaf.kind)
    found = read(pa.array([records[at] for at in order], pa.binary()))
    assert found.rows.type == leaf.kind
    assert found.deleted.tolist() == [records[at] is None for at in order]
    for place, at in enumerate(order):
        problem = found.problem[place].as_py()
        if at < len(wanted):
            assert problem is None
            assert records[at] is None or found.rows[place].as_py() == wanted[at]
        else:
            alone = read(pa.array([records[at]], pa.binary()))
            assert alone.problem[0].as_py() == problem
            assert alone.rows.to_string() == found.rows.slice(place, 1).to_string()
    first, second = (found.problem[order.index(len(wanted) + at)].as_py() for at in (0, 1))
    assert first.startswith(f"{PREFIX}DecodeError: Error parsing message with type ")
    assert second.startswith(f"{PREFIX}Schema not found")


STAMP, DURATION, STRUCT = ".google.protobuf.Timestamp", ".google.protobuf.Duration", ".google.protobuf.Struct"
MOMENT = datetime.datetime(2023, 7, 26, 10, 22, 47, 48491, datetime.timezone.utc)
WHEN = "it {seconds: 1690366967 nanos: 48491999}"
DEEP = """it {
  fields {key: "b" value {list_value {values {bool_value: true} values {null_value: NULL_VALUE} values {string_value: "é"}}}}
  fields {key: "a" value {struct_value {fields {key: "x" value {string_value: "1"}}}}}
}"""
KINDS: list[tuple[int | str, str, pa.DataType, Any]] = [
    (STAMP, WHEN, pa.string(), "2023-07-26T10:22:47.048491999Z"),
    (STAMP, "it {}", INSTANT, EPOCH),
    (STAMP, WHEN, CLOCK, "it: 2023-07-26 10:22:47.048491+00:00 has a time zone; take a timestamp column"),
    (STAMP, WHEN, pa.int64(), "give the column the type that it has"),
    (STAMP, "it {nanos: -1}", INSTANT, "ValueError: 0 s and -1 ns are not a google.protobuf.Timestamp"),
    (STAMP, "it {nanos: -1}", pa.string(), "ValueError: Timestamp is not valid: "),
    (STAMP, "it {seconds: 253402300800}", INSTANT, "ValueError: 253402300800 s and 0 ns are not a google.protobuf.Timestamp"),
    (DURATION, "it {seconds: -90 nanos: -500000000}", pa.string(), "-90.500s"),
    (DURATION, "it {seconds: -1 nanos: 500000000}", SPAN, "s and 500000000 ns are not a google.protobuf.Duration"),
    (DURATION, f"it {{seconds: {1 << 62}}}", SPAN, "s and 0 ns are not a google.protobuf.Duration"),
    (STRUCT, DEEP, pa.string(), '{"a":{"x":"1"},"b":[true,null,"é"]}'),
    (STRUCT, DEEP, pa.map_(pa.string(), pa.string()), [("a", '{"x":"1"}'), ("b", '[true,null,"é"]')]),
    (".google.type.Date", "it {year: 2024 month: 2}", pa.date32(), "ValueError: day is out of range for month"),
    (".google.type.Date", "it {year: 2024 month: 2}", pa.string(), '{"day":0,"month":2,"year":2024}'),
    (".google.protobuf.Int64Value", "it {}", pa.int64(), 0),
    (".google.protobuf.Int64Value", "it {}", pa.struct([("value", pa.int64())]), {"value": 0}),
    (".confluent.type.Decimal", "it {}", pa.decimal128(5, 2), Decimal("0.00")),
    (".google.type.Decimal", "it {}", pa.decimal128(5, 2), Decimal("0.00")),
    (F.TYPE_UINT64, f"it: {1 << 63}", pa.int64(), "it: "),
    (F.TYPE_UINT32, f"it: {1 << 31}", pa.int32(), "it: "),
    (F.TYPE_INT64, f"it: {(1 << 53) + 1}", pa.float64(), "it: a double column cannot store 9007199254740993 exactly; take a"),
    (F.TYPE_INT64, "it: 1690366967048491", INSTANT, 'is a number without a unit; give units={"it": "micros"}'),
    (F.TYPE_STRING, 'it: "2023-07-26T12:22:47.048491+02:00"', INSTANT, MOMENT),
    (F.TYPE_BYTES, 'it: "ab"', pa.string(), "it: bytes are not text; take a binary column"),
]


@pytest.mark.parametrize(("of", "text", "kind", "wanted"), KINDS)
def test_a_value_is_of_the_column_or_there_is_a_problem(
    registry: SmallRegistry, of: int | str, text: str, kind: pa.DataType, wanted: Any
) -> None:
    """A problem is told by its words, and is that of its record alone; without the field there is its default, or null."""
    row = DescriptorProto(name="Row")
    add_field(row, "it", of)
    file = file_of(row)
    message = text_format.Parse(text, classes(file)["shop.Row"]())
    number = registry.add_protobuf(file)
    empty = b"\0" + number.to_bytes(4, "big") + b"\0"
    found = reader(registry, pa.struct([("it", kind)]))(pa.array([empty, record(number, message), empty], pa.binary()))
    first, problem, last = found.problem.to_pylist()
    rows = [row["it"] for row in found.rows.to_pylist()]
    assert first == last
    assert (rows[0] is None) == (isinstance(of, str) or first is not None)
    if isinstance(wanted, str) and (wanted.count(" ") > 1 or wanted.endswith(": ")):
        assert wanted in problem.removeprefix(PREFIX)
        assert rows[1] is None
    else:
        assert problem is None
        assert rows[1] == wanted


def test_a_message_that_has_itself_and_one_in_a_text_column(registry: SmallRegistry) -> None:
    """In a text it is Protobuf's JSON in the order of names, also of a list and a map."""
    node = DescriptorProto(name="Node")
    add_field(node, "long_name", F.TYPE_INT64)
    add_field(node, "next", ".shop.Node")
    add_field(node, "all", ".shop.Node", label=3)
    add_map(node, "shop.Node", "by", F.TYPE_INT32, ".shop.Node")
    file = file_of(node)
    made = classes(file)["shop.Node"]
    inner = made(long_name=2)
    message = made(long_name=1, next=inner, all=[inner, inner], by={7: inner, -3: inner})
    text = '{"all":[],"by":{},"long_name":"2"}'
    number = registry.add_protobuf(file)
    step = pa.struct([("long_name", pa.int64()), ("next", pa.struct([("long_name", pa.int64())]))])
    kind = pa.struct([("next", step), ("all", pa.string()), ("by", pa.string())])
    found = reader(registry, kind)(pa.array([record(number, message)]))
    row = {"next": {"long_name": 2, "next": None}, "all": f"[{text},{text}]", "by": f'{{"-3":{text},"7":{text}}}'}
    assert found.rows.to_pylist() == [row]
    assert found.problem.to_pylist() == [None]
    found = reader(registry, pa.struct([("next", pa.string()), ("all", pa.list_(pa.string()))]))(
        pa.array([record(number, message)])
    )
    assert found.rows.to_pylist() == [{"next": text, "all": [text, text]}]


def test_in_the_second_syntax_fields_have_presence(registry: SmallRegistry) -> None:
    """A default of the schema is null where nothing was written; an unknown number of an enum was not written."""
    row = DescriptorProto(name="Row")
    add_field(row, "count", F.TYPE_INT32, default_value="5")
    add_field(row, "status", F.TYPE_ENUM, type_name=".shop.Status", label=2)
    group = row.nested_type.add(name="Part")
    add_field(group, "id", F.TYPE_INT32)
    add_field(row, "part", F.TYPE_GROUP, type_name=".shop.Row.Part")
    file = file_of(row)
    file.ClearField("syntax")
    file.enum_type.add(name="Status").value.add(name="NEW", number=0)
    message = classes(file)["shop.Row"](count=0, status=0, part={"id": 3})
    number = registry.add_protobuf(file)
    kind = pa.struct([("count", pa.int32()), ("status", pa.string()), ("part", pa.struct([("id", pa.int32())]))])
    head = b"\0" + number.to_bytes(4, "big") + b"\0"
    found = reader(registry, kind)(pa.array([record(number, message), head, head + b"\x10\x07"]))
    nothing = {"count": None, "status": None, "part": None}
    assert found.rows.to_pylist() == [{"count": 0, "status": "NEW", "part": {"id": 3}}, nothing, nothing]
    assert found.problem.to_pylist() == [None] * 3


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
    found = reader(registry, pa.struct([("state", pa.string())]))(pa.array([sent], pa.binary()))
    assert found.rows.to_pylist() == [{"state": "STARTED"}]
