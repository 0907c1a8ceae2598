"""Values of JSON as times, decimals and bytes, by their units: one by one, or a column at once.

*Law*: what ``column`` takes, it reads as ``scalar`` does, value by value; it takes texts if
``scalar`` takes each. A number without a unit is never an instant.
"""

from __future__ import annotations

import base64
import binascii
import calendar
import contextlib
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

_UNIVERSAL = "UTC", "GMT", "Zulu", "UCT"
UTC = frozenset(
    (*_UNIVERSAL, *(f"Etc/{name}" for name in _UNIVERSAL), "Etc/Universal", "Z", "+00:00")
)
"""Names of zones whose clocks show UTC."""

_DATE = r"(?P<year>\d{4}|[+-]\d{4,7})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2}))?)?"
_TIME = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,9}))?)?"
)
_ZONE = r"\s*(?P<zone>Z|[+-][\d:]+|[A-Za-z][\w+:/-]*)?"
_INSTANT = re.compile(rf"\s*{_DATE}(?:[T ]{_TIME}{_ZONE}|[T ])?\s*", re.ASCII)
_ARROW_INSTANT = (
    r"^\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"
    r"(?:Z|[+-](?:0\d|1[0-7])(?::?[0-5]\d)?)?)?$"
)
"""Pattern of texts that Arrow's cast reads as ``_instant`` does.

Arrow also takes clocks of hours only, and any offset.
"""
_ONLY_DATE = re.compile(rf"\s*{_DATE}(?:Z|[T ].*)?\s*", re.ASCII)
_ONLY_TIME = re.compile(rf"\s*{_TIME}(?:Z|[+-]00:00)?\s*", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?", re.ASCII)
_SPAN = re.compile(
    r"(-?)P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?"
    r"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d{0,9})?)S)?)?",
    re.ASCII,
)
_SPAN_FIELDS = {"DAY": 24, "HOUR": 60, "MINUTE": 60, "SECOND": 10**6}
"""Number of next smaller units in each field, the last in microseconds."""
_SPAN_FIELD = f"({'|'.join(_SPAN_FIELDS)})"
_SQL_SPAN = re.compile(
    r"INTERVAL ([+-]?)'([+-]?)(\d+(?: \d+)?(?::\d+)*(?:\.\d{1,9})?)' "
    rf"{_SPAN_FIELD}(?: TO {_SPAN_FIELD})?",
    re.ASCII | re.IGNORECASE,
)
"""Pattern of an interval as Spark writes it: ``INTERVAL '-1 02:03:04.5' DAY TO SECOND``."""
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


class Number(str):
    """A number, as it was written."""

    __slots__ = ()


class MisfitError(ValueError):
    """A value that is not one of the type; its text says what to write instead, or nothing."""


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
        local = unit is not None and unit.name == "local"
        return _instant(value, zone, zoned=kind.tz is not None, local=local)
    if pa.types.is_date(kind):
        return _within(_days(_matched(_ONLY_DATE, value)), 31)
    if pa.types.is_time(kind):
        return 1000 * _clock(_matched(_ONLY_TIME, value))
    return _span(value)


def wire(kind: pa.DataType, unit: Unit | None) -> pa.DataType:
    """Choose the type with which Arrow's JSON reader reads a column of this ``special`` one."""
    if pa.types.is_decimal(kind) and (unit is None or unit.name == "text"):
        return kind
    temporal = not (pa.types.is_decimal(kind) or pa.types.is_binary(kind))
    return pa.int64() if temporal and unit is not None and unit.name in NANOS else pa.string()


def column(values: pa.Array, kind: pa.DataType, unit: Unit | None, zone: str) -> pa.Array | None:
    """A column of the type, from one of type ``wire``; None if a value may be none of the type."""
    if pa.types.is_integer(values.type):
        assert unit is not None
        return _counted_column(values, kind, unit)
    if pa.types.is_timestamp(kind) and (unit is None or unit.name != "local"):
        instants = _instants(values, kind, zone)
        if instants is not None:
            return instants
    try:
        if pa.types.is_decimal(values.type):
            values.validate(full=True)  # Arrow's reader takes numbers with more digits
            return values
        listed: list[Any] = values.to_pylist()
        for number, value in enumerate(listed):
            if value is not None:
                listed[number] = scalar(value, kind, unit, zone)
        return pa.array(listed, kind)
    except (MisfitError, pa.ArrowInvalid):
        return None


def _instants(values: pa.Array, kind: pa.DataType, zone: str) -> pa.Array | None:
    """Read texts by Arrow's cast; None if it takes one of them otherwise than ``_instant`` does."""
    if not pc.all(pc.match_substring_regex(values, _ARROW_INSTANT), min_count=0).as_py():
        return None
    # Arrow reads a column of texts with zones, or one without.  Clocks without a zone are of the
    # zone of the session, which Arrow knows only if that is UTC.
    tried = [pa.timestamp("us", "UTC")] if kind.tz is not None else []
    if zone in UTC or kind.tz is None:
        tried.append(pa.timestamp("us"))
    for type_ in tried:
        with contextlib.suppress(pa.ArrowInvalid):
            return values.cast(type_).cast(pa.int64()).cast(kind)
    return None


def _counted_column(values: pa.Array, kind: pa.DataType, unit: Unit) -> pa.Array | None:
    present, numbers = valid(values), pc.fill_null(values, 0).to_numpy()
    most = (_LIMIT - 1) // NANOS[unit.name] if unit.name != "nanos" else _LIMIT - 1
    if not _may_count(unit, kind) or (np.abs(numbers) > most).any() or (numbers == -_LIMIT).any():
        return None  # those that fit micros all the same are read one by one
    nanos = numbers * NANOS[unit.name]
    if pa.types.is_date(kind):
        counts = nanos // (1000 * _DAY)
        if (counts * (1000 * _DAY) != nanos).any():
            return None
        counts = counts.astype(np.int32)
    elif pa.types.is_time(kind):
        if ((nanos < 0) | (nanos >= 1000 * _DAY)).any():
            return None
        counts = nanos // 1000 * 1000
    else:
        counts = nanos // 1000
    return pa.array(counts, mask=~present).cast(kind)


def _may_count(unit: Unit, kind: pa.DataType) -> bool:
    if pa.types.is_time(kind):
        return unit.quantity in ("", "time")
    if pa.types.is_duration(kind):
        return unit.quantity in ("", "span")
    return unit.quantity in ("", "instant", "day")


def _counted(number: Number, kind: pa.DataType, unit: Unit | None) -> int:
    if unit is None or unit.name not in NANOS:
        raise MisfitError(
            f'{number} is a number without a unit; give units={{"…": "micros"}}, or '
            f"{', '.join(NANOS)} (for files: take a bigint column, and convert it with "
            "timestamp_micros(…) in map_values)"
        )
    if not _may_count(unit, kind):
        raise MisfitError(
            f"{number} counts {unit.name} of another kind than the column (the number is of the "
            f"kind {unit.quantity!r}); take a bigint column for it"
        )
    if len(number) >= _MOST_DIGITS:
        raise MisfitError
    try:
        exact = EXACT.multiply(Decimal(number), NANOS[unit.name])
        nanos = int(exact.to_integral_value("ROUND_FLOOR", EXACT))
    except (ArithmeticError, ValueError) as error:  # beyond all bounds, or no number at all
        raise MisfitError from error
    if pa.types.is_time(kind):
        if not 0 <= nanos < 1000 * _DAY:
            raise MisfitError(
                f"{number} {unit.name} is not a time of day; take a bigint or interval column "
                "for it"
            )
        return nanos // 1000 * 1000
    micros = nanos // 1000
    if pa.types.is_date(kind):
        if nanos % (1000 * _DAY):
            raise MisfitError(
                f"{number} {unit.name} is not a whole day; take a timestamp column for it"
            )
        return _within(micros // _DAY, 31)
    return _within(micros, 63)


def _within(whole: int, bits: int) -> int:
    if not -(1 << bits) <= whole < 1 << bits:
        raise MisfitError
    return whole


def _instant(text: str, zone: str, *, zoned: bool, local: bool) -> int:
    match = _matched(_INSTANT, text)
    if not zoned and match["zone"] and not local:
        raise MisfitError
    clock = _days(match) * _DAY + (_clock(match) if match["hour"] else 0)
    named = "UTC" if local else match["zone"] or zone
    return _within(clock - (_offset(named, clock) if zoned else 0), 63)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise MisfitError
    return match


def _days(match: re.Match[str]) -> int:
    """Days since 1970."""
    # Python has the years 1 to 9999, a column any: the calendar repeats itself every 400 years.
    year, month, day = int(match["year"]), int(match["month"] or 1), int(match["day"] or 1)
    cycles, rest = divmod(year - 1, _CYCLE_YEARS)
    if not (1 <= month <= 12 and 1 <= day <= calendar.monthrange(rest + 1, month)[1]):
        raise MisfitError
    return datetime.date(rest + 1, month, day).toordinal() + cycles * _CYCLE_DAYS - _EPOCH


def _clock(match: re.Match[str]) -> int:
    """Microseconds since midnight."""
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise MisfitError
    nanos = int((match["fraction"] or "").ljust(9, "0"))
    return ((hour * 60 + minute) * 60 + second) * 10**6 + nanos // 1000


def _offset(zone: str, clock: int) -> int:
    """The microseconds by which a zone is ahead of UTC when its clocks show so many since 1970."""
    if zone in UTC:
        return 0
    if (match := _OFFSET.fullmatch(zone)) is not None:
        hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        if minutes > 59 or seconds > 59 or (hours, minutes, seconds) > (18, 0, 0):
            raise MisfitError
        return (-1 if match[1] == "-" else 1) * ((hours * 60 + minutes) * 60 + seconds) * 10**6
    days, rest = divmod(clock, _DAY)
    ordinal = days + _EPOCH
    # Beyond Python's years, a zone has the offset of the same day in the first 400 years.
    if not 1 <= ordinal <= datetime.date.max.toordinal():
        ordinal = (ordinal - 1) % _CYCLE_DAYS + 1
    shown = datetime.datetime.fromordinal(ordinal) + datetime.timedelta(microseconds=rest)
    shift = shown.replace(tzinfo=_zone(zone)).utcoffset()
    assert shift is not None
    return shift // datetime.timedelta(microseconds=1)


@lru_cache(64)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise MisfitError(f"{name} is not a known time zone") from error


def _span(text: str) -> int:
    if (sql := _SQL_SPAN.fullmatch(text)) is not None:
        return _sql_span(sql)
    match = _matched(_SPAN, text)
    if not any(match.groups()[1:]):
        raise MisfitError
    sign, years, months, *rest = match.groups()
    if int(years or 0) or int(months or 0):
        raise MisfitError(
            f"{text} has years or months, which have no fixed length; take a string column for it"
        )
    days, hours, minutes = (int(part or 0) for part in rest[:3])
    whole_seconds = ((days * 24 + hours) * 60 + minutes) * 60
    micros = whole_seconds * 10**6 + int(Decimal(rest[3] or 0) * 10**6)
    return _within(-micros if sign else micros, 63)


def _sql_span(match: re.Match[str]) -> int:
    sign, inner, shown, first, last = match.groups()
    fields = list(_SPAN_FIELDS)
    start, end = fields.index(first.upper()), fields.index((last or first).upper())
    whole, _, fraction = shown.partition(".")
    numbers = [int(number) for number in re.split("[ :]", whole)]
    if len(numbers) != end - start + 1 or (fraction and fields[end] != "SECOND"):
        raise MisfitError
    if (" " in whole) != (start == 0 < end):  # it stands between days and what is behind them
        raise MisfitError
    # From the greatest field down: what there is so far is counted in the next smaller unit.
    total = 0
    for index, number in enumerate(numbers, start):
        if index > start and number >= _SPAN_FIELDS[fields[index - 1]]:
            raise MisfitError
        total = (total + number) * _SPAN_FIELDS[fields[index]]
    for name in fields[end + 1 :]:
        total *= _SPAN_FIELDS[name]
    micros = total + int(fraction.ljust(9, "0")) // 1000
    return _within(-micros if (sign == "-") != (inner == "-") else micros, 63)


def _decimal(value: Any, kind: pa.Decimal128Type, unit: Unit | None) -> Decimal:
    members = value if isinstance(value, dict) else {}
    unscaled, scale = members.get("value"), members.get("scale")
    if isinstance(unscaled, str) and isinstance(scale, Number):
        number = _unscaled(unscaled, int(scale) if SCALE.fullmatch(scale) else None)
    elif not isinstance(value, str) or len(value) > _LONGEST:
        raise MisfitError
    elif isinstance(value, Number) or unit is None or unit.name == "text":
        number = plain(value)
    elif unit.name == "base64":
        number = _unscaled(value, kind.scale if unit.scale is None else unit.scale)
    elif _BASE64.fullmatch(value):
        raise MisfitError(
            f'{value!r} may be base64 or a number; give units={{"…": "text"}} or "base64"'
        )
    else:
        number = plain(value)
    return rounded(number, kind)


def rounded(number: Decimal, kind: pa.Decimal128Type) -> Decimal:
    """The number with as many places as the type; ``MisfitError`` if it has too many digits."""
    try:
        digits = number.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, EXACT)
    except InvalidOperation as error:
        raise MisfitError from error
    if len(digits.as_tuple().digits) > kind.precision and digits:
        raise MisfitError
    return digits


def plain(text: str) -> Decimal:
    """Read the number of a text; ``MisfitError`` if it is none."""
    return Decimal(_matched(_DECIMAL, text)[0])


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
        bare = value.rstrip("=")
        return base64.b64decode(bare + "=" * (-len(bare) % 4), b"-_", validate=True)
    except ValueError as error:
        raise MisfitError from error


def _base64(text: str) -> bytes:
    return base64.b64decode(_matched(_BASE64, text)[0])
