"""Debezium's messages: every type by the ``schema`` part, by ``units``, or a problem that says what to write."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin.errors import TopologyError
from fkjoin.kafka import Debezium, Format, Json
from fkjoin.kafka.formats import decode_key, key_reader, reader
from fkjoin.spark.change_events import ReadEvents
from fkjoin.spark.event_rows import EventRows

pytestmark = pytest.mark.spark

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


def read(form: Format, *values: bytes | None) -> list[Any]:
    """Read values: for each a row, or the text of a problem."""
    how = reader(form)
    assert how is not None
    found = how(pa.array(values, pa.binary()))
    return [problem or row for row, problem in zip(found.rows.to_pylist(), found.problem.to_pylist(), strict=True)]


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
    form = Debezium(", ".join(f"{name} {kind}" for name, (kind, *_) in zip(names, CASES, strict=True)))
    fields = [of | {"field": name} for name, (_, of, *_) in zip(names, CASES, strict=True)]
    after = {name: value for name, (_, _, value, _) in zip(names, CASES, strict=True)}
    nulls = dict.fromkeys(names)
    whole = [wrapped(fields, after), wrapped(fields, nulls, "u"), plain(nulls)]
    values = [*whole, wrapped(fields[:5], after), None, plain(after), b"{"]
    how = reader(form)
    assert how is not None
    found = how(pa.array(values, pa.binary()))
    read_rows = found.rows.to_pylist()
    for name, (kind, of, _, wanted) in zip(names, CASES, strict=True):
        assert read_rows[0][name] == wanted, (kind, of)
    assert read_rows[1:3] == [nulls, nulls]
    assert [problem is None for problem in found.problem.to_pylist()] == [True, True, True, False, True, False, False]
    assert found.deleted.tolist() == [place == 4 for place in range(len(values))]
    frame = spark.createDataFrame([(at, value) for at, value in enumerate(values)], "at int, value binary").coalesce(1)
    told = form.decode(F.col("value"))
    shown = frame.sort("at").select(F.to_json(told.row, {"ignoreNullFields": "false"}), told.deleted, told.problem).collect()
    assert [row[1:] for row in shown] == list(zip(found.deleted.tolist(), found.problem.to_pylist(), strict=True))
    first = json.loads(shown[0][0])
    assert (first["c1"], first["c8"], first["c19"]) == ("2023-07-26T10:22:47.048Z", "2023-07-26", -26588.24)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("timestamp", 1690366967048491, 'it: 1690366967048491 is a number without a unit; give units={"it": "micros"}'),
        ("decimal(10,2)", "1234", "it: '1234' may be base64 or a number"),
        ("timestamp", "nonsense", "not JSON that fits struct<op:string,after:struct<id:int,it:timestamp>"),
    ],
)
def test_without_schema_and_units_nothing_is_guessed(spark: SparkSession, kind: str, value: Any, words: str) -> None:
    (told,) = read(Debezium(f"id int, it {kind}"), plain({"id": 1, "it": value}))
    assert words in told


@pytest.mark.parametrize(
    ("kind", "unit", "value", "wanted"),
    [
        ("timestamp", "millis", 1690366967048, MOMENT),
        ("decimal(10,2)", "base64", "AeI=", Decimal("4.82")),
        ("binary", "base64-url", "-_8", b"\xfb\xff"),
        ("array<date>", "days", [19564], [DAY]),
    ],
)
def test_units_say_it_where_there_is_no_schema(spark: SparkSession, kind: str, unit: str, value: Any, wanted: Any) -> None:
    for form, event in (
        (Debezium(f"id int, it {kind}", units={"it": unit}), plain({"id": 1, "it": value})),
        (Json(f"id int, it {kind}", units={"it": unit}), json.dumps({"id": 1, "it": value}).encode()),
    ):
        assert read(form, event) == [{"id": 1, "it": wanted}]
    with pytest.raises(TopologyError, match="there is no column 'its'"):
        Debezium(f"id int, it {kind}", units={"its": unit}).decode(F.col("value"))


def test_the_schema_part_wins_and_hex_needs_a_unit(spark: SparkSession) -> None:
    fields = [field("id", "int32"), field("it", "int64", TIME + "MicroTimestamp"), field("data", "string")]
    event = wrapped(fields, {"id": 1, "it": 1690366967048000, "data": "abcd"})
    row = {"id": 1, "it": MOMENT, "data": b"\xab\xcd"}
    assert read(Debezium("id int, it timestamp, data binary", units={"it": "millis", "data": "hex"}), event) == [row]
    (told,) = read(Debezium("id int, it timestamp, data binary"), event)
    assert told == 'data: a text may be base64 or hex; give units={"data": "base64"}, "base64-url" or "hex"'


def test_events_before_and_after_a_change_of_the_table_in_one_batch(spark: SparkSession) -> None:
    """The database changes a column's type, and each event is read by its own ``schema`` part."""
    millis, micros = ([field("it", "int64", TIME + name)] for name in ("Timestamp", "MicroTimestamp"))
    first, second = wrapped(millis, {"it": 1690366967048}), wrapped(micros, {"it": 1690366967048000})
    behind = json.loads(second)
    turned = json.dumps({"payload": behind["payload"], "schema": behind["schema"]}).encode()
    found = read(Debezium("it timestamp"), first, second, first, turned, plain({"it": None}), second)
    assert found == [{"it": MOMENT}] * 4 + [{"it": None}, {"it": MOMENT}]


def test_keys(spark: SparkSession) -> None:
    form = Debezium("day date, n decimal(5,1)")
    fields = [field("day", "int32", TIME + "Date"), field("n", "bytes", CONNECT + "Decimal", parameters={"scale": "1"})]
    key = {"schema": {"type": "struct", "fields": fields}, "payload": {"day": 19564, "n": "1234"[:2] + "=="}}
    how = key_reader(form)
    assert how is not None
    values = [json.dumps(key).encode(), b'{"day": 19564, "n": 1}']
    found = how(pa.array(values, pa.binary()))
    assert found.rows.to_pylist()[0] == {"day": DAY, "n": Decimal("-4.1")}
    assert found.problem[0].as_py() is None
    assert "number without a unit" in found.problem[1].as_py()
    told = decode_key(form, F.col("value"))
    rows = spark.createDataFrame([(value,) for value in values], "value binary").select(told.row, told.problem).collect()
    assert rows[0][0] == Row(day=DAY, n=Decimal("-4.1"))
    assert rows[1][0] is None


B64 = base64.b64encode(TOAST.encode()).decode()
LARGE = "id int, bio string, data binary, texts array<string>, numbers array<int>, kept map<string, string>"
HIDDEN = {"bio": TOAST, "data": B64, "texts": [TOAST], "numbers": list(TOAST.encode()), "kept": {TOAST: TOAST}}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_value_that_the_event_does_not_have_is_taken_from_before_or_is_a_problem(spark: SparkSession, name: str) -> None:
    full = {"id": 1, "bio": "good", "data": "q80=", "texts": ["a"], "numbers": [1], "kept": {"a": "b"}}
    good = {"id": 1, "bio": "good", "data": b"\xab\xcd", "texts": ["a"], "numbers": [1], "kept": [("a", "b")]}
    change = full | {"id": 7, name: HIDDEN[name]}
    form = Debezium(LARGE)
    found = read(form, plain(change, "u", before=full), plain(change, "u"), plain(change, "u", before={"id": 1}), plain(full))
    words = f'{name}: the event has no value, only {TOAST}; set REPLICA IDENTITY FULL, or give unavailable="keep"'
    assert found == [good | {"id": 7}, words, words, good]
    assert read(form, plain(change, "u", before=change)) == [words]
    by_index = {**dict.fromkeys(full), "id": 1}  # with REPLICA IDENTITY USING INDEX, a null there is no value
    assert read(form, plain(change, "u", before=by_index)) == [words]
    envelope = json.dumps({"schema": None, "payload": json.loads(plain(change, "u", before=full))}).encode()
    assert read(form, envelope) == [good | {"id": 7}]


SHAPE = pa.struct([("wkb", pa.binary()), ("srid", pa.int32())])
ELSEWHERE: dict[str, tuple[pa.DataType, Any]] = {
    "uuids": (pa.list_(pa.string()), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    "geometry": (SHAPE, {"wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "srid": None}),
    "geography": (SHAPE, {"wkb": "AQEAACDmEAAADCHn/f9/ZkAYQs77/39WQA==", "srid": None}),
    "java's point": (pa.struct([("x", pa.float64()), ("y", pa.float64())]), {"x": -9.9999999e7, "y": -9.9999999e7}),
}
"""Values of other types by which Debezium's connector for PostgreSQL says that an event lacks one."""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_arrays_of_uuids_and_shapes_that_the_event_does_not_have(name: str) -> None:
    kind, hidden = ELSEWHERE[name]
    there = {"uuids": ["x"], "java's point": {"x": 1.0, "y": 2.0}}.get(name, {"wkb": "q80="})
    how = ReadEvents(EventRows(pa.schema([("id", pa.int64()), (name, kind)])), "the value")
    events = [plain({"id": 1, name: hidden}, "u", before={"id": 1, name: there}), plain({"id": 1, name: hidden}, "u")]
    if name == "java's point":
        events = [event.replace(b"-99999999.0", b"-9.9999999E7") for event in events]
    found = how(pa.array(events, pa.binary()))
    known = how(pa.array([plain({"id": 1, name: there}, "u")], pa.binary()))
    assert found.rows[0] == known.rows[0]
    assert found.problem.is_valid().to_pylist() == [False, True]
    assert found.problem[1].as_py().startswith(f"{name}: the event has no value")


def test_placeholders_of_your_own_and_in_hex(spark: SparkSession) -> None:
    form = Debezium("id int, bio string, data binary", units={"data": "hex"}, placeholder="N/A")
    after = {"id": 1, "bio": "N/A", "data": b"N/A".hex()}
    assert read(form, plain(after, "u", before={"bio": "b", "data": "ab"})) == [{"id": 1, "bio": "b", "data": b"\xab"}]
    assert "bio, data: the event has no value" in read(form, plain(after, "u"))[0]
    assert read(form, plain(after | {"bio": TOAST}, "u", before={"data": "ab"}))[0]["bio"] == TOAST


def test_events_that_are_about_no_row_say_so(spark: SparkSession) -> None:
    truncate = {"source": {"table": "t"}, "op": "t", "ts_ms": 1}
    message = {"op": "m", "source": {}, "message": {"prefix": "p", "content": "q80="}}
    heartbeat, transaction = {"ts_ms": 1690366967048}, {"status": "BEGIN", "id": "571:53195829", "ts_ms": 1}
    ddl = {"source": {}, "databaseName": "d", "ddl": "ALTER TABLE t …", "tableChanges": []}
    values = [json.dumps(value).encode() for value in (truncate, message, heartbeat, transaction, ddl)]
    found = read(Debezium("id int"), *values)
    assert found[0].startswith("operation 't' (truncate) empties the whole table")
    assert found[1].startswith("operation 'm' (a logical decoding message) is not about a row")
    assert found[2:] == ["a change event without op"] * 3
