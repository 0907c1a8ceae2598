"""Values of JSON as times, decimals and bytes, by their units (``fkjoin.codec.units``): one by one,
and a column at once.

*Law*: what ``column`` takes, it reads as ``scalar`` does, value by value; it takes texts if
``scalar`` takes each. A number without a unit is never an instant.
"""

from __future__ import annotations

import base64
import binascii
import calendar
import datetime
import re
import zoneinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import valid
from fkjoin.codec.units import NANOS, SCALE, UNSURE, Unit

_DAY = 86_400 * 10**6
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_EPOCH = datetime.date(1970, 1, 1).toordinal()
EXACT = Context(prec=200, Emin=-400, Emax=400)
_LIMIT = 1 << 63
_MOST_DIGITS, _LONGEST = 60, 240
"""Lengths of a number, and of the text of a time: Python reads no number of thousands of digits."""

UTC = frozenset(
    (
        "UTC",
        "Z",
        "GMT",
        "Etc/UTC",
        "Etc/GMT",
        "Etc/Zulu",
        "Zulu",
        "UCT",
        "Etc/UCT",
        "Etc/Universal",
        "+00:00",
    )
)
"""Names of zones whose clocks show UTC."""

_DATE = r"(?P<year>\d{4}|[+-]\d{4,7})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2}))?)?"
_TIME = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,9}))?)?"
)
_ZONE = r"\s*(?P<zone>Z|[+-][\d:]+|[A-Za-z][\w+:/-]*)?"
_INSTANT = re.compile(rf"\s*{_DATE}(?:[T ]{_TIME}{_ZONE}|[T ])?\s*", re.ASCII)
_ARROW_INSTANT = r"^\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-](?:0\d|1[0-7])(?::?[0-5]\d)?)?)?$"
"""Pattern of texts that Arrow's cast reads as ``_instant`` does; Arrow also takes clocks of hours only, and any offset."""
_ONLY_DATE = re.compile(rf"\s*{_DATE}(?:Z|[T ].*)?\s*", re.ASCII)
_ONLY_TIME = re.compile(rf"\s*{_TIME}(?:Z|[+-]00:00)?\s*", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?", re.ASCII)
_SPAN = re.compile(
    r"(-?)P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d{0,9})?)S)?)?",
    re.ASCII,
)
_SPAN_FIELDS = {"DAY": 24, "HOUR": 60, "MINUTE": 60, "SECOND": 10**6}
"""Number of next smaller units in each field, the last in microseconds."""
_SPAN_FIELD = f"({'|'.join(_SPAN_FIELDS)})"
_SQL_SPAN = re.compile(
    rf"INTERVAL ([+-]?)'([+-]?)(\d+(?: \d+)?(?::\d+)*(?:\.\d{{1,9}})?)' {_SPAN_FIELD}(?: TO {_SPAN_FIELD})?",
    re.ASCII | re.IGNORECASE,
)
"""Pattern of an interval as Spark writes it: ``INTERVAL '-1 02:03:04.5' DAY TO SECOND``."""
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


class Number(str):
    """A number, as it was written."""

    __slots__ = ()


class MisfitError(ValueError):
    """A value that is not one of the type; its text says what to write instead, if there is something to write."""


def scalar(value: Any, kind: pa.DataType, unit: Unit | None, zone: str) -> Any:
    """A value that is not null as Arrow takes it for the type, which must be ``special``;
    ``MisfitError`` if it is none.

    ``zone``: where clocks are read that say no zone.
    """
    if pa.types.is_decimal(kind):
        return _decimal(value, kind, unit)
    if pa.types.is_binary(kind):
        return _bytes(value, unit)
    if isinstance(value, Number):
        return _counted(value, kind, unit)
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise MisfitError
    if pa.types.is_timestamp(kind):
        return _instant(
            value, zone, zoned=kind.tz is not None, local=unit is not None and unit.name == "local"
        )
    if pa.types.is_date(kind):
        return _date(value)
    return _time_of_day(value) if pa.types.is_time(kind) else _span(value)


def wire(kind: pa.DataType, unit: Unit | None) -> pa.DataType:
    """Choose the type with which Arrow's JSON reader reads a column of this one, which must be ``special``."""
    if pa.types.is_decimal(kind) and (unit is None or unit.name == "text"):
        return kind
    counts = (
        unit is not None
        and unit.name in NANOS
        and not (pa.types.is_decimal(kind) or pa.types.is_binary(kind))
    )
    return pa.int64() if counts else pa.string()


def column(values: pa.Array, kind: pa.DataType, unit: Unit | None, zone: str) -> pa.Array | None:
    """A column of the type, from one of type ``wire``; None if a value may be none of the type."""
    if pa.types.is_decimal(values.type):
        return _within_precision(values)
    if pa.types.is_integer(values.type):
        assert unit is not None
        return _counted_column(values, kind, unit)
    if pa.types.is_timestamp(kind) and (unit is None or unit.name != "local"):
        known = pc.all(pc.match_substring_regex(values, _ARROW_INSTANT), min_count=0).as_py()
        for tried in (pa.timestamp("us", "UTC"), pa.timestamp("us")) if known else ():
            if (tried.tz is not None or zone in UTC or kind.tz is None) and (
                kind.tz is not None or tried.tz is None
            ):
                try:
                    return values.cast(tried).cast(pa.int64()).cast(kind)
                except pa.ArrowInvalid:
                    pass
    try:
        return pa.array(
            [
                None if value is None else scalar(value, kind, unit, zone)
                for value in values.to_pylist()
            ],
            kind,
        )
    except (MisfitError, pa.ArrowInvalid):
        return None


def _within_precision(values: pa.Array) -> pa.Array | None:
    try:
        values.validate(full=True)  # Arrow's reader takes numbers with more digits
    except pa.ArrowInvalid:
        return None
    return values


def _counted_column(values: pa.Array, kind: pa.DataType, unit: Unit) -> pa.Array | None:
    there, numbers = valid(values), pc.fill_null(values, 0).to_numpy()
    most = (_LIMIT - 1) // NANOS[unit.name] if unit.name != "nanos" else _LIMIT - 1
    if not _may_count(unit, kind) or (np.abs(numbers) > most).any() or (numbers == -_LIMIT).any():
        return None  # those that fit micros all the same are read one by one
    nanos = numbers * NANOS[unit.name]
    if pa.types.is_date(kind):
        made = nanos // (1000 * _DAY)
        if (made * (1000 * _DAY) != nanos).any():
            return None
        made = made.astype(np.int32)
    elif pa.types.is_time(kind):
        if ((nanos < 0) | (nanos >= 1000 * _DAY)).any():
            return None
        made = nanos // 1000 * 1000
    else:
        made = nanos // 1000
    return pa.array(made, mask=~there).cast(kind)


def _may_count(unit: Unit, kind: pa.DataType) -> bool:
    if pa.types.is_time(kind):
        return unit.of in ("", "time")
    return unit.of in (("", "span") if pa.types.is_duration(kind) else ("", "instant", "day"))


def _counted(number: Number, kind: pa.DataType, unit: Unit | None) -> int:
    if unit is None or unit.name not in NANOS:
        raise MisfitError(
            f'{number} is a number without a unit; give units={{"…": "micros"}}, or {", ".join(NANOS)} '
            "(of files: take a bigint column, and timestamp_micros(…) in map_values)"
        )
    if not _may_count(unit, kind):
        raise MisfitError(
            f"{number} counts {unit.name} of another kind (it is a {unit.of}); take a bigint column for it"
        )
    try:
        exact = (
            EXACT.multiply(Decimal(number), NANOS[unit.name])
            if len(number) < _MOST_DIGITS
            else None
        )
        nanos = (
            None
            if exact is None or not exact.is_finite()
            else int(exact.to_integral_value("ROUND_FLOOR", EXACT))
        )
    except (InvalidOperation, ArithmeticError):
        nanos = None
    if nanos is None:
        raise MisfitError
    if pa.types.is_time(kind):
        if not 0 <= nanos < 1000 * _DAY:
            raise MisfitError(
                f"{number} {unit.name} are no time of day; take a bigint or interval column for it"
            )
        return nanos // 1000 * 1000
    micros = nanos // 1000
    if pa.types.is_date(kind):
        if nanos % (1000 * _DAY):
            raise MisfitError(
                f"{number} {unit.name} are no whole day; take a timestamp column for it"
            )
        return _within(micros // _DAY, 31)
    return _within(micros, 63)


def _within(whole: int, bits: int) -> int:
    if not -(1 << bits) <= whole < 1 << bits:
        raise MisfitError
    return whole


def _instant(text: str, zone: str, *, zoned: bool, local: bool) -> int:
    found = _INSTANT.fullmatch(text)
    if found is None or (not zoned and found["zone"] and not local):
        raise MisfitError
    clock = _days(found) * _DAY + (_clock(found) if found["hour"] else 0)
    named = "UTC" if local else found["zone"] or zone
    return _within(clock - (_offset(named, clock) if zoned else 0), 63)


def _date(text: str) -> int:
    found = _ONLY_DATE.fullmatch(text)
    if found is None:
        raise MisfitError
    return _within(_days(found), 31)


def _time_of_day(text: str) -> int:
    found = _ONLY_TIME.fullmatch(text)
    if found is None:
        raise MisfitError
    return 1000 * _clock(found)


def _days(found: re.Match[str]) -> int:
    """Days since 1970."""
    year, month, day = int(found["year"]), int(found["month"] or 1), int(found["day"] or 1)
    cycles, rest = divmod(year - 1, _CYCLE_YEARS)
    if not (1 <= month <= 12 and 1 <= day <= calendar.monthrange(rest + 1, month)[1]):
        raise MisfitError
    return datetime.date(rest + 1, month, day).toordinal() + cycles * _CYCLE_DAYS - _EPOCH


def _clock(found: re.Match[str]) -> int:
    """Microseconds since midnight."""
    hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise MisfitError
    return ((hour * 60 + minute) * 60 + second) * 10**6 + int(
        (found["fraction"] or "").ljust(9, "0")
    ) // 1000


def _offset(zone: str, clock: int) -> int:
    """Return by how many microseconds a zone is ahead of UTC when its clocks show so many since 1970."""
    if zone in UTC:
        return 0
    if (found := _OFFSET.fullmatch(zone)) is not None:
        hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
        if minutes > 59 or seconds > 59 or (hours, minutes, seconds) > (18, 0, 0):
            raise MisfitError
        return (-1 if found[1] == "-" else 1) * ((hours * 60 + minutes) * 60 + seconds) * 10**6
    days, rest = divmod(clock, _DAY)
    at = datetime.datetime.fromordinal((days + _EPOCH - 1) % _CYCLE_DAYS + 1) + datetime.timedelta(
        microseconds=rest
    )
    if 1 <= (days + _EPOCH) <= datetime.date.max.toordinal():
        at = datetime.datetime.fromordinal(days + _EPOCH) + datetime.timedelta(microseconds=rest)
    shift = at.replace(tzinfo=_zone(zone)).utcoffset()
    assert shift is not None
    return shift // datetime.timedelta(microseconds=1)


@lru_cache(64)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise MisfitError(f"{name} is no time zone that is known here") from error


def _span(text: str) -> int:
    if (sql := _SQL_SPAN.fullmatch(text)) is not None:
        return _sql_span(sql)
    found = _SPAN.fullmatch(text)
    if found is None or not any(found.groups()[1:]):
        raise MisfitError
    sign, years, months, *rest = found.groups()
    if int(years or 0) or int(months or 0):
        raise MisfitError(
            f"{text} has years or months, which have no fixed length; take a string column for it"
        )
    days, hours, minutes = (int(part or 0) for part in rest[:3])
    micros = (((days * 24 + hours) * 60 + minutes) * 60) * 10**6 + int(
        Decimal(rest[3] or 0) * 10**6
    )
    return _within(-micros if sign else micros, 63)


def _sql_span(found: re.Match[str]) -> int:
    sign, inner, shown, first, last = found.groups()
    fields = list(_SPAN_FIELDS)
    start, end = fields.index(first.upper()), fields.index((last or first).upper())
    whole, _, fraction = shown.partition(".")
    numbers = [int(number) for number in re.split("[ :]", whole)]
    spaced = start == 0 < end
    if (
        len(numbers) != end - start + 1
        or spaced != (" " in whole)
        or (fraction and fields[end] != "SECOND")
    ):
        raise MisfitError
    total = 0
    for place, number in enumerate(numbers, start):
        if place > start and number >= _SPAN_FIELDS[fields[place - 1]]:
            raise MisfitError
        total = (total + number) * _SPAN_FIELDS[fields[place]]
    for name in fields[end + 1 :]:
        total *= _SPAN_FIELDS[name]
    micros = total + int(fraction.ljust(9, "0")) // 1000
    return _within(-micros if (sign == "-") != (inner == "-") else micros, 63)


def _decimal(value: Any, kind: pa.Decimal128Type, unit: Unit | None) -> Decimal:
    if (
        isinstance(value, dict)
        and isinstance(value.get("value"), str)
        and isinstance(value.get("scale"), Number)
    ):
        found = _unscaled(
            value["value"], int(value["scale"]) if SCALE.fullmatch(value["scale"]) else None
        )
    elif not isinstance(value, str) or len(value) > _LONGEST:
        raise MisfitError
    elif isinstance(value, Number) or unit is None or unit.name == "text":
        found = plain(value)
    elif unit.name == "base64":
        found = _unscaled(value, kind.scale if unit.scale is None else unit.scale)
    elif _BASE64.fullmatch(value):
        raise MisfitError(
            f'{value!r} may be base64 or a number; give units={{"…": "text"}} or "base64"'
        )
    else:
        found = plain(value)
    return rounded(found, kind)


def rounded(found: Decimal, kind: pa.Decimal128Type) -> Decimal:
    """The number with as many places as the type has; ``MisfitError`` if it has more digits than the type."""
    try:
        made = found.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, EXACT)
    except InvalidOperation as error:
        raise MisfitError from error
    if len(made.as_tuple().digits) > kind.precision and made:
        raise MisfitError
    return made


def plain(text: str) -> Decimal:
    """Read the number of a text; ``MisfitError`` if it is none."""
    if not _DECIMAL.fullmatch(text):
        raise MisfitError
    return Decimal(text)


def _unscaled(text: str, scale: int | None) -> Decimal:
    if scale is None or not -400 < scale < 400 or not text:
        raise MisfitError
    return Decimal(int.from_bytes(_base64(text), "big", signed=True)).scaleb(-scale, EXACT)


def _bytes(value: Any, unit: Unit | None) -> bytes:
    name = "base64" if unit is None else unit.name
    if name == "wkb":
        value, name = (value.get("wkb") if isinstance(value, dict) else None), "base64"
    if not isinstance(value, str) or isinstance(value, Number):
        raise MisfitError
    if unit == UNSURE:
        raise MisfitError(
            'a text may be base64 or hex; give units={"…": "base64"}, "base64-url" or "hex"'
        )
    if name == "base64":
        return _base64(value)
    try:
        if name == "hex":
            return binascii.unhexlify(value)
        if name != "base64-url":
            raise MisfitError
        return base64.b64decode(
            value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4), b"-_", validate=True
        )
    except ValueError as error:
        raise MisfitError from error


def _base64(text: str) -> bytes:
    if not _BASE64.fullmatch(text):
        raise MisfitError
    return base64.b64decode(text)
