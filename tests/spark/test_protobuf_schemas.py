"""Schemas of Protobuf: which of their messages a record has, what they import, and what a registry may answer."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from fkjoin.errors import FkJoinError
from fkjoin.spark.protobuf_schemas import message_index
from tests.support.protobuf import add_map, classes, file_of, message, record
from tests.support.schema_registry import SmallRegistry, header, registry_reader, registry_rows

ID = pa.struct([("id", pa.int32())])


def read(registry: SmallRegistry, *records: bytes, kind: pa.StructType = ID) -> list[Any]:
    """A row, or a problem's text, for each."""
    return registry_rows(registry_reader("protobuf", registry.url, kind, retry_s=0), *records)


def a_record(registry: SmallRegistry) -> bytes:
    """A record of a schema that the registry has, with the id 1."""
    file = file_of(message("Row", id=F.TYPE_INT32))
    return record(registry.add_protobuf(file), classes(file)["shop.Row"](id=1))


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
    for at, (name, indexes) in enumerate(places.items()):
        records = [record(number, made[f"shop.{name}"](id=at), index) for index in indexes]
        assert read(registry, *records) == [{"id": at}] * len(indexes)
    wrong = {b"\2\6": [3], b"\2\1": [-1], b"\4\2\x0a": [1, 5], b"\4\0\0": [0, 0]}
    problems = read(registry, *(header(number) + index + b"\x08\x09" for index in wrong))
    assert problems == [f"schema {number} has no message {index}" for index in wrong.values()]
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
    whole = message("Order", id=F.TYPE_INT32, line=".line.Line", total=".money.Money")
    order = file_of(whole, imports=("money.proto", "line.proto"))
    to_money, to_line = ("money.proto", "money", 3), ("line.proto", "line", 1)
    registry.subjects = {("money", 4): registry.add_protobuf(newer), ("money", 3): registry.add_protobuf(money)}
    registry.subjects["line", 1] = registry.add_protobuf(line, (to_money,))
    number = registry.add_protobuf(order, (to_line, to_money))
    only_one = registry.add_protobuf(order, (to_line,))
    money.name, line.name = "money.proto", "line.proto"
    row = {"id": 3, "line": {"price": {"cents": 5}}, "total": {"cents": 6}}
    sent = classes(money, line, order)["shop.Order"](**row)
    cents = pa.struct([("cents", pa.int64())])
    columns = {"id": pa.int32(), "line": pa.struct([("price", cents)]), "total": cents}
    kind = pa.struct(columns)
    assert read(registry, record(number, sent), kind=kind) == [row]
    assert registry.asked["/subjects/money/versions/3"] == registry.asked["/subjects/line/versions/1"] == 1
    assert registry.asked["/subjects/money/versions/4"] == 0
    assert read(registry, record(only_one, sent), kind=kind) == [
        f"schema {only_one} imports money.proto, which is not among its references"
    ]


def test_what_a_schema_refers_to_and_is_not_there_is_the_records_problem(registry: SmallRegistry) -> None:
    row, nowhere = message("Row", id=F.TYPE_INT32), "google/protobuf/nowhere.proto"
    to_gone = (("gone.proto", "gone", 1),)
    gone = registry.add_protobuf(file_of(row, imports=("gone.proto",)), to_gone)
    unlisted = registry.add_protobuf(file_of(row, imports=(nowhere,)))
    unknown = registry.add_protobuf(file_of(message("Row", id=".shop.Nowhere")))
    avro = registry.add("[]", "AVRO")
    broken = registry.add(base64.b64encode(b"no descriptor").decode(), "PROTOBUF")
    cases = {
        gone: "Schema not found",
        unlisted: f"schema {unlisted} imports {nowhere}, which is not among its references",
        unknown: f"schema {unknown} cannot be used: Couldn't build",
        avro: f"schema {avro} is AVRO; fkjoin reads PROTOBUF here",
        broken: f"schema {broken} cannot be parsed: Error parsing message",
        77: "Schema not found",
    }
    problems = read(registry, *(header(number) + b"\0" for number in cases))
    for problem, words in zip(problems, cases.values(), strict=True):
        assert problem.startswith(words)


def test_known_types_need_no_reference_and_one_that_is_given_counts(registry: SmallRegistry) -> None:
    """Files of Google and Confluent that are imported, also one that no message uses; a registry may have its own."""
    imports = ("google/type/latlng.proto", "google/protobuf/any.proto", "confluent/meta.proto")
    file = file_of(message("Row", id=F.TYPE_INT32, where=".google.type.LatLng"), imports=imports)
    body = header(registry.add_protobuf(file)) + b"\0\x08\5\x12\x09\x09" + b"\0" * 6 + b"\xf0\x3f"
    kind = pa.struct([("id", pa.int32()), ("where", pa.struct([("latitude", pa.float64())]))])
    assert read(registry, body, kind=kind) == [{"id": 5, "where": {"latitude": 1.0}}]
    own = FileDescriptorProto(package="google.type", syntax="proto3", message_type=[message("LatLng", note=F.TYPE_STRING)])
    registry.subjects["own", 1] = registry.add_protobuf(own)
    number = registry.add_protobuf(file, (("google/type/latlng.proto", "own", 1),))
    kind, body = pa.struct({"where": pa.struct({"note": pa.string()})}), b"\0\x12\3\x0a\1x"
    assert read(registry, header(number) + body, kind=kind) == [{"where": {"note": "x"}}]


def test_a_registry_that_gives_only_texts_stops_the_batch_and_one_with_descriptors_does_not(registry: SmallRegistry) -> None:
    sent = a_record(registry)
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
    sent = a_record(registry)
    (problem,) = registry_rows(registry_reader("json", registry.url, ID), sent)
    assert "is PROTOBUF; fkjoin reads JSON here" in problem
    assert read(registry, sent) == [{"id": 1}]


def test_a_registry_that_refuses_descriptors_is_told_apart_from_one_that_refuses_the_login(registry: SmallRegistry) -> None:
    sent = a_record(registry)
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
        (problem,) = read(registry, header(number) + b"\0\x08\1")
        assert problem.startswith(f"schema {number} imports money.proto in two versions: ('money', ")


def test_a_schema_that_cannot_be_read_with_is_the_records_problem(registry: SmallRegistry) -> None:
    """A registry's own file of a known type may lack what the type has."""
    own = FileDescriptorProto(package="google.type", syntax="proto3", message_type=[message("Decimal", text=F.TYPE_STRING)])
    registry.subjects["own", 1] = registry.add_protobuf(own)
    file = file_of(message("Row", price=".google.type.Decimal"))
    file.dependency[:] = ["google/type/decimal.proto"]
    number = registry.add_protobuf(file, (("google/type/decimal.proto", "own", 1),))
    kind = pa.struct([("price", pa.decimal128(5, 2))])
    (problem,) = read(registry, header(number) + b"\0", kind=kind)
    assert problem.startswith(f"schema {number} cannot be used: KeyError")
