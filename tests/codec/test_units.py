"""Times, decimals and bytes in JSON: read by their units, together as one by one, and never as another instant."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec.json_read import Reading, _single, read_objects, read_together
from fkjoin.codec.units import Unit, from_connect, from_names
from fkjoin.errors import TopologyError
from fkjoin.spark.schemas import kind_text
from tests.support.json_values import KINDS, read

ROW = pa.struct([*KINDS.items(), ("list", pa.list_(pa.timestamp("us", "UTC"))), ("in", pa.struct([("at", KINDS["at"])]))])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "-03:30", "America/New_York"])

numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**6), 10**6) | st.integers(1_600_000_000, 1_800_000_000)
numbers |= st.sampled_from([0, 86_400_000, -86_400_000_000, 19_000, 1_690_366_967_048, 1_690_366_967_048_491])
WRITTEN = """2023-07-26|2023-07-26T10:22:47.048491Z|2023-07-26 10:22:47|2023-3-26T02:30:00+02:00|2023-02-30|x||1234|AAAA|E9I=
12.505|-7|1e3|deadbeef|_-8=|10:22:47.048491Z|24:00:00|P1DT2.5S|P1M|0001-01-01|2023-10-29 02:30:00|1690366967048
2023-07-26T10:22:47 Europe/Paris|9999-12-31 23:59:59.999999"""
UNITS = "days seconds millis micros nanos local base64 base64-url hex text unsure wkb"
written = st.sampled_from(WRITTEN.replace("\n", "|").split("|"))
values = st.none() | numbers | written | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
rows = st.fixed_dictionaries({}, optional=dict.fromkeys(KINDS, values) | {"list": st.lists(values, max_size=2)})
units = st.dictionaries(
    st.sampled_from([*KINDS, "list"]),
    st.sampled_from(UNITS.split(" ")).map(Unit),
)


@given(st.lists(rows, min_size=1, max_size=3), units, ZONES)
def test_together_is_as_one_by_one(some: list[Any], given_units: dict[str, Unit], zone: str) -> None:
    how = Reading({name: {"[]": unit} if name == "list" else unit for name, unit in given_units.items()}, zone)
    for texts in (list(map(json.dumps, some)), *[[json.dumps({name: one})] for row in some for name, one in row.items()]):
        found = read_together(pa.array(texts), ROW, how)
        if found is not None:
            wanted = [_single(text.encode(), ROW, how) for text in texts]
            assert all(fits for _, fits, _ in wanted)
            assert found.equals(pa.array([row for row, *_ in wanted], ROW))


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


MICROS, MILLIS, NANOS_, DAYS = Unit("micros"), Unit("millis"), Unit("nanos"), Unit("days")


@pytest.mark.parametrize(
    ("kind", "unit", "value", "wanted"),
    [
        ("local", MICROS, "1690366967048491", at("2023-07-26 10:22:47.048491")),
        ("local", NANOS_, "1690366967048491123", at("2023-07-26 10:22:47.048491")),
        ("local", NANOS_, "-1", at("1969-12-31 23:59:59.999999")),
        ("local", Unit("seconds"), "1690366967.5", at("2023-07-26 10:22:47.5")),
        ("local", DAYS, "19564", at("2023-07-26")),
        ("local", Unit("local"), '"2023-07-26T10:22:47Z"', at("2023-07-26 10:22:47")),
        ("day", DAYS, "19564", datetime.date(2023, 7, 26)),
        ("day", MILLIS, "1690329600000", datetime.date(2023, 7, 26)),
        ("day", None, '"2023-07-26Z"', datetime.date(2023, 7, 26)),
        ("time", MICROS, "37367048491", datetime.time(10, 22, 47, 48491)),
        ("time", Unit("millis", "time"), "37367048", datetime.time(10, 22, 47, 48000)),
        ("time", None, '"10:22:47.5Z"', datetime.time(10, 22, 47, 500000)),
        ("span", MICROS, "93784000000", datetime.timedelta(days=1, hours=2, minutes=3, seconds=4)),
        ("span", None, '"P0Y0M1DT2H3M4.0S"', datetime.timedelta(days=1, hours=2, minutes=3, seconds=4)),
        ("price", Unit("base64", scale=2), '"1234"', Decimal("-26588.24")),
        ("price", Unit("base64"), '"AeI="', Decimal("4.82")),
        ("price", Unit("text"), '"1234"', Decimal("1234.00")),
        ("price", None, '{"scale": 3, "value": "AeI="}', Decimal("0.48")),
        ("price", None, "12.505", Decimal("12.51")),
        ("price", Unit("unsure"), '"12.50"', Decimal("12.50")),
        ("data", None, '"q80="', b"\xab\xcd"),
        ("data", Unit("hex"), '"abcd"', b"\xab\xcd"),
        ("data", Unit("base64-url"), '"-_8"', b"\xfb\xff"),
        ("data", Unit("wkb"), '{"wkb": "AQE=", "srid": 4326}', b"\x01\x01"),
    ],
)  # fmt: skip
def test_a_value_is_read_by_its_unit(kind: str, unit: Unit | None, value: str, wanted: Any) -> None:
    assert read(KINDS[kind], unit, value) == (wanted, None)


@pytest.mark.parametrize(
    ("value", "unit", "zone", "wanted"),
    [
        ('"2023-07-26T12:22:47+02:00"', None, "UTC", "2023-07-26 10:22:47+00:00"),
        ('"2023-07-26 12:22:47"', None, "Europe/Berlin", "2023-07-26 10:22:47+00:00"),
        ('"2023-03-26 02:30:00"', None, "Europe/Berlin", "2023-03-26 01:30:00+00:00"),
        ('"2023-10-29 02:30:00"', None, "Europe/Berlin", "2023-10-29 00:30:00+00:00"),
        ('"2023-07"', None, "UTC", "2023-07-01 00:00:00+00:00"),
        ("1690366967048", MILLIS, "Asia/Tokyo", "2023-07-26 10:22:47.048+00:00"),
    ],
)
def test_clocks_without_a_zone_are_the_sessions(value: str, unit: Unit | None, zone: str, wanted: str) -> None:
    assert read(KINDS["at"], unit, value, zone) == (at(wanted), None)


@pytest.mark.parametrize(
    ("kind", "unit", "value", "advice"),
    [
        ("at", None, "1690366967048491", '1690366967048491 is a number without a unit; give units={"it": "micros"}, or days'),
        ("day", None, "19564", "is a number without a unit"),
        ("at", None, '"1690366967048491"', ""),
        ("at", None, '"169036"', ""),
        ("at", Unit("micros", "time"), "5", "is of the kind 'time'"),
        ("day", MILLIS, "1690366967048", "is not a whole day; take a timestamp column"),
        ("time", MICROS, "86400000000", "is not a time of day; take a bigint or interval column"),
        ("span", None, '"P1Y2M3DT4H5M6.78S"', "no fixed length; take a string column"),
        ("price", Unit("unsure"), '"1234"', 'may be base64 or a number; give units={"it": "text"}'),
        ("price", None, '"E9I="', ""),
        ("price", None, "12345678.00", ""),
        ("data", Unit("unsure"), '"abcd"', 'may be base64 or hex; give units={"it": "base64"}'),
        ("data", None, "5", ""),
    ],
)
def test_what_is_not_sure_is_not_read_and_the_way_out_is_told(kind: str, unit: Unit | None, value: str, advice: str) -> None:
    found, told = read(KINDS[kind], unit, value)
    assert found is None
    assert told is not None
    assert advice in told
    assert bool(advice) == bool(told)


SCHEMA = pa.schema(
    [("at", KINDS["at"]), ("n", pa.int64()), ("inner", pa.struct([("d", KINDS["price"])])), ("l", pa.list_(KINDS["day"]))]
)


def test_units_by_names() -> None:
    assert from_names({"at": "micros", "inner.d": "base64", "l": "days"}, SCHEMA, "Json", kind_text) == {
        "at": Unit("micros"),
        "inner": {"d": Unit("base64")},
        "l": {"[]": Unit("days")},
    }
    for name, unit, words in (
        ("att", "micros", r"Json: units: there is no column 'att'; .*at"),
        ("at", "hours", "'at' is timestamp; its unit 'hours' should be one of days, seconds, millis"),
        ("n", "micros", "'n' is bigint; its unit 'micros' should be left out"),
    ):
        with pytest.raises(TopologyError, match=words):
            from_names({name: unit}, SCHEMA, "Json", kind_text)


NO_SCHEMA_PARTS: list[Any] = [None, 5, {}, {"fields": "x"}, {"fields": [1, {"field": "at"}]}]


@pytest.mark.parametrize("odd", [*NO_SCHEMA_PARTS, {"fields": [{"field": "inner", "fields": 3}]}])
def test_an_odd_schema_part_tells_no_units(odd: Any) -> None:
    assert not any((from_connect(odd, pa.struct(list(SCHEMA))) or {}).values())


def test_a_map_is_read_by_its_texts() -> None:
    by_text = pa.struct([("m", pa.map_(pa.string(), pa.float32()))])
    read_rows = read_objects(pa.array(['{"m": {"a": 1.5, "b": null}}', "{}"]), by_text)
    assert read_rows.rows.to_pylist() == [{"m": [("a", 1.5), ("b", None)]}, {"m": None}]
