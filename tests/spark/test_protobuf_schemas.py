"""Schemas of Protobuf: which of their messages a record has, what they import, and what a registry may answer."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F

from fkjoin.codec.json_read import Reading
from fkjoin.errors import FkJoinError
from fkjoin.spark.protobuf_schemas import message_index
from fkjoin.spark.registry_records import ReadRegistry, RegistryRecords
from fkjoin.spark.schema_registry import SchemaRegistry
from tests.support.protobuf import add_field, add_map, classes, file_of, record
from tests.support.schema_registry import SmallRegistry, small_registry

ID = pa.struct([("id", pa.int32())])


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as made:
        yield made


def read(registry: SmallRegistry, *records: bytes, kind: pa.StructType = ID) -> list[Any]:
    """A row, or a problem's text, for each."""
    records_of = RegistryRecords("protobuf", SchemaRegistry(registry.url, retry_s=0), Reading())
    found = ReadRegistry(pa.schema(list(kind)), records_of)(pa.array(records, pa.binary()))
    problems = [
        problem and problem.removeprefix("not protobuf of the registry's schema: ") for problem in found.problem.to_pylist()
    ]
    return [problem or row for row, problem in zip(found.rows.to_pylist(), problems, strict=True)]


def message(name: str, *inner: DescriptorProto, **fields: int | str) -> DescriptorProto:
    made = DescriptorProto(name=name, nested_type=inner)
    for title, kind in fields.items():
        add_field(made, title, kind)
    return made


def test_a_record_says_which_message_of_its_schema_it_is(registry: SmallRegistry) -> None:
    """By its place in the file, then in the message around it, where what maps consist of counts, wherever it is."""
    around = message("Around")
    add_map(around, "shop.Around", "a", F.TYPE_STRING, F.TYPE_STRING)
    around.nested_type.extend([message("Zero", id=F.TYPE_INT32), message("One", message("Deep", id=F.TYPE_INT32))])
    add_map(around, "shop.Around", "b", F.TYPE_STRING, F.TYPE_STRING)
    around.nested_type.append(message("Two", id=F.TYPE_INT32))
    file = file_of(message("Last", id=F.TYPE_INT32), around, message("Early", id=F.TYPE_INT32))
    made, number = classes(file), registry.add_protobuf(file)
    places = {
        "Last": (b"\0", b"\2\0"),
        "Early": (b"\2\4",),
        "Around.Zero": (b"\4\2\2",),
        "Around.One.Deep": (b"\6\2\4\0",),
        "Around.Two": (b"\4\2\x08",),
    }
    wanted = {
        record(number, made[f"shop.{name}"](id=at), place): at for at, name in enumerate(places, 1) for place in places[name]
    }
    assert read(registry, *wanted) == [{"id": at} for at in wanted.values()]
    body = record(number, made["shop.Last"](id=9))[6:]
    head = b"\0" + number.to_bytes(4, "big")
    wrong = {b"\2\6": [3], b"\2\1": [-1], b"\4\2\x0a": [1, 5], b"\4\0\0": [0, 0]}
    assert read(registry, *(head + place + body for place in wrong)) == [
        f"schema {number} has no message {index}" for index in wrong.values()
    ]
    assert registry.asked == {f"/schemas/ids/{number}": 2}, "in the usual form for its kind, and as a descriptor, once"


@pytest.mark.parametrize(
    ("octets", "index", "length"),
    [(b"\0", (0,), 1), (b"\2\0", (0,), 2), (b"\4\x02\x80\x01", (1, 64), 4), (b"\2\xfe\xff\xff\xff\x0f", (2147483647,), 6)],
)
def test_an_index_is_zigzag_numbers_behind_their_count(octets: bytes, index: tuple[int, ...], length: int) -> None:
    assert message_index(b"head" + octets + b"tail", 4) == (index, 4 + length)
    for end in range(len(octets)):
        with pytest.raises(ValueError, match="the record ends in the index"):
            message_index(b"head" + octets[:end], 4)
    with pytest.raises(ValueError, match="101 is not the length of a message's index"):
        message_index(b"\xca\1" + b"\0" * 101, 0)


def test_schemas_import_others_which_import_others(registry: SmallRegistry) -> None:
    """Two of them import the same one; a version that is referred to is the one that is read."""
    money = file_of(message("Money", cents=F.TYPE_INT64), package="money")
    newer = file_of(message("Money", cents=F.TYPE_STRING), package="money")
    line = file_of(message("Line", price=".money.Money"), package="line", imports=("money.proto",))
    order = file_of(
        message("Order", id=F.TYPE_INT32, line=".line.Line", total=".money.Money"), imports=("money.proto", "line.proto")
    )
    to_money = ("money.proto", "money", 3)
    registry.subjects = {("money", 4): registry.add_protobuf(newer), ("money", 3): registry.add_protobuf(money)}
    registry.subjects["line", 1] = registry.add_protobuf(line, (to_money,))
    number = registry.add_protobuf(order, (("line.proto", "line", 1), to_money))
    only_one = registry.add_protobuf(order, (("line.proto", "line", 1),))
    for file, name in ((money, "money.proto"), (line, "line.proto")):
        file.name = name
    made = classes(money, line, order)["shop.Order"]
    sent = made(id=3, line={"price": {"cents": 5}}, total={"cents": 6})
    cents = pa.struct([("cents", pa.int64())])
    kind = pa.struct([("id", pa.int32()), ("line", pa.struct([("price", cents)])), ("total", cents)])
    row = {"id": 3, "line": {"price": {"cents": 5}}, "total": {"cents": 6}}
    assert read(registry, record(number, sent), kind=kind) == [row]
    assert registry.asked["/subjects/money/versions/3"] == registry.asked["/subjects/line/versions/1"] == 1
    assert registry.asked["/subjects/money/versions/4"] == 0
    assert read(registry, record(only_one, sent), kind=kind) == [
        f"schema {only_one} imports money.proto, which is not among its references"
    ]


def test_what_a_schema_refers_to_and_is_not_there_is_the_records_problem(registry: SmallRegistry) -> None:
    row = message("Row", id=F.TYPE_INT32)
    added = [
        registry.add_protobuf(file_of(row, imports=("gone.proto",)), (("gone.proto", "gone", 1),)),
        registry.add_protobuf(file_of(row, imports=("google/protobuf/nowhere.proto",))),
        registry.add_protobuf(file_of(message("Row", id=".shop.Nowhere"))),
        registry.add("[]", "AVRO"),
        registry.add(base64.b64encode(b"no descriptor").decode(), "PROTOBUF"),
        77,
    ]
    found = read(registry, *(b"\0" + number.to_bytes(4, "big") + b"\0" for number in added))
    wanted = [
        "Schema not found",
        f"schema {added[1]} imports google/protobuf/nowhere.proto, which is not among its references",
        f"schema {added[2]} cannot be used: Couldn't build",
        f"schema {added[3]} is AVRO; fkjoin reads PROTOBUF here",
        f"schema {added[4]} cannot be parsed: Error parsing message",
        "Schema not found",
    ]
    for problem, words in zip(found, wanted, strict=True):
        assert problem.startswith(words)


def test_known_types_need_no_reference_and_one_that_is_given_counts(registry: SmallRegistry) -> None:
    """Files of Google and Confluent that are imported, also one that no message uses; a registry may have its own."""
    imports = ("google/type/latlng.proto", "google/protobuf/any.proto", "confluent/meta.proto")
    file = file_of(message("Row", id=F.TYPE_INT32, where=".google.type.LatLng"), imports=imports)
    body = b"\0" + registry.add_protobuf(file).to_bytes(4, "big") + b"\0\x08\5\x12\x09\x09" + b"\0" * 6 + b"\xf0\x3f"
    kind = pa.struct([("id", pa.int32()), ("where", pa.struct([("latitude", pa.float64())]))])
    assert read(registry, body, kind=kind) == [{"id": 5, "where": {"latitude": 1.0}}]
    own = FileDescriptorProto(package="google.type", syntax="proto3", message_type=[message("LatLng", note=F.TYPE_STRING)])
    registry.subjects["own", 1] = registry.add_protobuf(own)
    number = registry.add_protobuf(file, (("google/type/latlng.proto", "own", 1),))
    kind = pa.struct([("where", pa.struct([("note", pa.string())]))])
    assert read(registry, b"\0" + number.to_bytes(4, "big") + b"\0\x12\3\x0a\1x", kind=kind) == [{"where": {"note": "x"}}]


def test_a_registry_that_gives_only_texts_stops_the_batch_and_one_with_descriptors_does_not(registry: SmallRegistry) -> None:
    file = file_of(message("Row", id=F.TYPE_INT32))
    sent = record(registry.add_protobuf(file), classes(file)["shop.Row"](id=1))
    texts, registry.descriptors = registry.descriptors, {}
    with pytest.raises(FkJoinError, match=f"^schema registry {registry.url} gives schema 1 as a text.* such as Confluent's$"):
        read(registry, sent)
    registry.schemas[0]["schema"] = "// of Währungen"
    with pytest.raises(FkJoinError, match="gives schema 1 as a text"):
        read(registry, sent)
    registry.descriptors = texts
    assert read(registry, sent) == [{"id": 1}], "what it said before is forgotten"


def test_a_schema_that_was_read_as_another_kind_is_read(registry: SmallRegistry) -> None:
    """The client keeps a schema in the form in which it was asked for first."""
    file = file_of(message("Row", id=F.TYPE_INT32))
    sent = record(registry.add_protobuf(file), classes(file)["shop.Row"](id=1))
    as_json = ReadRegistry(pa.schema(list(ID)), RegistryRecords("json", SchemaRegistry(registry.url, retry_s=0), Reading()))
    assert "is PROTOBUF; fkjoin reads JSON here" in as_json(pa.array([sent])).problem[0].as_py()
    assert read(registry, sent) == [{"id": 1}]


def test_a_registry_that_refuses_descriptors_is_told_apart_from_one_that_refuses_the_login(registry: SmallRegistry) -> None:
    file = file_of(message("Row", id=F.TYPE_INT32))
    sent = record(registry.add_protobuf(file), classes(file)["shop.Row"](id=1))
    answers = iter([None, (501, "not implemented")])
    registry.refuses = lambda _: next(answers)
    with pytest.raises(FkJoinError, match="refuses: .*501.* The registry may not provide descriptors .* such as Confluent's$"):
        read(registry, sent)
    registry.refuses = lambda _: None
    assert read(registry, sent) == [{"id": 1}]


def test_a_file_in_two_versions_is_the_records_problem(registry: SmallRegistry) -> None:
    """The order of imports would decide which of them counts."""
    money = registry.add_protobuf(file_of(message("Money", cents=F.TYPE_INT64), package="money"))
    newer = registry.add_protobuf(file_of(message("Money", cents=F.TYPE_INT64, of=F.TYPE_INT32), package="money"))
    line = file_of(message("Line", price=".money.Money"), package="line", imports=("money.proto",))
    registry.subjects = {("money", 1): money, ("money", 2): newer}
    registry.subjects["line", 1] = registry.add_protobuf(line, (("money.proto", "money", 1),))
    references = ("line.proto", "line", 1), ("money.proto", "money", 2)
    for imports in (("money.proto", "line.proto"), ("line.proto", "money.proto")):
        order = file_of(message("Order", id=F.TYPE_INT32, line=".line.Line", total=".money.Money"), imports=imports)
        number = registry.add_protobuf(order, references)
        (problem,) = read(registry, b"\0" + number.to_bytes(4, "big") + b"\0\x08\1")
        assert problem.startswith(f"schema {number} imports money.proto in two versions: ('money', ")


def test_a_schema_that_cannot_be_read_with_is_the_records_problem(registry: SmallRegistry) -> None:
    """A registry's own file of a known type may lack what the type has."""
    own = FileDescriptorProto(package="google.type", syntax="proto3", message_type=[message("Decimal", text=F.TYPE_STRING)])
    registry.subjects["own", 1] = registry.add_protobuf(own)
    file = file_of(message("Row", price=".google.type.Decimal"))
    file.dependency[:] = ["google/type/decimal.proto"]
    number = registry.add_protobuf(file, (("google/type/decimal.proto", "own", 1),))
    kind = pa.struct([("price", pa.decimal128(5, 2))])
    (problem,) = read(registry, b"\0" + number.to_bytes(4, "big") + b"\0", kind=kind)
    assert problem.startswith(f"schema {number} cannot be used: KeyError")
