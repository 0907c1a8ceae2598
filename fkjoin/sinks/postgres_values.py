"""Columns as Arrow writes them into CSV and PostgreSQL reads them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.sinks.column_types import beyond_years

_NO_TIME = "NaT"
_LEAST = "-290308-12-21T19:59:05.224192"
"""The least number of microseconds, which NumPy takes for no time at all."""


def spelled(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, or texts in its place.

    Texts stand for intervals, and for times and days where one is outside of the years 1 to 9999,
    of which Arrow's text is PostgreSQL's.
    Times are microseconds.  Arrow writes another instant for times that nanoseconds cannot count.
    """
    kind = values.type
    if pa.types.is_duration(kind):
        numbers = values.cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(numbers, "microseconds", " ")
    is_day = pa.types.is_date32(kind)
    if not (is_day or pa.types.is_timestamp(kind)) or not beyond_years(values):
        return values
    counted = values.cast(pa.int32() if is_day else pa.int64())
    zone = "" if is_day or kind.tz is None else "+00"
    texts = [_spelled(number, zone, is_day=is_day) for number in counted.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _spelled(number: int | None, zone: str, *, is_day: bool) -> str | None:
    """``-0043-03-15T12:00:00`` → ``0044-03-15T12:00:00+00 BC``: the year 0 is 1 BC."""
    if number is None:
        return None
    text = str(np.datetime64(number, "D") if is_day else np.datetime64(number, "us"))
    text = _LEAST if text == _NO_TIME else text
    year, rest = text.removeprefix("-").split("-", 1)
    number = -int(year) if text.startswith("-") else int(year)
    return f"{number:04}-{rest}{zone}" if number > 0 else f"{1 - number:04}-{rest}{zone} BC"
