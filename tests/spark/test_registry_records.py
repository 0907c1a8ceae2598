"""Records of a registry: read together as each alone, and as fastavro and a plain conversion of its values say."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import re
import uuid
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec.avro_schemas import rewritten
from fkjoin.codec.json_read import read_objects
from tests.support.schema_registry import (
    SmallRegistry,
    framed,
    header,
    record_of,
    registry_reader,
    registry_rows,
    require_rows,
)

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


FOUR = logical("fixed", "decimal", name="@", size=4, precision=9, scale=0)
FIXED = {"type": "fixed", "name": "@", "size": 3}
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
    ({"type": "enum", "name": "@", "symbols": ["A", "B"]}, pa.string(), st.sampled_from("AB")),
    (logical("bytes", "decimal", precision=9, scale=3), pa.decimal128(9, 3), decimals(9, 3)),
    (logical("bytes", "decimal", precision=9, scale=3), pa.decimal128(12, 1), decimals(9, 3)),
    (FOUR, pa.decimal128(12, 2), decimals(9, 0)),
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


SHAPES = ["leaf"] * 6 + ["optional", "unwanted", "text"]


@st.composite
def kinds(draw: Any, depth: int = 2) -> tuple[Any, pa.DataType | None, st.SearchStrategy[Any]]:
    """A schema, the column (None: it is not wanted), and values."""
    shape = draw(st.sampled_from([*SHAPES, *(["record", "array", "map"] if depth else [])]))
    if shape == "record":
        return draw(records(depth - 1))
    if shape == "leaf":
        return draw(st.sampled_from(LEAVES))
    schema, kind, values = draw(kinds(depth - 1 if depth else 0))
    if shape == "array":
        items = {"type": "array", "items": schema}
        return items, kind and pa.list_(kind), st.lists(values, max_size=3)
    if shape == "map":
        column = kind and pa.map_(pa.string(), kind)
        pairs = st.dictionaries(st.text(), values, max_size=3)
        return {"type": "map", "values": schema}, column, pairs
    if shape == "unwanted":
        return schema, None, values
    if shape == "text":
        return schema, kind if kind is None or has_bytes(schema) else pa.string(), values
    nested = isinstance(schema, list)
    return (schema, kind, values) if nested else (["null", schema], kind, st.none() | values)


def has_bytes(schema: Any) -> bool:
    text = json.dumps(schema)
    return '"bytes"' in text or '"fixed"' in text


@st.composite
def records(draw: Any, depth: int = 2) -> tuple[Any, pa.StructType, st.SearchStrategy[Any]]:
    fields = draw(st.lists(kinds(depth), min_size=1, max_size=5))
    parts = {f"f{place}": field for place, field in enumerate(fields)}
    schema = record_of("@", **{name: of for name, (of, _, _) in parts.items()})
    row = [(name, kind) for name, (_, kind, _) in parts.items() if kind is not None]
    row.append(("absent", pa.int32()))  # the schema lacks it
    values = st.fixed_dictionaries({name: of for name, (_, _, of) in parts.items()})
    return schema, pa.struct(row), values


def named(schema: Any) -> Any:
    """The schema with a name of its own for each type."""
    numbers = itertools.count()
    return json.loads(re.sub('"@"', lambda _: f'"t{next(numbers)}"', json.dumps(schema)))


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


def read(registry: SmallRegistry, *values: bytes | None, **columns: pa.DataType) -> list[Any]:
    """A row, or a problem's text, for each."""
    return registry_rows(registry_reader("avro", registry.url, pa.struct(columns)), *values)


@given(st.data(), st.lists(records(), min_size=1, max_size=2))
def test_columns_are_what_fastavro_reads_of_each_record(lasting_registry: SmallRegistry, data: Any, made: Any) -> None:
    """A batch has records of one or two schemas, nulls and broken records; the columns are those of the first schema."""
    kind, good = made[0][1], list[tuple[bytes | None, Any]]()
    for schema, _, values in [one for one in made if one[1] == kind]:
        schema = named(schema)
        number, parsed = lasting_registry.add(schema), fastavro.parse_schema(schema)
        for value in data.draw(st.lists(values, min_size=1, max_size=4)):
            record = framed(number, schema, value)
            again = fastavro.schemaless_reader(io.BytesIO(record[5:]), parsed, None)
            good += [(record, as_column(again, kind)), (None, None)]
    broken = st.binary(max_size=6) | st.binary(max_size=9).map(record[:5].__add__)
    bad = [record[:-1], header(65535) + b"?", *data.draw(st.lists(broken, max_size=4))]
    order = data.draw(st.permutations(range(len(good) + len(bad))))
    reader = registry_reader("avro", lasting_registry.url, kind)
    _, unknown, *_ = require_rows(reader, good, bad, order)
    assert "not avro of the registry's schema: Schema not found" in unknown


RECORD = record_of("inner", a="long")
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
MOMENT = datetime.datetime(2023, 7, 26, 10, 22, 47, 48491, datetime.timezone.utc)
KINDS: list[tuple[Any, Any, pa.DataType, Any]] = [
    (RECORD, {"a": 1}, pa.string(), '{"a":1}'),
    ({"type": "array", "items": ["null", "string"]}, ["é", None], pa.string(), '["é",null]'),
    (logical("bytes", "decimal", precision=6, scale=2), Decimal("12.50"), pa.string(), "12.50"),
    (MICROS, MOMENT, pa.string(), "2023-07-26T10:22:47.048491+00:00"),
    (LOCAL, MOMENT.replace(tzinfo=None), INSTANT, "it: 2023-07-26 10:22:47.048491 has no time zone; take a"),
    (MICROS, MOMENT, CLOCK, "has a time zone; take a timestamp column"),
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
    ("long", 1 << 40, pa.int32(), "it: "),
    ({"type": "array", "items": RECORD}, [{"a": 1}], pa.list_(pa.struct([("a", pa.string())])), [{"a": "1"}]),
]  # fmt: skip


@pytest.mark.parametrize(("avro", "value", "kind", "wanted"), KINDS)
def test_a_text_is_json_and_an_instant_an_instant_or_there_is_a_problem(
    registry: SmallRegistry, avro: Any, value: Any, kind: pa.DataType, wanted: Any
) -> None:
    """A problem is known by its words, and is that of its record alone."""
    schema = record_of("row", it=["null", avro])
    number = registry.add(schema)
    some = [framed(number, schema, {"it": one}) for one in (None, value, None)]
    first, result, last = read(registry, *some, it=kind)
    assert first == last == {"it": None}
    if (isinstance(wanted, str) and wanted.count(" ") > 1) or wanted == "it: ":
        assert wanted in result
    else:
        assert result == {"it": wanted}


def test_a_type_that_is_wanted_in_two_ways_and_one_that_has_itself(registry: SmallRegistry) -> None:
    """One type is wanted with columns, as a text, and not at all; a recursive type is read as fastavro reads it."""
    inner, row = record_of("a.I", at=MICROS), {"at": MOMENT}
    many = {"type": "array", "items": "a.I"}
    schema = record_of("a.R", unwanted=inner, row="a.I", text="a.I", list=many)
    value = {"unwanted": row, "row": row, "text": row, "list": [row]}
    record = framed(registry.add(schema), schema, value)
    at = pa.struct({"at": INSTANT})
    rows = read(registry, record, list=pa.list_(at), row=at, text=pa.string())
    assert rows == [{"list": [row], "row": row, "text": f'{{"at":"{MOMENT.isoformat()}"}}'}]
    tree = record_of("T", at=MICROS, next=["null", "T"])
    record = framed(registry.add(tree), tree, {**row, "next": {**row, "next": None}})
    assert read(registry, record, at=INSTANT, next=at) == [{**row, "next": row}]


def test_a_type_that_is_used_again_and_again_is_rewritten_once(registry: SmallRegistry) -> None:
    """Each type of a chain has the one before it twice; the first is a decimal in a fixed."""
    schema: Any = logical("fixed", "decimal", name="T0", size=2, precision=4, scale=1)
    kind, value = pa.decimal128(4, 1), Decimal("1.5")
    for depth in range(1, 9):
        schema = record_of(f"T{depth}", a=schema, b=f"T{depth - 1}")
        kind, value = pa.struct([("a", kind), ("b", kind)]), {"a": value, "b": value}
    row = record_of("R", unwanted=schema, it="T8")
    result = rewritten(fastavro.parse_schema(row), pa.struct({"it": kind}))
    assert json.dumps(result.schema).count('"fields"') == 1 + 2 * 8
    record = framed(registry.add(row), row, {"unwanted": value, "it": value})
    assert read(registry, record, it=kind) == [{"it": value}]


def test_what_is_no_record_and_schemas_of_another_kind_are_problems(registry: SmallRegistry) -> None:
    cases: list[tuple[Any, str, bytes, Any]] = [
        ('"string"', "AVRO", b"\2x", "'x' is not a record"),
        ("syntax = 'proto3';", "PROTOBUF", b"?", " is PROTOBUF; fkjoin reads AVRO here"),
        ('{"type": "record"}', "AVRO", b"?", " cannot be parsed: "),
        (["null", record_of("R", a="int")], "AVRO", b"\0", {"a": None}),
    ]
    records = [header(registry.add(schema, kind)) + body for schema, kind, body, _ in cases]
    *problems, row = read(registry, *records, a=pa.int32())
    for problem, (*_, words) in zip(problems, cases, strict=False):
        assert words in problem
    assert row == {"a": None}


def test_where_a_union_has_two_kinds_of_numbers_one_has_no_unit_of_the_other(registry: SmallRegistry) -> None:
    schema = record_of("R", it=["int", MICROS])
    number = registry.add(schema)
    some = [framed(number, schema, {"it": value}) for value in (MOMENT, ("int", 5))]
    row, problem = read(registry, *some, it=INSTANT)
    assert row == {"it": MOMENT}
    assert "it: 5 is a number without a unit" in problem


NUMBERS = st.one_of(
    st.none(),
    st.integers(-(10**6), 10**6).map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(-(10**6), 10**6, places=3).map(str),
    st.sampled_from(["1e3", "1.005", "-0.0", "0.1000000000000000055511151231257827", "1E-300", '"1.5"', "true", "{}"]),
)


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.decimal128(9, 2), pa.decimal128(38, 4)])
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=6))
def test_numbers_behind_a_registry_are_those_of_json(
    lasting_registry: SmallRegistry, kind: pa.DataType, numbers: list[Any]
) -> None:
    """Only a whole number that a column of ``double`` or ``float`` cannot have exactly is a problem behind a registry alone."""
    head = header(lasting_registry.add("{}", "JSON"))
    texts = [f'{{"it": {text or "null"}}}' for text in numbers]
    row = pa.struct({"it": kind})
    reader = registry_reader("json", lasting_registry.url, row)
    results = registry_rows(reader, *(head + text.encode() for text in texts))
    plain = read_objects(pa.array(texts), row).rows.to_pylist()
    for text, result, other in zip(numbers, results, plain, strict=True):
        is_whole = pa.types.is_floating(kind) and str(text).lstrip("-").isdigit()
        if is_whole and other["it"] != int(text):
            assert isinstance(result, str)
        elif text is None or (other or {}).get("it") is not None:
            assert result == (other or {"it": None})
        else:
            assert isinstance(result, str)
