"""Texts of times and intervals in JSON: a column reads what a single value does, whatever stands beside it."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example
from hypothesis import strategies as st

from fkjoin.codec.json_values import MisfitError, column, scalar
from fkjoin.codec.units import Unit
from tests.support.laws import law

KINDS: list[pa.DataType] = [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.time64("ns"), pa.duration("us")]
DATES = "2024-01-01|2024-02-29|2023-02-29|2024-1-1|2024|0000-01-01|1500-03-01|+10000-01-01|-0001-12-31|+5881580-07-11|20240101"
CLOCKS = "10|10:11|1:2|10:11:12|1011|101112|24:00|23:59:60|10:11:12.|10:11:12.5|10:11:12.123456|10:11:12.123456789|10:60"
OFFSETS = "Z|z|+01|+01:30|+0130|-18:00|+18:01|+18|+19:00|+23:59|+00:53:28|+1|-00:60|+01:00:60| UTC| Europe/Berlin|EST|x"
SPANS = "INTERVAL '-1 02:03:04.5' DAY TO SECOND|INTERVAL '1' DAY|P1DT2S|1 02:03:04"
clocks = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "", "", "", " "]),
        st.just("2024-01-01") | st.sampled_from(DATES.split("|")),
        st.just("T") | st.sampled_from(["T", " ", "", "t"]),
        st.sampled_from(["10", "10:11"]) | st.sampled_from(["", *CLOCKS.split("|")]),
        st.sampled_from(["", "", *OFFSETS.split("|")]),
    ),
)
plain = st.datetimes().map(lambda at: at.isoformat()) | st.datetimes(timezones=st.just(datetime.UTC)).map(str)
texts = clocks | plain | st.sampled_from([*CLOCKS.split("|"), *SPANS.split("|"), "", "x"])


def alone(text: str | None, kind: pa.DataType, unit: Unit | None, zone: str) -> Any:
    """Read one text as a number; ``misfit`` if it is none of the type."""
    if text is None:
        return None
    try:
        return scalar(text, kind, unit, zone)
    except MisfitError:
        return "misfit"


@example(["2024-01-01T10", "2024-01-01T10:11:12Z"], KINDS[0], None, "UTC")
@example(["2024-01-01 10+01", "2024-1-1"], KINDS[0], None, "UTC")
@law(
    900,
    some=st.lists(st.none() | texts, min_size=1, max_size=4) | texts.map(lambda text: [text]),
    kind=st.sampled_from(KINDS[:2]) | st.sampled_from(KINDS),
    unit=st.sampled_from([None, None, Unit("local")]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "-03:30"]),
)
def test_a_column_takes_what_each_value_alone_is_taken_as(
    some: list[Any], kind: pa.DataType, unit: Unit | None, zone: str
) -> None:
    wanted = [alone(text, kind, unit, zone) for text in some]
    found = column(pa.array(some, pa.string()), kind, unit, zone)
    if "misfit" in wanted:
        assert found is None
    else:
        assert found is not None
        assert found.equals(pa.array(wanted, kind))


@pytest.mark.parametrize(
    "text",
    ["2024-01-01T10", "2024-01-01T10Z", "2024-01-01 10+01", "2024-01-01T10:11+19:00", "2024-01-01T10:11+18:01"],
)
def test_what_spark_takes_for_no_time_is_none(text: str) -> None:
    assert alone(text, KINDS[0], None, "UTC") == "misfit"


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("INTERVAL '1 02:03:04' DAY TO SECOND", 93_784_000_000),
        ("interval -'0 00:00:00.000001' day to second", -1),
        ("INTERVAL '-106751991 04:00:54.775808' DAY TO SECOND", -(2**63)),
        ("INTERVAL '106751991 04:00:54.775808' DAY TO SECOND", "misfit"),
        ("INTERVAL '-1' DAY", -86_400_000_000),
        ("INTERVAL '1 02' DAY TO HOUR", 93_600_000_000),
        ("INTERVAL '1 02:03' DAY TO MINUTE", 93_780_000_000),
        ("INTERVAL '100:03' HOUR TO MINUTE", 360_180_000_000),
        ("INTERVAL '-01:02:03.4' HOUR TO SECOND", -3_723_400_000),
        ("INTERVAL '100:03.000001' MINUTE TO SECOND", 6_003_000_001),
        ("INTERVAL '-100.25' SECOND", -100_250_000),
        ("INTERVAL '1 24:00:00' DAY TO SECOND", "misfit"),
        ("INTERVAL '1 02:03' DAY TO SECOND", "misfit"),
        ("INTERVAL '1.5' DAY", "misfit"),
        ("INTERVAL '1' SECOND TO DAY", "misfit"),
        ("INTERVAL '1-2' YEAR TO MONTH", "misfit"),
    ],
)
def test_intervals_are_read_as_spark_writes_them(text: str, micros: Any) -> None:
    assert alone(text, pa.duration("us"), None, "UTC") == micros
    made = column(pa.array([None, text]), pa.duration("us"), None, "UTC")
    assert (None if made is None else made.cast(pa.int64()).to_pylist()) == (None if micros == "misfit" else [None, micros])
