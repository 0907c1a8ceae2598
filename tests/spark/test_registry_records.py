"""Records of a registry: read together as each alone, and as fastavro and a plain conversion of its values say."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec.avro_schemas import rewritten
from fkjoin.codec.json_read import Reading, read_objects
from fkjoin.spark.registry_records import ReadRegistry, RegistryRecords
from fkjoin.spark.schema_registry import SchemaRegistry
from tests.support.schema_registry import SmallRegistry, framed, small_registry

DAYS = st.dates(datetime.date(1, 1, 3), datetime.date(9999, 12, 29))
MOMENTS = st.datetimes(datetime.datetime(1, 1, 3), datetime.datetime(9999, 12, 29))
INSTANT, CLOCK = pa.timestamp("us", "UTC"), pa.timestamp("us")
TIMES = st.times()


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def millis(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values.map(lambda value: value.replace(microsecond=value.microsecond // 1000 * 1000))


def aware(values: st.SearchStrategy[datetime.datetime]) -> st.SearchStrategy[datetime.datetime]:
    return values.map(lambda value: value.replace(tzinfo=datetime.timezone.utc))


def logical(of: str, means: str, **more: Any) -> dict[str, Any]:
    return {"type": of, "logicalType": means, **more}


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**digits) + 1, 10**digits - 1).map(lambda number: Decimal(number).scaleb(-scale))


FIXED = {"type": "fixed", "name": "F", "size": 3}
LEAVES: list[tuple[Any, pa.DataType, st.SearchStrategy[Any]]] = [
    ("string", pa.string(), st.text()),
    ("boolean", pa.bool_(), st.booleans()),
    ("int", pa.int32(), whole(32)),
    ("int", pa.int64(), whole(32)),
    ("long", pa.int64(), whole(64)),
    ("double", pa.float64(), st.floats(allow_nan=False)),
    ("float", pa.float32(), st.floats(width=32, allow_nan=False)),
    ("bytes", pa.binary(), st.binary()),
    (FIXED, pa.binary(), st.binary(min_size=3, max_size=3)),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), st.sampled_from("AB")),
    (logical("bytes", "decimal", precision=9, scale=3), pa.decimal128(9, 3), decimals(9, 3)),
    (logical("bytes", "decimal", precision=9, scale=3), pa.decimal128(12, 1), decimals(9, 3)),
    (logical("fixed", "decimal", name="D", size=4, precision=9, scale=0), pa.decimal128(12, 2), decimals(9, 0)),
    (logical("long", "timestamp-millis"), INSTANT, aware(millis(MOMENTS))),
    (logical("long", "timestamp-micros"), INSTANT, aware(MOMENTS)),
    (logical("long", "local-timestamp-millis"), CLOCK, millis(MOMENTS)),
    (logical("long", "local-timestamp-micros"), CLOCK, MOMENTS),
    (logical("int", "date"), pa.date32(), DAYS),
    (logical("int", "time-millis"), pa.time64("ns"), millis(TIMES)),
    (logical("long", "time-micros"), pa.time64("ns"), TIMES),
    (logical("string", "uuid"), pa.string(), st.uuids()),
    (["null", "string", "long"], pa.string(), st.none() | st.text() | whole(64)),
    (["null", logical("long", "timestamp-micros"), "string"], pa.string(), st.none() | aware(MOMENTS) | st.text()),
]  # fmt: skip


@st.composite
def kinds(draw: Any, depth: int = 2) -> tuple[Any, pa.DataType | None, st.SearchStrategy[Any]]:
    """A schema, the column (None: it is not wanted), and values."""
    what = draw(
        st.sampled_from(["leaf"] * 6 + ["optional", "unwanted", "text", *(["record", "array", "map"] if depth else [])])
    )
    if what == "record":
        return draw(records(depth - 1))
    if what == "leaf":
        return draw(st.sampled_from(LEAVES))
    schema, kind, values = draw(kinds(depth - 1 if depth else 0))
    if what == "array":
        return {"type": "array", "items": schema}, kind and pa.list_(kind), st.lists(values, max_size=3)
    if what == "map":
        return (
            {"type": "map", "values": schema},
            kind and pa.map_(pa.string(), kind),
            st.dictionaries(st.text(), values, max_size=3),
        )
    if what == "unwanted":
        return schema, None, values
    if what == "text":
        return schema, kind if kind is None or has_bytes(schema) else pa.string(), values
    nested = isinstance(schema, list)
    return (schema, kind, values) if nested else (["null", schema], kind, st.none() | values)


def has_bytes(schema: Any) -> bool:
    text = json.dumps(schema)
    return '"bytes"' in text or '"fixed"' in text


@st.composite
def records(draw: Any, depth: int = 2) -> tuple[Any, pa.StructType, st.SearchStrategy[Any]]:
    fields = draw(st.lists(kinds(depth), min_size=1, max_size=5))
    names = [f"f{place}" for place in range(len(fields))]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": of} for name, (of, _, _) in zip(names, fields, strict=True)],
    }
    row = [(name, kind) for name, (_, kind, _) in zip(names, fields, strict=True) if kind is not None]
    row.append(("absent", pa.int32()))  # the schema lacks it
    return schema, pa.struct(row), st.fixed_dictionaries({name: of for name, (_, _, of) in zip(names, fields, strict=True)})


def named(schema: Any, count: list[int]) -> Any:
    """The schema with names of its own for each type."""
    if isinstance(schema, list):
        return [named(branch, count) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: named(value, count) if key in ("items", "values") else value for key, value in schema.items()}
    if "name" in made:
        count[0] += 1
        made["name"] = f"t{count[0]}"
    if "fields" in made:
        made["fields"] = [{**item, "type": named(item["type"], count)} for item in made["fields"]]
    return made


def as_column(value: Any, kind: pa.DataType) -> Any:
    """The value that a column has of one of fastavro's."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {item.name: as_column(value.get(item.name), item.type) for item in kind}
    if pa.types.is_list(kind):
        return [as_column(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return [(key, as_column(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_string(kind) and not isinstance(value, str):
        text = json.dumps(value, default=as_json, ensure_ascii=False, separators=(",", ":"))
        return json.loads(text) if text.startswith('"') else text
    if pa.types.is_decimal(kind):
        return value.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)
    return float(np.float32(value)) if pa.types.is_float32(kind) else value


def as_json(value: Any) -> str:
    return str(value) if isinstance(value, Decimal | uuid.UUID) else value.isoformat()


@pytest.fixture(scope="module")
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as made:
        yield made


def reader(registry: SmallRegistry, kind: pa.StructType, **more: Any) -> ReadRegistry:
    return ReadRegistry(pa.schema(list(kind)), RegistryRecords("avro", SchemaRegistry(registry.url, **more), Reading()))


@given(st.data(), st.lists(records(), min_size=1, max_size=2))
def test_columns_are_what_fastavro_reads_record_by_record(registry: SmallRegistry, data: Any, made: list[Any]) -> None:
    """A batch has records of one or two schemas, nulls and broken records; the columns are those of the first schema."""
    kind = made[0][1]
    records, wanted = list[bytes | None](), list[Any]()
    for schema, _, values in [one for one in made if one[1] == kind]:
        schema = named(schema, [0])
        number = registry.add(schema)
        for value in data.draw(st.lists(values, min_size=1, max_size=4)):
            good = framed(number, schema, value)
            again = fastavro.schemaless_reader(io.BytesIO(good[5:]), fastavro.parse_schema(schema), None)
            records += [good, None]
            wanted += [as_column(again, kind), None]
    broken = st.binary(max_size=6) | st.binary(max_size=9).map(good[:5].__add__)
    records += [good[:-1], b"\0\0\0\xff\xff?", *data.draw(st.lists(broken, max_size=4))]
    order = data.draw(st.permutations(range(len(records))))
    read = reader(registry, kind)
    found = read(pa.array([records[at] for at in order], pa.binary()))
    assert found.rows.type == kind
    assert found.deleted.tolist() == [records[at] is None for at in order]
    for place, at in enumerate(order):
        problem, row = found.problem[place].as_py(), found.rows.slice(place, 1)
        if at < len(wanted):
            assert (problem, row.to_pylist()) == (None, [wanted[at]])
        else:
            alone = read(pa.array([records[at]]))
            assert alone.problem[0].as_py() == problem
            assert alone.rows.to_string() == row.to_string()  # also years that Python does not know
    assert "not avro of the registry's schema: Schema not found" in found.problem[order.index(len(wanted) + 1)].as_py()


RECORD = {"type": "record", "name": "inner", "fields": [{"name": "a", "type": "long"}]}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
MOMENT = datetime.datetime(2023, 7, 26, 10, 22, 47, 48491, datetime.timezone.utc)
KINDS: list[tuple[Any, Any, pa.DataType, Any]] = [
    (RECORD, {"a": 1}, pa.string(), '{"a":1}'),
    ({"type": "array", "items": ["null", "string"]}, ["é", None], pa.string(), '["é",null]'),
    ("boolean", True, pa.string(), "true"),
    (logical("bytes", "decimal", precision=6, scale=2), Decimal("12.50"), pa.string(), "12.50"),
    (MICROS, MOMENT, pa.string(), "2023-07-26T10:22:47.048491+00:00"),
    (LOCAL, MOMENT.replace(tzinfo=None), INSTANT, "it: 2023-07-26 10:22:47.048491 has no time zone; take a"),
    (MICROS, MOMENT, CLOCK, "has a time zone; take a timestamp column"),
    ("long", 1690366967048491, INSTANT, 'it: 1690366967048491 is a number without a unit; give units={"it": "micros"}'),
    ("bytes", b"ab", pa.string(), "it: bytes are not text; take a binary column"),
    ({"type": "map", "values": "bytes"}, {"k": b"ab"}, pa.string(), "it: bytes in a text column; give the column"),
    ("string", "ab", pa.binary(), 'it: a text may be base64 or hex; give units={"it": "base64"}'),
    ("string", "2023-07-26T12:22:47.048491+02:00", INSTANT, MOMENT),
    ("string", "12.5", pa.decimal128(6, 2), Decimal("12.50")),
    ("long", (1 << 53) + 1, pa.float64(), "it: a double column cannot store 9007199254740993 exactly; take a bigint or"),
    ("long", (1 << 24) + 1, pa.float32(), "it: a float column cannot store 16777217 exactly; take a bigint or decimal"),
    ("double", 1e39, pa.float32(), "it: 1e+39 is too large for a float column; take a double column"),
    ("long", 125, pa.decimal128(6, 2), Decimal("125.00")),
    ("long", 12500, pa.decimal128(6, 2), "it: 12500 in a column of another type"),
    ("double", 12.5, pa.decimal128(6, 2), "it: 12.5 is float; give the column the type that it has"),
    ("boolean", True, pa.float64(), "it: True is bool; give the column the type that it has"),
    ("long", 1 << 40, pa.int32(), "it: "),
    ({"type": "array", "items": RECORD}, [{"a": 1}], pa.list_(pa.struct([("a", pa.string())])), [{"a": "1"}]),
]  # fmt: skip


@pytest.mark.parametrize(("avro", "value", "kind", "wanted"), KINDS)
def test_a_text_is_json_and_an_instant_an_instant_or_there_is_a_problem(
    registry: SmallRegistry, avro: Any, value: Any, kind: pa.DataType, wanted: Any
) -> None:
    """A problem is known by its words, and is that of its record alone."""
    schema = {"type": "record", "name": "row", "fields": [{"name": "it", "type": ["null", avro]}]}
    number = registry.add(schema)
    some = [framed(number, schema, {"it": one}) for one in (None, value, None)]
    found = reader(registry, pa.struct([("it", kind)]))(pa.array(some, pa.binary()))
    first, problem, last = found.problem.to_pylist()
    assert first is last is None
    if (isinstance(wanted, str) and wanted.count(" ") > 1) or wanted == "it: ":
        assert wanted in problem.removeprefix("not avro of the registry's schema: ")
        assert found.rows.to_pylist() == [{"it": None}] * 3
    else:
        assert [row["it"] for row in found.rows.to_pylist()] == [None, wanted, None]
        assert problem is None


def test_a_type_that_is_wanted_in_two_ways_and_one_that_has_itself(registry: SmallRegistry) -> None:
    """One type is wanted with columns, as a text, and not at all; a recursive type is read as fastavro reads it."""
    inner = {"type": "record", "name": "a.I", "fields": [{"name": "at", "type": MICROS}]}
    fields = [("unwanted", inner), ("row", "a.I"), ("text", "a.I"), ("list", {"type": "array", "items": "a.I"})]
    schema = {"type": "record", "name": "a.R", "fields": [{"name": name, "type": of} for name, of in fields]}
    number = registry.add(schema)
    value = {"unwanted": {"at": MOMENT}, "row": {"at": MOMENT}, "text": {"at": MOMENT}, "list": [{"at": MOMENT}]}
    at = pa.struct([("at", INSTANT)])
    kind = pa.struct([("list", pa.list_(at)), ("row", at), ("text", pa.string())])
    found = reader(registry, kind)(pa.array([framed(number, schema, value)]))
    assert found.rows.to_pylist() == [
        {"list": [{"at": MOMENT}], "row": {"at": MOMENT}, "text": f'{{"at":"{MOMENT.isoformat()}"}}'}
    ]
    tree = {"type": "record", "name": "T", "fields": [{"name": "at", "type": MICROS}, {"name": "next", "type": ["null", "T"]}]}
    number = registry.add(tree)
    whole = framed(number, tree, {"at": MOMENT, "next": {"at": MOMENT, "next": None}})
    found = reader(registry, pa.struct([("at", INSTANT), ("next", at)]))(pa.array([whole]))
    assert found.rows.to_pylist() == [{"at": MOMENT, "next": {"at": MOMENT}}]


def test_a_type_that_is_used_again_and_again_is_rewritten_once(registry: SmallRegistry) -> None:
    """Each type of a chain has the one before it twice; the first is a decimal in a fixed."""
    schema: Any = logical("fixed", "decimal", name="T0", size=2, precision=4, scale=1)
    kind, value = pa.decimal128(4, 1), Decimal("1.5")
    for depth in range(1, 9):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"T{depth - 1}"}]
        schema = {"type": "record", "name": f"T{depth}", "fields": fields}
        kind, value = pa.struct([("a", kind), ("b", kind)]), {"a": value, "b": value}
    row = {"type": "record", "name": "R", "fields": [{"name": "unwanted", "type": schema}, {"name": "it", "type": "T8"}]}
    wanted = pa.struct([("it", kind)])
    found = rewritten(fastavro.parse_schema(row), wanted)
    assert json.dumps(found.schema).count('"fields"') == 1 + 2 * 8
    record = framed(registry.add(row), row, {"unwanted": value, "it": value})
    assert reader(registry, wanted)(pa.array([record])).rows.to_pylist() == [{"it": value}]


def test_what_is_no_record_and_schemas_of_another_kind_are_problems(registry: SmallRegistry) -> None:
    kind = pa.struct([("a", pa.int32())])
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    added = [
        ('"string"', "AVRO"),
        ("syntax = 'proto3';", "PROTOBUF"),
        ('{"type": "record"}', "AVRO"),
        (["null", record], "AVRO"),
    ]
    heads = [b"\0" + registry.add(schema, of).to_bytes(4, "big") for schema, of in added]
    found = reader(registry, kind)(
        pa.array([head + body for head, body in zip(heads, [b"\2x", b"?", b"?", b"\0"], strict=True)])
    )
    first, second, third, last = found.problem.to_pylist()
    assert first.endswith("'x' is not a record")
    assert second.endswith(" is PROTOBUF; fkjoin reads AVRO here")
    assert " cannot be parsed: " in third
    assert last is None
    assert found.rows.to_pylist()[3] == {"a": None}


def test_where_a_union_has_two_kinds_of_numbers_one_has_no_unit_of_the_other(registry: SmallRegistry) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "it", "type": ["int", MICROS]}]}
    number = registry.add(schema)
    some = [framed(number, schema, {"it": value}) for value in (MOMENT, ("int", 5))]
    found = reader(registry, pa.struct([("it", INSTANT)]))(pa.array(some))
    assert found.rows.to_pylist() == [{"it": MOMENT}, {"it": None}]
    first, second = found.problem.to_pylist()
    assert first is None
    assert "it: 5 is a number without a unit" in second


NUMBERS = st.one_of(
    st.none(),
    st.integers(-(10**6), 10**6).map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(-(10**6), 10**6, places=3).map(str),
    st.sampled_from(["1e3", "1.005", "-0.0", "0.1000000000000000055511151231257827", "1E-300", '"1.5"', "true", "{}"]),
)


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.decimal128(9, 2), pa.decimal128(38, 4)])
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=6))
def test_numbers_behind_a_registry_are_those_of_json(registry: SmallRegistry, kind: pa.DataType, numbers: list[Any]) -> None:
    """Only a whole number that a column of ``double`` or ``float`` cannot have exactly is a problem behind a registry alone."""
    number = registry.schemas.index(ANY_JSON) + 1 if ANY_JSON in registry.schemas else registry.add("{}", "JSON")
    texts = [b'{"it": %s}' % (text or "null").encode() for text in numbers]
    row = pa.struct([("it", kind)])
    read = ReadRegistry(pa.schema(list(row)), RegistryRecords("json", SchemaRegistry(registry.url), Reading()))
    found = read(pa.array([b"\0" + number.to_bytes(4, "big") + text for text in texts]))
    plain = read_objects(pa.array([text.decode() for text in texts]), row)
    for text, one, problem, other in zip(
        numbers, found.rows.to_pylist(), found.problem.to_pylist(), plain.rows.to_pylist(), strict=True
    ):
        inexact = pa.types.is_floating(kind) and str(text).lstrip("-").isdigit() and other["it"] != int(text)
        assert one == ({"it": None} if inexact else other or {"it": None})
        assert (problem is None) == (not inexact and (text is None or one["it"] is not None))


ANY_JSON = {"schema": "{}", "schemaType": "JSON"}
