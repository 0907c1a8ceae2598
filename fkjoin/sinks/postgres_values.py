"""Columns as Arrow writes them into CSV and PostgreSQL reads them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DAYS = (-719_162, 2_932_896)
"""The first and the last day of the years 1 to 9999, of which Arrow's text is PostgreSQL's."""
_MICROSECONDS = 86_400_000_000
_NO_TIME = "NaT"
_LEAST = "-290308-12-21T19:59:05.224192"
"""The least number of microseconds, which NumPy takes for no time at all."""


def spelled(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, or texts in its place.

    Texts stand for intervals, and for times and days where one is outside of the years 1 to 9999.
    Times are microseconds.  Arrow writes another instant for times that nanoseconds cannot count.
    """
    kind = values.type
    if pa.types.is_duration(kind):
        numbers = values.cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(numbers, "microseconds", " ")
    if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return values
    is_day = pa.types.is_date32(kind)
    step = 1 if is_day else _MICROSECONDS
    counted = values.cast(pa.int32() if is_day else pa.int64())
    ends = pc.min_max(counted)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    if least is None or (least >= _DAYS[0] * step and most < (_DAYS[1] + 1) * step):
        return values
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
