"""Debezium's events in Avro, with the schemas that Connect's Avro converter writes.

What each of Connect's names means: test_debezium_types.  Avro's own types:
tests/spark/test_registry_records.py.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from fkjoin.errors import TopologyError
from fkjoin.kafka import Debezium, Registry
from fkjoin.kafka.formats import key_reader, reader
from fkjoin.spark.registry_records import ReadAvroEvents
from fkjoin.spark.unavailable import PLACEHOLDER
from tests.support.schema_registry import SmallRegistry, framed, record_of

TIME, CONNECT, DATA = "io.debezium.time.", "org.apache.kafka.connect.data.", "io.debezium.data."
MOMENT = datetime.datetime(2023, 7, 26, 10, 22, 47, 48491, datetime.timezone.utc)
MILLIS = MOMENT.replace(microsecond=48000)
DAY = datetime.date(2023, 7, 26)


def named(kind: str, of: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": of, **more}


def decimal(scale: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": "10"}
    more = {"scale": scale, "precision": 10, "connect.parameters": parameters}
    return named("bytes", CONNECT + "Decimal", logicalType="decimal", **more)


VARIABLE = named("record", DATA + "VariableScaleDecimal", name=DATA + "VariableScaleDecimal")
VARIABLE["fields"] = record_of("", scale="int", value="bytes")["fields"]
GEOMETRY = named("record", DATA + "geometry.Geometry", name=DATA + "geometry.Geometry")
GEOMETRY["fields"] = record_of("", wkb="bytes", srid=["null", "int"])["fields"]
MICROS = named("long", TIME + "MicroTimestamp")
INSTANT = named("long", CONNECT + "Timestamp", logicalType="timestamp-millis")
BITS = named("bytes", DATA + "Bits", **{"connect.parameters": {"length": "10"}})
CONNECT_DATE = named("int", CONNECT + "Date", logicalType="date")
CONNECT_TIME = named("int", CONNECT + "Time", logicalType="time-millis")
SHAPE = T.StructType().add("wkb", T.BinaryType()).add("srid", T.IntegerType())
POINT = {"wkb": b"\x01\x01", "srid": None}
MANY = {"type": "array", "items": ["null", MICROS]}

CASES: list[tuple[T.DataType, Any, Any, Any]] = [
    (T.TimestampType(), MICROS, 1690366967048491, MOMENT),
    (T.TimestampType(), INSTANT, MILLIS, MILLIS),
    (T.TimestampNTZType(), INSTANT, MILLIS, MILLIS.replace(tzinfo=None)),
    (T.LongType(), INSTANT, MILLIS, 1690366967048),
    (T.DateType(), named("int", TIME + "Date"), 19564, DAY),
    (T.IntegerType(), CONNECT_DATE, DAY, 19564),
    (T.IntegerType(), CONNECT_TIME, datetime.time(10, 22, 47, 48000), 37367048),
    (T.DecimalType(10, 2), decimal(2), Decimal("-26588.24"), Decimal("-26588.24")),
    (T.DecimalType(10, 2), decimal(3), Decimal("0.482"), Decimal("0.48")),
    (T.DecimalType(10, 2), VARIABLE, {"scale": 2, "value": b"\x01\xe2"}, Decimal("4.82")),
    (T.BinaryType(), BITS, b"\xab\x02", b"\xab\x02"),
    (T.BinaryType(), GEOMETRY, {"wkb": b"\x01\x01", "srid": 4326}, b"\x01\x01"),
    (SHAPE, GEOMETRY["name"], POINT, POINT),
    (T.ArrayType(T.TimestampType()), MANY, [1690366967048491, None], [MOMENT, None]),
]
NAMES = [f"c{place}" for place in range(len(CASES))]


def envelope(**row: Any) -> dict[str, Any]:
    """The schema of a table's events; ``before`` defines the row's type, and ``after`` names it."""
    value = record_of("Value", **row) | {"connect.name": "shop.public.orders.Value"}
    of_source = {"version": "string", "snapshot": ["string", "null"], "lsn": ["null", "long"]}
    source = record_of("Source", **of_source)
    parts = {"before": ["null", value], "after": ["null", "Value"], "source": source}
    about = {"namespace": "shop.public.orders", "connect.name": "shop.public.orders.Envelope"}
    return record_of("Envelope", **parts, op="string", ts_ms=["null", "long"]) | about


SOURCE = {"version": "3.0", "snapshot": "false", "lsn": 17}


def event(op: str, after: Any, before: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 7}


def debezium(registry: SmallRegistry, **more: Any) -> Debezium:
    """The events with ``id``, and the columns by name in ``columns``."""
    row = T.StructType().add("id", T.IntegerType())
    for name, kind in more.pop("columns", {}).items():
        row = row.add(name, kind)
    return Debezium(row, inner=Registry("avro", url=registry.url), **more)


def read(form: Debezium, *values: bytes | None, key: bool = False) -> list[Any]:
    """Read values: for each a row, the text of a problem, or "gone" for a delete."""
    how = key_reader(form) if key else reader(form)
    assert how is not None
    result = how(pa.array(values, pa.binary()))
    assert result.rows.type == pa.struct(list(how.schema))
    columns = result.rows.to_pylist(), result.problem.to_pylist(), result.deleted.tolist()
    rows = zip(*columns, strict=True)
    return [problem or ("gone" if gone else row) for row, problem, gone in rows]


def test_each_type_is_what_the_schema_says(registry: SmallRegistry) -> None:
    """All types are in one row, also as a key; nulls stay nulls."""
    columns = zip(*CASES, strict=True)
    kinds, avro, values, wanted = (dict(zip(NAMES, column, strict=True)) for column in columns)
    fields = {name: ["null", kind] for name, kind in avro.items()}
    schema, key = envelope(id="int", **fields), record_of("shop.Key", id="int", **fields)
    number, nothing = registry.add(schema), dict.fromkeys(NAMES)
    form = debezium(registry, columns=kinds)
    assert isinstance(reader(form), ReadAvroEvents)
    some = [event("c", {"id": 1, **values}), event("r", {"id": 2, **nothing})]
    rows = read(form, *(framed(number, schema, one) for one in some))
    assert rows == [{"id": 1, **wanted}, {"id": 2, **nothing}]
    record = framed(registry.add(key), key, {"id": 1, **values})
    assert read(form, record, key=True) == rows[:1]


def test_operations_and_what_is_no_event(registry: SmallRegistry) -> None:
    schema, flat, row = envelope(id="int"), record_of("R", id="int"), {"id": 1}
    number, other = registry.add(schema), registry.add(flat)
    cases: list[tuple[bytes | None, Any]] = [
        (framed(number, schema, event("u", row, row)), row),
        (framed(number, schema, event("d", None, row)), "gone"),
        (framed(number, schema, event("t", None)), "operation 't' (truncate) empties the whole"),
        (framed(number, schema, event("x", row)), "unknown operation 'x'"),
        (framed(number, schema, event("c", None)), "operation 'c' without after"),
        (None, "gone"),
        (framed(other, flat, row), "a change event without op"),
        (b"{}", "not avro of the registry's schema: no header"),
    ]
    results = read(debezium(registry), *(value for value, _ in cases))
    for result, (_, wanted) in zip(results, cases, strict=True):
        assert result == wanted or result.startswith(wanted)


NO_SHAPE = bytes.fromhex("0101000020e6100000000000fc83d797c1000000fc83d797c1")
RAW = PLACEHOLDER.encode()
LACKING: list[tuple[T.DataType, Any, Any, Any]] = [
    (T.StringType(), "string", PLACEHOLDER, "long text"),
    (T.BinaryType(), "bytes", RAW, b"long"),
    (T.ArrayType(T.LongType()), {"type": "array", "items": "long"}, list(RAW), [1]),
    (T.BinaryType(), GEOMETRY, {"wkb": NO_SHAPE, "srid": 4326}, {"wkb": b"\x01", "srid": None}),
]


@pytest.mark.parametrize(("kind", "avro", "none", "value"), LACKING)
def test_a_value_that_an_event_lacks_is_that_before(
    registry: SmallRegistry, kind: T.DataType, avro: Any, none: Any, value: Any
) -> None:
    schema, columns = envelope(id="int", it=["null", avro]), {"it": kind}
    number = registry.add(schema)
    full, lacking, null = ({"id": 1, "it": it} for it in (value, none, None))
    befores = (full, full), (lacking, full), (lacking, None), (lacking, null)
    records = [framed(number, schema, event("u", *pair)) for pair in befores]
    first, second, third, fourth = read(debezium(registry, columns=columns), *records)
    assert first == second != lacking
    assert third == fourth
    assert third.startswith(f"it: the event has no value, only {PLACEHOLDER}; set REPLICA IDENTITY")
    rows = read(debezium(registry, columns=columns, unavailable="keep"), *records)
    assert [list(row.values())[-1] for row in rows] == [None, None, [1], [1]]
    assert [row["it"] for row in rows[2:]] == [None, None]


def test_units_are_for_what_the_schema_does_not_tell(registry: SmallRegistry) -> None:
    schema = envelope(id="int", at="long", raw="string")
    row = {"id": 1, "at": 1690366967048491, "raw": "abcd"}
    record = framed(registry.add(schema), schema, event("c", row))
    columns = {"at": T.TimestampType(), "raw": T.BinaryType()}
    (problem,) = read(debezium(registry, columns=columns), record)
    assert 'at: 1690366967048491 is a number without a unit; give units={"at": "micros"}' in problem
    units = {"at": "micros", "raw": "hex"}
    rows = read(debezium(registry, columns=columns, units=units), record)
    assert rows == [{"id": 1, "at": MOMENT, "raw": b"\xab\xcd"}]


def test_mistakes_are_told() -> None:
    cases: Any = (
        (r'inner can only be Registry\("avro", url=…\)', "json", None),
        ("inner: events in Protobuf are not read, .* write Avro, or JSON", "protobuf", None),
        ("inner: leave out its schema and units", "avro", "id int"),
    )
    for words, kind, schema in cases:
        with pytest.raises(TopologyError, match=f"Debezium: {words}"):
            Debezium("id int", inner=Registry(kind, schema, "http://localhost"))
