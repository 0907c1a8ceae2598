"""Debezium's events in Avro, with the schemas that Connect's Avro converter writes for each type of column."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fkjoin.errors import TopologyError
from fkjoin.kafka import Debezium, Registry
from fkjoin.kafka.formats import key_reader, reader
from fkjoin.spark.registry_records import ReadAvroEvents
from fkjoin.spark.unavailable import PLACEHOLDER
from tests.support.schema_registry import SmallRegistry, framed, small_registry

TIME, CONNECT, DATA = "io.debezium.time.", "org.apache.kafka.connect.data.", "io.debezium.data."
MOMENT = datetime.datetime(2023, 7, 26, 10, 22, 47, 48491, datetime.timezone.utc)
MILLIS = MOMENT.replace(microsecond=48000)
CLOCK, DAY = MOMENT.replace(tzinfo=None), datetime.date(2023, 7, 26)


def named(kind: str, of: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": of, **more}


def decimal(scale: int, precision: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    more = {"scale": scale, "precision": precision, "connect.parameters": parameters, "logicalType": "decimal"}
    return named("bytes", CONNECT + "Decimal", **more)


VARIABLE = named("record", DATA + "VariableScaleDecimal", name="VariableScaleDecimal", namespace="io.debezium.data")
VARIABLE["fields"] = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
GEOMETRY = named("record", DATA + "geometry.Geometry", name="Geometry", namespace="io.debezium.data.geometry")
GEOMETRY["fields"] = [{"name": "wkb", "type": "bytes"}, {"name": "srid", "type": ["null", "int"], "default": None}]

CASES: list[tuple[DataType, Any, Any, Any]] = [
    (TimestampType(), named("long", TIME + "MicroTimestamp"), 1690366967048491, MOMENT),
    (TimestampType(), named("long", CONNECT + "Timestamp", logicalType="timestamp-millis"), MILLIS, MILLIS),
    (TimestampNTZType(), named("long", CONNECT + "Timestamp", logicalType="timestamp-millis"), MOMENT.replace(microsecond=0),
     CLOCK.replace(microsecond=0)),
    (LongType(), named("long", CONNECT + "Timestamp", logicalType="timestamp-millis"), MILLIS, 1690366967048),
    (TimestampType(), named("string", TIME + "ZonedTimestamp"), "2023-07-26T12:22:47.048491+02:00", MOMENT),
    (DateType(), named("int", TIME + "Date"), 19564, DAY),
    (DateType(), named("int", CONNECT + "Date", logicalType="date"), DAY, DAY),
    (IntegerType(), named("int", CONNECT + "Date", logicalType="date"), DAY, 19564),
    (TimestampType(), named("int", TIME + "Date"), 19564, datetime.datetime(2023, 7, 26, tzinfo=datetime.timezone.utc)),
    (IntegerType(), named("int", CONNECT + "Time", logicalType="time-millis"), datetime.time(10, 22, 47, 48000), 37367048),
    (DayTimeIntervalType(), named("long", TIME + "MicroDuration"), 90_000_000, datetime.timedelta(seconds=90)),
    (DecimalType(10, 2), decimal(2, 10), Decimal("-26588.24"), Decimal("-26588.24")),
    (DecimalType(10, 2), decimal(3, 10), Decimal("0.482"), Decimal("0.48")),
    (DecimalType(10, 2), VARIABLE, {"scale": 2, "value": b"\x01\xe2"}, Decimal("4.82")),
    (DecimalType(10, 0), "string", "1234", Decimal("1234")),  # decimal.handling.mode=string
    (BinaryType(), named("bytes", DATA + "Bits", **{"connect.parameters": {"length": "10"}}), b"\xab\x02", b"\xab\x02"),
    (BinaryType(), GEOMETRY, {"wkb": b"\x01\x01", "srid": 4326}, b"\x01\x01"),
    (StructType([StructField("wkb", BinaryType()), StructField("srid", IntegerType())]), GEOMETRY,
     {"wkb": b"\x01\x01", "srid": None}, {"wkb": b"\x01\x01", "srid": None}),
    (StringType(), named("string", DATA + "Enum", **{"connect.parameters": {"allowed": "a,b"}}), "a", "a"),
    (MapType(StringType(), StringType()), {"type": "map", "values": ["null", "string"]}, {"a": "1", "b": None},
     [("a", "1"), ("b", None)]),
    (ArrayType(TimestampType()), {"type": "array", "items": ["null", named("long", TIME + "MicroTimestamp")]},
     [1690366967048491, None], [MOMENT, None]),
]  # fmt: skip
NAMES = [f"c{place}" for place in range(len(CASES))]


def envelope(fields: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema of a table's events; ``before`` defines the row's type, and ``after`` names it."""
    row = {"type": "record", "name": "Value", "fields": fields, "connect.name": "shop.public.orders.Value"}
    source = [("version", "string"), ("ts_ms", "long"), ("snapshot", ["string", "null"]), ("lsn", ["null", "long"])]
    of_source = {"type": "record", "name": "Source", "fields": [{"name": name, "type": kind} for name, kind in source]}
    parts = {
        "before": ["null", row],
        "after": ["null", "Value"],
        "source": of_source,
        "op": "string",
        "ts_ms": ["null", "long"],
    }
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.orders",
        "fields": [{"name": name, "type": kind} for name, kind in parts.items()],
        "connect.name": "shop.public.orders.Envelope",
    }


SOURCE = {"version": "3.0", "ts_ms": 5, "snapshot": "false", "lsn": 17}
ID = {"name": "id", "type": "int"}


def event(op: str, after: Any, before: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 7}


@pytest.fixture(scope="module")
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as made:
        yield made


def debezium(registry: SmallRegistry, *columns: tuple[str, DataType], **more: Any) -> Debezium:
    kind = StructType([StructField("id", IntegerType()), *(StructField(name, kind) for name, kind in columns)])
    return Debezium(kind, inner=Registry("avro", url=registry.url), **more)


def read(form: Debezium, *values: bytes | None, key: bool = False) -> list[Any]:
    """Read values: for each a row, the text of a problem, or "gone" for a delete."""
    how = key_reader(form) if key else reader(form)
    assert how is not None
    found = how(pa.array(values, pa.binary()))
    assert found.rows.type == pa.struct(list(how.schema))
    rows = zip(found.rows.to_pylist(), found.problem.to_pylist(), found.deleted.tolist(), strict=True)
    return [problem or ("gone" if deleted else row) for row, problem, deleted in rows]


def test_each_type_is_what_the_schema_says(registry: SmallRegistry) -> None:
    """All types are in one row, also as a key; nulls stay nulls."""
    fields = [
        ID,
        *({"name": name, "type": ["null", kind], "default": None} for name, (_, kind, _, _) in zip(NAMES, CASES, strict=True)),
    ]
    seen = set[str]()
    for item in fields[1:]:
        kind = item["type"][1]
        if isinstance(kind, dict) and "fields" in kind:
            full = f"{kind['namespace']}.{kind['name']}"
            item["type"] = ["null", full if full in seen else kind]
            seen.add(full)
    schema = envelope(fields)
    number = registry.add(schema)
    row = {"id": 1, **{name: value for name, (_, _, value, _) in zip(NAMES, CASES, strict=True)}}
    nothing = {"id": 2, **dict.fromkeys(NAMES)}
    form = debezium(registry, *[(name, kind) for name, (kind, *_) in zip(NAMES, CASES, strict=True)])
    assert isinstance(reader(form), ReadAvroEvents)
    wanted = {"id": 1, **{name: value for name, (*_, value) in zip(NAMES, CASES, strict=True)}}
    found = read(form, framed(number, schema, event("c", row)), framed(number, schema, event("r", nothing)))
    assert found == [wanted, nothing]
    key = {"type": "record", "name": "Key", "namespace": "shop.public.orders", "fields": fields}
    assert read(form, framed(registry.add(key), key, row), key=True) == [wanted]


def test_operations_and_what_is_no_event(registry: SmallRegistry) -> None:
    schema = envelope([ID])
    number = registry.add(schema)
    flat = {"type": "record", "name": "R", "fields": [ID]}
    row = {"id": 1}
    some = [event("u", row, row), event("d", None, row), event("t", None), event("x", row), event("c", None)]
    events = [framed(number, schema, one) for one in some]
    found = read(debezium(registry), *events, None, framed(registry.add(flat), flat, row), b"{}")
    assert found[:2] == [{"id": 1}, "gone"]
    assert found[2].startswith("operation 't' (truncate) empties the whole table")
    assert found[3:5] == ["unknown operation 'x'", "operation 'c' without after"]
    assert found[5:7] == ["gone", "a change event without op"]
    assert found[7].startswith("not avro of the registry's schema: no header")


RAW = PLACEHOLDER.encode()
LACKING: list[tuple[DataType, Any, Any, Any]] = [
    (StringType(), "string", PLACEHOLDER, "long text"),
    (BinaryType(), "bytes", RAW, b"long"),
    (ArrayType(LongType()), {"type": "array", "items": "long"}, list(RAW), [1]),
    (BinaryType(), GEOMETRY, {"wkb": bytes.fromhex("0101000020e6100000000000fc83d797c1000000fc83d797c1"), "srid": 4326},
     {"wkb": b"\x01", "srid": None}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "avro", "none", "value"), LACKING)
def test_a_value_that_an_event_lacks_is_taken_from_before_or_is_missed(
    registry: SmallRegistry, kind: DataType, avro: Any, none: Any, value: Any
) -> None:
    schema = envelope([ID, {"name": "it", "type": ["null", avro], "default": None}])
    number = registry.add(schema)
    full, lacking = {"id": 1, "it": value}, {"id": 1, "it": none}
    some = [event("u", full), event("u", lacking, full), event("u", lacking), event("u", lacking, {"id": 1, "it": None})]
    records = [framed(number, schema, one) for one in some]
    first, second, third, fourth = read(debezium(registry, ("it", kind)), *records)
    assert first == second != lacking
    assert third == fourth
    assert third.startswith(f"it: the event has no value, only {PLACEHOLDER}; set REPLICA IDENTITY FULL")
    kept = read(debezium(registry, ("it", kind), unavailable="keep"), *records)
    assert [list(row.values())[-1] for row in kept] == [None, None, [1], [1]]
    assert [row["it"] for row in kept[2:]] == [None, None]


def test_units_are_for_what_the_schema_does_not_tell(registry: SmallRegistry) -> None:
    schema = envelope([ID, {"name": "at", "type": "long"}, {"name": "raw", "type": "string"}])
    record = framed(registry.add(schema), schema, event("c", {"id": 1, "at": 1690366967048491, "raw": "abcd"}))
    columns = ("at", TimestampType()), ("raw", BinaryType())
    (told,) = read(debezium(registry, *columns), record)
    assert 'at: 1690366967048491 is a number without a unit; give units={"at": "micros"}' in told
    found = read(debezium(registry, *columns, units={"at": "micros", "raw": "hex"}), record)
    assert found == [{"id": 1, "at": MOMENT, "raw": b"\xab\xcd"}]


def test_mistakes_are_told() -> None:
    with pytest.raises(TopologyError, match=r'Debezium: inner can only be Registry\("avro", url=…\)'):
        Debezium("id int", inner=Registry("json", url="http://localhost"))
    with pytest.raises(TopologyError, match="Debezium: inner: events in Protobuf are not read, .* write Avro, or JSON without"):
        Debezium("id int", inner=Registry("protobuf", url="http://localhost"))
    with pytest.raises(TopologyError, match="Debezium: inner: leave out its schema and units"):
        Debezium("id int", inner=Registry("avro", "id int", "http://localhost"))
    assert Debezium("id int", inner=Registry("avro", url="http://localhost")).inner is not None
