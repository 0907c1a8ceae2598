"""Debezium's messages, in JSON and in Avro: every type by the schema, by ``units``, or a problem that says what to write.

Avro's schemas are those that Connect's converter writes.  Avro's own types: tests/spark/test_registry_records.py.
"""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fkjoin.errors import TopologyError
from fkjoin.kafka import Debezium, Format, Json, Registry
from fkjoin.kafka.formats import decode_key, key_reader, reader
from fkjoin.spark.registry_records import ReadAvroEvents
from fkjoin.spark.unavailable import PLACEHOLDER
from tests.support.schema_registry import SmallRegistry, framed, record_of

TOAST = "__debezium_unavailable_value"


def field(name: str, kind: str, of: str | None = None, **more: Any) -> dict[str, Any]:
    """A field of a ``schema`` part, as Connect's JsonConverter writes it."""
    return {"type": kind, "optional": True, **({"name": of, "version": 1} if of else {}), **more, "field": name}


def wrapped(fields: list[dict[str, Any]], after: dict[str, Any], op: str = "c", before: Any = None) -> bytes:
    row = [field(name, "struct", "db.public.t.Value", fields=fields) for name in ("before", "after")]
    envelope = {"type": "struct", "fields": [*row, field("op", "string")], "optional": False, "name": "db.public.t.Envelope"}
    payload = {"before": before, "after": after, "source": {"schema": "public"}, "op": op, "ts_ms": 1690366967100}
    return json.dumps({"schema": envelope, "payload": payload}, separators=(",", ":")).encode()


def plain(after: Any, op: str = "c", before: Any = None) -> bytes:
    return json.dumps({"before": before, "after": after, "source": {"schema": "public"}, "op": op}).encode()


def read_by(how: Any, *values: bytes | None) -> list[Any]:
    """Read values: for each a row, or the text of a problem."""
    result = how(pa.array(values, pa.binary()))
    pairs = zip(result.rows.to_pylist(), result.problem.to_pylist(), strict=True)
    return [problem or row for row, problem in pairs]


def read(form: Format, *values: bytes | None) -> list[Any]:
    return read_by(reader(form), *values)


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


MOMENT = at("2023-07-26 10:22:47.048+00:00")
DAY = datetime.date(2023, 7, 26)
TIME = "io.debezium.time."
CONNECT = "org.apache.kafka.connect.data."
DATA = "io.debezium.data."

TIMES = {"type": "int64", "name": TIME + "Timestamp"}

CASES: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("timestamp", field("it", "int64", TIME + "Timestamp"), 1690366967048, MOMENT),
    ("timestamp", field("it", "int64", TIME + "MicroTimestamp"), 1690366967048491, MOMENT.replace(microsecond=48491)),
    ("timestamp", field("it", "int64", TIME + "NanoTimestamp"), 1690366967048491123, MOMENT.replace(microsecond=48491)),
    ("timestamp_ntz", field("it", "int64", TIME + "MicroTimestamp"), 1690366967048491, at("2023-07-26 10:22:47.048491")),
    ("timestamp", field("it", "int64", CONNECT + "Timestamp"), 1690366967048, MOMENT),
    ("timestamp", field("it", "string", TIME + "ZonedTimestamp"), "2023-07-26T12:22:47.048+02:00", MOMENT),
    ("timestamp_ntz", field("it", "string", TIME + "IsoTimestamp"), "2023-07-26T10:22:47Z", at("2023-07-26 10:22:47")),
    ("bigint", field("it", "int64", TIME + "MicroTimestamp"), 1690366967048491, 1690366967048491),
    ("date", field("it", "int32", TIME + "Date"), 19564, DAY),
    ("date", field("it", "int32", CONNECT + "Date"), 19564, DAY),
    ("date", field("it", "int64", TIME + "Timestamp"), 1690329600000, DAY),  # Oracle's DATE
    ("date", field("it", "string", TIME + "IsoDate"), "2023-07-26Z", DAY),
    ("time(6)", field("it", "int32", TIME + "Time"), 37367048, datetime.time(10, 22, 47, 48000)),
    ("time(6)", field("it", "int64", TIME + "MicroTime"), 37367048491, datetime.time(10, 22, 47, 48491)),
    ("time(6)", field("it", "int64", TIME + "NanoTime"), 37367048491123, datetime.time(10, 22, 47, 48491)),
    ("time(6)", field("it", "int32", CONNECT + "Time"), 37367048, datetime.time(10, 22, 47, 48000)),
    ("time(6)", field("it", "string", TIME + "ZonedTime"), "10:22:47.048Z", datetime.time(10, 22, 47, 48000)),
    ("interval day to second", field("it", "int64", TIME + "MicroDuration"), 90_000_000, datetime.timedelta(seconds=90)),
    ("string", field("it", "string", TIME + "Interval"), "P1Y2M3DT4H5M6.78S", "P1Y2M3DT4H5M6.78S"),
    ("decimal(10,2)", field("it", "bytes", CONNECT + "Decimal", parameters={"scale": "2"}), "1234", Decimal("-26588.24")),
    ("decimal(10,2)", field("it", "bytes", CONNECT + "Decimal", parameters={"scale": "3"}), "AeI=", Decimal("0.48")),
    ("decimal(10,2)", field("it", "struct", DATA + "VariableScaleDecimal"), {"scale": 2, "value": "AeI="}, Decimal("4.82")),
    ("decimal(10,0)", field("it", "string"), "1234", Decimal("1234")),  # decimal.handling.mode=string
    ("decimal(10,2)", field("it", "double"), 12.5, Decimal("12.50")),  # decimal.handling.mode=double
    ("binary", field("it", "bytes", DATA + "Bits", parameters={"length": "10"}), "qwI=", b"\xab\x02"),
    ("binary", field("it", "bytes"), "3q2+7w==", bytes.fromhex("deadbeef")),
    ("binary", field("it", "struct", DATA + "geometry.Geometry"), {"wkb": "AQE=", "srid": 4326}, b"\x01\x01"),
    ("struct<wkb: binary, srid: int>", field("it", "struct", DATA + "geometry.Point"),
     {"x": 1.0, "y": 2.0, "wkb": "AQE=", "srid": None}, {"wkb": b"\x01\x01", "srid": None}),
    ("string", field("it", "string", DATA + "Enum", parameters={"allowed": "a,b"}), "a", "a"),
    ("string", field("it", "string", DATA + "Json"), '{"a": 1.50}', '{"a": 1.50}'),
    ("map<string,string>", field("it", "map", keys={"type": "string"}, values={"type": "string"}), {"a": "1"}, [("a", "1")]),
    ("array<timestamp>", field("it", "array", items=TIMES), [1690366967048, None], [MOMENT, None]),
    ("array<string>", field("it", "array", items={"type": "string"}), ["a", None], ["a", None]),
]  # fmt: skip


@pytest.mark.newest
def test_the_schema_part_says_what_a_value_is_and_spark_and_workers_read_the_same(spark: SparkSession) -> None:
    """One batch has all types in one row, with and without a ``schema`` part."""
    names = [f"c{place}" for place in range(len(CASES))]
    kinds, types, values, wanted = zip(*CASES, strict=True)
    form = Debezium(", ".join(map(" ".join, zip(names, kinds, strict=True))))
    fields = [of | {"field": name} for name, of in zip(names, types, strict=True)]
    after, nulls = dict(zip(names, values, strict=True)), dict.fromkeys(names)
    whole = wrapped(fields, after)
    turned = json.dumps(dict(reversed(json.loads(whole).items()))).encode()
    good = [whole, turned, wrapped(fields, nulls, "u"), plain(nulls), None]
    events = [*good, wrapped(fields[:5], after), plain(after), b"{"]
    how = reader(form)
    assert how is not None
    result = how(pa.array(events, pa.binary()))
    rows, deleted = result.rows.to_pylist(), result.deleted.tolist()
    problems = result.problem.to_pylist()
    for row in rows[:2]:
        assert list(row.items()) == list(zip(names, wanted, strict=True))
    assert rows[2:4] == [nulls, nulls]
    assert [problem is None for problem in problems] == [True] * len(good) + [False] * 3
    assert [at for at, gone in enumerate(deleted) if gone] == [4]
    frame = spark.createDataFrame(enumerate(events), "at int, value binary").coalesce(1).sort("at")
    row, *verdict = form.decode(F.col("value"))
    shown = frame.select(F.to_json(row, {"ignoreNullFields": "false"}), *verdict).collect()
    assert [line[1:] for line in shown] == list(zip(deleted, problems, strict=True))
    first = json.loads(shown[0][0])
    texts = [first[name] for name in ("c1", "c8", "c19")]
    assert texts == ["2023-07-26T10:22:47.048Z", "2023-07-26", -26588.24]


def test_units_say_it_where_there_is_no_schema_part_which_wins(spark: SparkSession) -> None:
    units = {"it": "millis", "days": "days", "data": "hex"}
    columns, row = "it timestamp, days array<date>, data binary", {"it": 1690366967048, "days": [19564], "data": "abcd"}
    wanted = [{"it": MOMENT, "days": [DAY], "data": b"\xab\xcd"}]
    assert read(Debezium(columns, units=units), plain(row)) == wanted
    assert read(Json(columns, units=units), json.dumps(row).encode()) == wanted
    fields = [field("it", "int64", TIME + "MicroTimestamp"), field("data", "string")]
    event = wrapped(fields, {"it": 1690366967048000, "data": "abcd"})
    assert read(Debezium(columns, units=units), event) == [wanted[0] | {"days": None}]
    (problem,) = read(Debezium(columns), event)
    assert problem == 'data: a text may be base64 or hex; give units={"data": "base64"}, "base64-url" or "hex"'


def test_placeholders_of_your_own_and_in_hex(spark: SparkSession) -> None:
    form = Debezium("id int, bio string, data binary", units={"data": "hex"}, placeholder="N/A")
    after = {"id": 1, "bio": TOAST, "data": b"N/A".hex()}
    assert read(form, plain(after, "u", before={"data": "ab"})) == [{"id": 1, "bio": TOAST, "data": b"\xab"}]
    assert "bio, data: the event has no value" in read(form, plain(after | {"bio": "N/A"}, "u"))[0]


def test_keys(spark: SparkSession) -> None:
    form = Debezium("day date, n decimal(5,1)")
    scale = field("n", "bytes", CONNECT + "Decimal", parameters={"scale": "1"})
    schema = {"type": "struct", "fields": [field("day", "int32", TIME + "Date"), scale]}
    key = {"schema": schema, "payload": {"day": 19564, "n": "12=="}}
    values = [json.dumps(key).encode(), b'{"day": 19564, "n": 1}']
    row, problem = read_by(key_reader(form), *values)
    assert row == {"day": DAY, "n": Decimal("-4.1")}
    assert "number without a unit" in problem
    decoded = decode_key(form, F.col("value")).row
    rows = spark.createDataFrame([(value,) for value in values], "value binary").select(decoded)
    assert [one and one.asDict() for (one,) in rows.collect()] == [row, None]


B64 = base64.b64encode(TOAST.encode()).decode()
SHAPE = "struct<wkb: binary, srid: int>"
GOOD_SHAPE = {"wkb": "q80=", "srid": None}, {"wkb": b"\xab\xcd", "srid": None}
POINT = {"x": 1.0, "y": 2.0}
LACKING: dict[str, tuple[str, Any, Any, Any]] = {
    "bio": ("string", TOAST, "good", "good"),
    "data": ("binary", B64, "q80=", b"\xab\xcd"),
    "texts": ("array<string>", [TOAST], ["a"], ["a"]),
    "numbers": ("array<int>", list(TOAST.encode()), [1], [1]),
    "kept": ("map<string, string>", {TOAST: TOAST}, {"a": "b"}, [("a", "b")]),
    "uuids": ("array<string>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], ["x"], ["x"]),
    "geometry": (SHAPE, {"wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "srid": None}, *GOOD_SHAPE),
    "geography": (SHAPE, {"wkb": "AQEAACDmEAAADCHn/f9/ZkAYQs77/39WQA=="}, *GOOD_SHAPE),
    "point": ("struct<x: double, y: double>", {"x": -9.9999999e7, "y": -9.9999999e7}, POINT, POINT),
}
"""Types, the values by which Debezium says that an event lacks one, others, and their rows."""


@pytest.mark.parametrize("name", LACKING)
def test_a_value_that_is_lacking_is_that_before_or_missed(spark: SparkSession, name: str) -> None:
    columns = [f"{column} {kind}" for column, (kind, *_) in LACKING.items()]
    form = Debezium(", ".join(["id int", *columns]))
    full = {"id": 1, **{column: value for column, (_, _, value, _) in LACKING.items()}}
    good = {"id": 1, **{column: value for column, (*_, value) in LACKING.items()}}
    change = full | {"id": 7, name: LACKING[name][1]}
    nulls = dict.fromkeys(full)  # with REPLICA IDENTITY USING INDEX, a null there is no value
    filled, lacking = [good | {"id": 7}], f"{name}: the event has no value, only {TOAST}; set "

    def event(before: Any) -> bytes:
        return plain(change, "u", before).replace(b"-99999999.0", b"-9.9999999E7")  # as Java

    assert read(form, event(full), plain(full)) == [*filled, good]
    assert read(form, b'{"schema": null, "payload": %s}' % event(full)) == filled
    for before in (None, {"id": 1}, change, nulls):
        (problem,) = read(form, event(before))
        assert problem == f'{lacking}REPLICA IDENTITY FULL, or give unavailable="keep"'


def test_events_that_are_about_no_row_say_so(spark: SparkSession) -> None:
    no_operation = "a change event without op"
    cases = {
        '{"op": "t", "source": {}}': "operation 't' (truncate) empties the whole table",
        '{"op": "m", "message": {}}': "operation 'm' (a logical decoding message) is not",
        '{"ts_ms": 1690366967048}': no_operation,  # a heartbeat
        '{"status": "BEGIN", "id": "571:53195829"}': no_operation,
        '{"databaseName": "d", "ddl": "ALTER TABLE t …", "tableChanges": []}': no_operation,
    }
    problems = read(Debezium("id int"), *(event.encode() for event in cases))
    for problem, words in zip(problems, cases.values(), strict=True):
        assert problem.startswith(words)


TO_MICROS = datetime.datetime(2023, 7, 26, 10, 22, 47, 48491, datetime.timezone.utc)
TO_MILLIS = TO_MICROS.replace(microsecond=48000)


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
AVRO_SHAPE = T.StructType().add("wkb", T.BinaryType()).add("srid", T.IntegerType())
AVRO_POINT = {"wkb": b"\x01\x01", "srid": None}
MANY = {"type": "array", "items": ["null", MICROS]}

AVRO_CASES: list[tuple[T.DataType, Any, Any, Any]] = [
    (T.TimestampType(), MICROS, 1690366967048491, TO_MICROS),
    (T.TimestampType(), INSTANT, TO_MILLIS, TO_MILLIS),
    (T.TimestampNTZType(), INSTANT, TO_MILLIS, TO_MILLIS.replace(tzinfo=None)),
    (T.LongType(), INSTANT, TO_MILLIS, 1690366967048),
    (T.DateType(), named("int", TIME + "Date"), 19564, DAY),
    (T.IntegerType(), CONNECT_DATE, DAY, 19564),
    (T.IntegerType(), CONNECT_TIME, datetime.time(10, 22, 47, 48000), 37367048),
    (T.DecimalType(10, 2), decimal(2), Decimal("-26588.24"), Decimal("-26588.24")),
    (T.DecimalType(10, 2), decimal(3), Decimal("0.482"), Decimal("0.48")),
    (T.DecimalType(10, 2), VARIABLE, {"scale": 2, "value": b"\x01\xe2"}, Decimal("4.82")),
    (T.BinaryType(), BITS, b"\xab\x02", b"\xab\x02"),
    (T.BinaryType(), GEOMETRY, {"wkb": b"\x01\x01", "srid": 4326}, b"\x01\x01"),
    (AVRO_SHAPE, GEOMETRY["name"], AVRO_POINT, AVRO_POINT),
    (T.ArrayType(T.TimestampType()), MANY, [1690366967048491, None], [TO_MICROS, None]),
]
AVRO_NAMES = [f"c{place}" for place in range(len(AVRO_CASES))]


def envelope(**row: Any) -> dict[str, Any]:
    """The schema of a table's events; ``before`` defines the row's type, and ``after`` names it."""
    value = record_of("Value", **row) | {"connect.name": "shop.public.orders.Value"}
    of_source = {"version": "string", "snapshot": ["string", "null"], "lsn": ["null", "long"]}
    source = record_of("Source", **of_source)
    parts = {"before": ["null", value], "after": ["null", "Value"], "source": source}
    about = {"namespace": "shop.public.orders", "connect.name": "shop.public.orders.Envelope"}
    return record_of("Envelope", **parts, op="string", ts_ms=["null", "long"]) | about


SOURCE = {"version": "3.0", "snapshot": "false", "lsn": 17}


def avro_event(op: str, after: Any, before: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 7}


def debezium(registry: SmallRegistry, **more: Any) -> Debezium:
    """The events with ``id``, and the columns by name in ``columns``."""
    row = T.StructType().add("id", T.IntegerType())
    for name, kind in more.pop("columns", {}).items():
        row = row.add(name, kind)
    return Debezium(row, inner=Registry("avro", url=registry.url), **more)


def read_avro(form: Debezium, *values: bytes | None, key: bool = False) -> list[Any]:
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
    columns = zip(*AVRO_CASES, strict=True)
    kinds, avro, values, wanted = (dict(zip(AVRO_NAMES, column, strict=True)) for column in columns)
    fields = {name: ["null", kind] for name, kind in avro.items()}
    schema, key = envelope(id="int", **fields), record_of("shop.Key", id="int", **fields)
    number, nothing = registry.add(schema), dict.fromkeys(AVRO_NAMES)
    form = debezium(registry, columns=kinds)
    assert isinstance(reader(form), ReadAvroEvents)
    some = [avro_event("c", {"id": 1, **values}), avro_event("r", {"id": 2, **nothing})]
    rows = read_avro(form, *(framed(number, schema, one) for one in some))
    assert rows == [{"id": 1, **wanted}, {"id": 2, **nothing}]
    record = framed(registry.add(key), key, {"id": 1, **values})
    assert read_avro(form, record, key=True) == rows[:1]


def test_operations_and_what_is_no_event(registry: SmallRegistry) -> None:
    schema, flat, row = envelope(id="int"), record_of("R", id="int"), {"id": 1}
    number, other = registry.add(schema), registry.add(flat)
    cases: list[tuple[bytes | None, Any]] = [
        (framed(number, schema, avro_event("u", row, row)), row),
        (framed(number, schema, avro_event("d", None, row)), "gone"),
        (framed(number, schema, avro_event("t", None)), "operation 't' (truncate) empties the whole"),
        (framed(number, schema, avro_event("x", row)), "unknown operation 'x'"),
        (framed(number, schema, avro_event("c", None)), "operation 'c' without after"),
        (None, "gone"),
        (framed(other, flat, row), "a change event without op"),
        (b"{}", "not avro of the registry's schema: no header"),
    ]
    results = read_avro(debezium(registry), *(value for value, _ in cases))
    for result, (_, wanted) in zip(results, cases, strict=True):
        assert result == wanted or result.startswith(wanted)


NO_SHAPE = bytes.fromhex("0101000020e6100000000000fc83d797c1000000fc83d797c1")
RAW = PLACEHOLDER.encode()
AVRO_LACKING: list[tuple[T.DataType, Any, Any, Any]] = [
    (T.StringType(), "string", PLACEHOLDER, "long text"),
    (T.BinaryType(), "bytes", RAW, b"long"),
    (T.ArrayType(T.LongType()), {"type": "array", "items": "long"}, list(RAW), [1]),
    (T.BinaryType(), GEOMETRY, {"wkb": NO_SHAPE, "srid": 4326}, {"wkb": b"\x01", "srid": None}),
]


@pytest.mark.parametrize(("kind", "avro", "none", "value"), AVRO_LACKING)
def test_a_value_that_an_event_lacks_is_that_before(
    registry: SmallRegistry, kind: T.DataType, avro: Any, none: Any, value: Any
) -> None:
    schema, columns = envelope(id="int", it=["null", avro]), {"it": kind}
    number = registry.add(schema)
    full, lacking, null = ({"id": 1, "it": it} for it in (value, none, None))
    befores = (full, full), (lacking, full), (lacking, None), (lacking, null)
    records = [framed(number, schema, avro_event("u", *pair)) for pair in befores]
    first, second, third, fourth = read_avro(debezium(registry, columns=columns), *records)
    assert first == second != lacking
    assert third == fourth
    assert third.startswith(f"it: the event has no value, only {PLACEHOLDER}; set REPLICA IDENTITY")
    rows = read_avro(debezium(registry, columns=columns, unavailable="keep"), *records)
    assert [list(row.values())[-1] for row in rows] == [None, None, [1], [1]]
    assert [row["it"] for row in rows[2:]] == [None, None]


def test_units_are_for_what_the_schema_does_not_tell(registry: SmallRegistry) -> None:
    schema = envelope(id="int", at="long", raw="string")
    row = {"id": 1, "at": 1690366967048491, "raw": "abcd"}
    record = framed(registry.add(schema), schema, avro_event("c", row))
    columns = {"at": T.TimestampType(), "raw": T.BinaryType()}
    (problem,) = read_avro(debezium(registry, columns=columns), record)
    assert 'at: 1690366967048491 is a number without a unit; give units={"at": "micros"}' in problem
    units = {"at": "micros", "raw": "hex"}
    rows = read_avro(debezium(registry, columns=columns, units=units), record)
    assert rows == [{"id": 1, "at": TO_MICROS, "raw": b"\xab\xcd"}]


def test_mistakes_are_told() -> None:
    cases: Any = (
        (r'inner can only be Registry\("avro", url=…\)', "json", None),
        ("inner: events in Protobuf are not read, .* write Avro, or JSON", "protobuf", None),
        ("inner: leave out its schema and units", "avro", "id int"),
    )
    for words, kind, schema in cases:
        with pytest.raises(TopologyError, match=f"Debezium: {words}"):
            Debezium("id int", inner=Registry(kind, schema, "http://localhost"))
