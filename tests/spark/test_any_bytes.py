"""Readers of bytes: whatever these are, each record has a row or a problem, the same as alone, and nothing is raised."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec.json_read import DEEPEST, Reading
from fkjoin.codec.units import UNSURE, Unit
from fkjoin.spark.change_events import ReadEvents, ReadKeys
from fkjoin.spark.event_rows import EventRows
from fkjoin.spark.json_lines import read_lines
from fkjoin.spark.registry_records import Kind, ReadAvroEvents, ReadRegistry, RegistryRecords
from fkjoin.spark.schema_registry import SchemaRegistry
from fkjoin.spark.topic_records import ReadBytes, Reader, ReadObjects, ValuesRead
from fkjoin.spark.unavailable import PLACEHOLDER
from tests.support.json_values import KINDS
from tests.support.protobuf import file_of, message
from tests.support.sampling import sampled
from tests.support.schema_registry import SmallRegistry, header, record_of

ROW = pa.schema([*KINDS.items(), ("map", pa.map_(pa.string(), pa.string())), ("list", pa.list_(pa.float32()))])
HOW = Reading({"at": Unit("micros"), "price": UNSURE, "data": Unit("hex")}, "Europe/Berlin")
TREE = record_of("Tree", text="string", next=["null", "Tree"])
EVENT = record_of("Event", op="string", before=["null", TREE], after=["null", "Tree"])
OF_TREE = pa.schema([("text", pa.string()), ("next", pa.string())])
AVRO, EVENTS, JSON, PROTOBUF = range(1, 5)
"""Ids of schemas."""


@pytest.fixture(scope="module")
def registry(lasting_registry: SmallRegistry) -> SmallRegistry:
    lasting_registry.add(TREE)
    lasting_registry.add(EVENT)
    lasting_registry.add("{}", "JSON")
    lasting_registry.add_protobuf(file_of(message("Tree", text=F.TYPE_STRING, next=".shop.Tree")))
    return lasting_registry


def readers(registry: SmallRegistry) -> dict[str, Reader]:
    def records(kind: Kind) -> RegistryRecords:
        return RegistryRecords(kind, SchemaRegistry(registry.url), HOW)

    return {
        "text": ReadBytes("it", text=True),
        "json": ReadObjects(ROW, "it", how=HOW),
        "json with its text": ReadObjects(ROW, "it", text_column="whole", how=HOW),
        "events": ReadEvents(EventRows(ROW), "it", HOW),
        "events with marks": ReadEvents(EventRows(ROW, marks=True), "it", HOW),
        "keys of events": ReadKeys(ROW, "it", HOW),
        "avro": ReadRegistry(OF_TREE, records("avro")),
        "json of a registry": ReadRegistry(ROW, records("json")),
        "protobuf": ReadRegistry(OF_TREE, records("protobuf")),
        "avro events": ReadAvroEvents(EventRows(OF_TREE), records("avro")),
    }


def nested(levels: int, objects: bool = True) -> str:
    if objects:
        return '{"a":' * levels + "1" + "}" * levels
    return "[" * levels + "]" * levels


def wide(levels: int) -> str:
    """A change event whose schema and row are about as deep."""
    value = nested(levels)
    return f'{{"schema":{{"fields":[{value}]}},"payload":{{"op":"c","after":{{"text":{value},"map":{{"k":{value}}}}}}}}}'


def tree(levels: int) -> bytes:
    """A record of Avro that has others within it."""
    return b"\x02t\x02" * levels + b"\x02t\x00"


LONG = "9" * 5000
NUMBERS = ["1e400", "1e39", "1e999999999999", "-1e-999999999999", LONG, "1.5e3", "Inf", "-NaN", "NaN"]
TEXTS = [f"P{LONG}D", "\\ud800", "\\udc00x", PLACEHOLDER, "²", "10:00", "AAAA", "2026-01-01T00:00:00+00:99"]
VALUES = [
    *NUMBERS,
    *(f"[{number}]" for number in NUMBERS),
    *(f'"{text}"' for text in TEXTS),
    *(f'{{"value":"AA==","scale":{scale}}}' for scale in (LONG, "-0", '"2"')),
    *("null", "{}", '{"value":"AA==",'),
]
LEVELS = [100, DEEPEST - 5, DEEPEST - 1, DEEPEST, 450, 600, 900, 3_000, 100_000]
values = st.sampled_from(VALUES) | st.builds(nested, st.sampled_from(LEVELS), st.booleans())
members = st.tuples(st.sampled_from([*ROW.names, "other", "op", "schema", "payload"]), values)
objects = st.lists(members, max_size=3).map(lambda some: "{" + ",".join(f'"{name}":{value}' for name, value in some) + "}")
DECIMAL = '"name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"…"}'
MEANINGS = ['"name":"io.debezium.time.Date"', '"name":"io.debezium.time.MicroTimestamp"', '"type":"string"']
MEANINGS += [DECIMAL.replace("…", scale) for scale in ("²", "--5", LONG, "2")]
schemas = st.builds(
    '{{"fields":[{{"field":"after","fields":[{{"field":"{}",{}}}]}}]}}'.format,
    st.sampled_from(ROW.names),
    st.sampled_from(MEANINGS),
)
bodies = st.builds('{{"op":"{}","before":{},"after":{}}}'.format, st.sampled_from("crudtmx"), objects, objects)
wrapped = st.builds('{{"schema":{},"payload":{}}}'.format, schemas | values, bodies | objects)
wrapped |= st.builds('\n {{"payload": {}, "schema": {}}}'.format, bodies | objects, schemas)
timed = st.builds(
    '{{"schema":{{"fields":[{{"field":"after","fields":[{{"field":"at","type":"int64"{}}}]}}]}},'
    '"payload":{{"op":"u","before":{{"text":"b"}},"after":{{"at":{},"text":{}}}}}}}'.format,
    st.sampled_from(["", *(f',"name":"io.debezium.time.{unit}Timestamp"' for unit in ("", "Micro", "Nano"))]),
    st.sampled_from(["null", "7", "86400000", '"2023-07-26T10:22:47Z"', '"x"']),
    st.sampled_from(["null", '"a"', f'"{PLACEHOLDER}"', f'["{PLACEHOLDER}"]']),
)
texts = (objects | bodies | wrapped | st.sampled_from(LEVELS).map(wide)).map(lambda text: text.encode())
cut = st.tuples(texts, st.integers(0, 400)).map(lambda both: both[0][: both[1]] + both[0][both[1] + 1 :])
trees = st.sampled_from(LEVELS).map(tree)
bare = texts | cut | trees | trees.map(lambda text: b"\x02c\x00\x02" + text) | st.binary(max_size=40)
framed = st.tuples(st.integers(0, 5), bare).map(lambda both: header(both[0]) + both[1])
framed |= bare.map(lambda text: header(PROTOBUF) + b"\0" + text)


def shown(found: ValuesRead, place: int) -> Any:
    problem = found.problem[place].as_py()
    return problem, bool(found.deleted[place]), None if problem else str(found.rows[place : place + 1])


def require_alike(read: Reader, some: list[bytes | None]) -> None:
    """Read records together and each alone; in a row of an event a placeholder is no value."""
    together = read(pa.array(some, pa.binary()))
    assert together.rows.type == pa.struct(list(read.schema))
    for place, data in enumerate(some):
        problem, deleted, row = shown(together, place)
        assert (problem, deleted, row) == shown(read(pa.array([data], pa.binary())), 0)
        assert not isinstance(read, ReadEvents) or row is None or f'"{PLACEHOLDER}"' not in row


NAMES = sampled(
    sorted(readers(SmallRegistry())),
    ["text", "json with its text", "events with marks", "json of a registry", "protobuf", "avro events"],
)
DEPTHS = sampled(LEVELS, [DEEPEST - 1, DEEPEST, 3_000])
PLACES = [
    '{"text":…,"number":1}',
    '{"number":1,"other":…}',
    '{"at":…,"span":…,"price":…,"list":[1,…],"map":{"k":…}}',
    '{"op":"c","after":{"text":…}}',
    f'{{"op":"u","before":{{"text":…}},"after":{{"text":"{PLACEHOLDER}","map":…}}}}',
    '{"schema":…,"payload":{"op":"c","after":{"text":"x"},"text":"x"}}',
    '{"schema":{"fields":[]},"payload":{"op":"c","after":{"at":…},"at":…}}',
]


@pytest.mark.faults
@pytest.mark.parametrize("name", NAMES)
def test_odd_values_wherever_they_are(registry: SmallRegistry, name: str) -> None:
    odd = [*VALUES, *(nested(levels, kind) for levels in DEPTHS for kind in (True, False))]
    bodies = [place.replace("…", value).encode() for place in PLACES for value in odd]
    head = {"json of a registry": JSON, "avro": AVRO, "avro events": EVENTS, "protobuf": PROTOBUF}.get(name)
    if head is None:
        require_alike(readers(registry)[name], [*bodies, b"\xff", b'{"text":"\xff"}'])
    else:
        bodies += [b"\x02c\x00" * (name == "avro events") + b"\x02" + tree(levels) for levels in LEVELS]
        require_alike(readers(registry)[name], [header(head) + body for body in bodies])


@pytest.mark.parametrize("name", NAMES)
@given(some=st.lists(st.none() | bare | framed, min_size=1, max_size=5))
def test_each_has_a_row_or_a_problem_as_alone(registry: SmallRegistry, name: str, some: list[bytes | None]) -> None:
    require_alike(readers(registry)[name], some)


@pytest.mark.parametrize("name", sampled(["events", "events with marks"], ["events"]))
@given(some=st.lists(timed, min_size=2, max_size=6))
def test_what_an_event_means_does_not_depend_on_those_beside_it(registry: SmallRegistry, name: str, some: list[str]) -> None:
    """Each has a schema part, which says what its number counts, or says nothing."""
    require_alike(readers(registry)[name], [one.encode() for one in some])


@given(some=st.lists(bare, min_size=1, max_size=5))
def test_lines_have_rows_or_problems_as_alone(some: list[bytes]) -> None:
    def read(given: list[bytes]) -> list[Any]:
        batch = pa.record_batch([pa.array(given, pa.binary()).view(pa.string())], ["value"])
        _, rows, problem = read_lines(batch, ROW, "it", HOW)
        return [(str(rows[place : place + 1]), problem[place].as_py()) for place in range(len(rows))]

    assert read(some) == [found for line in some for found in read([line])]


@pytest.mark.parametrize("levels", [100, 450, 900, 3_000, 100_000])
def test_a_deep_record_of_avro_is_its_json_or_a_problem(registry: SmallRegistry, levels: int) -> None:
    value: Any = None
    for _ in range(levels):
        value = {"text": "t", "next": value}
    result = readers(registry)["avro"](pa.array([header(AVRO) + tree(levels - 1)]))
    if result.problem[0].as_py() is None:
        text = json.dumps(value["next"], separators=(",", ":"))
        assert result.rows[0]["next"].as_py() == text
    else:
        assert levels > 100
