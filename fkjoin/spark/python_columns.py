"""Values of Python, as decoders of records make them → columns of Arrow, a column at a time.

*Law*: a column has what its values have one by one.  A value that is none of its type has a problem
of its own.  A text column has a text as it is, and of anything else its JSON.  A whole
number is in a column of ``double``, ``float`` or ``decimal`` if that is exact.  A fraction of JSON
is in a decimal column as it was written.  Numbers in times, and texts in times, decimals and bytes,
are read by their units, as of JSON (``fkjoin.codec.json_values``).  An instant is none of a clock
without a zone.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import json_values
from fkjoin.codec.json_read import Reading
from fkjoin.codec.json_values import MisfitError, Number
from fkjoin.codec.units import ITEM, NANOS, UNSURE, Unit, is_special

_TIMES = datetime.datetime, datetime.date, datetime.time
_MISFITS = ValueError, TypeError, ArithmeticError, RecursionError, pa.ArrowException
"""Errors of values that are none of a column's type, or are too deep to be written as JSON."""

_TYPES: list[tuple[Callable[[pa.DataType], bool], set[type]]] = [
    (pa.types.is_boolean, {bool}),
    (pa.types.is_integer, {int}),
    (pa.types.is_date, {datetime.date}),
    (pa.types.is_time, {datetime.time}),
    (pa.types.is_duration, {datetime.timedelta}),
    (pa.types.is_binary, {bytes, bytearray}),
]
"""The types of values that Arrow takes for a column as they are."""


class Fraction(float):
    """A number of JSON that is not whole, and its text."""

    text: str

    def __new__(cls, text: str) -> Fraction:
        number = super().__new__(cls, text)
        if math.isinf(number) and text[-1].isdigit():
            raise ValueError(f"{text} is too large for a double")
        number.text = text
        return number


def build(
    values: Sequence[Mapping[str, Any]], kind: pa.StructType, how: Reading, silent: str = ""
) -> tuple[pa.StructArray, dict[int, str]]:
    """Make rows of mappings, whose members that the type lacks are left out.

    What does not fit is null, and has a problem: they come beside the rows, by their places.

    ``silent``: a member whose name is not in the paths of problems.
    """
    problems: dict[int, str] = {}
    columns = []
    for field in kind:
        name = "" if field.name == silent else field.name
        members, below = _members(values, field.name), _below(how, field.name)
        columns.append(_apart(members, field.type, below, name, problems))
    if not columns:
        return pa.array([{}] * len(values), kind), problems
    return pa.StructArray.from_arrays(columns, fields=list(kind)), problems


def _apart(
    values: list[Any],
    kind: pa.DataType,
    how: Reading,
    name: str,
    problems: dict[int, str],
    *,
    first: int = 0,
) -> pa.Array:
    """Make a column, in halves where a value does not fit; ``first``: the first value's place."""
    try:
        return _column(values, kind, how, name)
    except _MISFITS as error:
        if len(values) == 1:
            words = str(error) or f"{values[0]!r:.100} in a column of another type"
            problems.setdefault(first, words if words.startswith(name) else f"{name}: {words}")
            return pa.nulls(1, kind)
    half = len(values) // 2
    parts = (values[:half], first), (values[half:], first + half)
    return pa.concat_arrays(
        [_apart(some, kind, how, name, problems, first=start) for some, start in parts]
    )


def _column(values: list[Any], kind: pa.DataType, how: Reading, name: str) -> pa.Array:
    """Make a column of the type; ``ValueError`` and its like if a value is none of it."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.nulls(len(values), kind)
    if pa.types.is_string(kind):
        if kinds != {str}:
            values = [_text(value, name) for value in values]
        return pa.array(values, kind)
    if pa.types.is_struct(kind) and kinds == {dict}:
        parts = []
        for field in kind:
            members, below = _members(values, field.name), _below(how, field.name)
            path = f"{name}.{field.name}".lstrip(".")
            parts.append(_column(members, field.type, below, path))
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_nulls(values))
    if pa.types.is_list(kind) and kinds == {list}:
        items = [*chain.from_iterable(filter(None, values))]
        inner = _column(items, kind.value_type, _below(how, ITEM), name)
        return pa.ListArray.from_arrays(_offsets(values), inner, type=kind, mask=_nulls(values))
    if pa.types.is_map(kind) and kinds == {dict}:
        names = [*chain.from_iterable(filter(None, values))]
        keys = _column(names, kind.key_type, Reading(), name)
        items = [*chain.from_iterable(value.values() for value in values if value)]
        inner = _column(items, kind.item_type, _below(how, ITEM), name)
        return pa.MapArray.from_arrays(
            _offsets(values), keys, inner, type=kind, mask=_nulls(values)
        )
    for test, types in _TYPES:
        if test(kind) and kinds <= types:
            return pa.array(values, kind)
    if pa.types.is_floating(kind) and kinds <= {float, Fraction, int}:
        return _floats(values, kind, name)
    unit = _unit(how)
    is_clock = pa.types.is_timestamp(kind) and kinds == {datetime.datetime}
    if is_clock and (kind.tz is not None or unit is None or unit.quantity != "instant"):
        _require_zone(values, kind, name)
        return pa.array(values, kind)
    return _special(values, kinds, kind, how, name)


def _special(
    values: list[Any], kinds: set[type], kind: pa.DataType, how: Reading, name: str
) -> pa.Array:
    """Make a column whose values need their unit, or another word."""
    unit = _unit(how)
    is_decimal, is_binary = pa.types.is_decimal(kind), pa.types.is_binary(kind)
    if is_decimal and kinds == {bytes} and unit is not None and unit.name == "unscaled":
        return _decimals(values, kind, unit.scale or 0)
    if is_decimal and kinds <= {Decimal, dict, int, Fraction}:
        return _decimals(values, kind)
    if is_binary and kinds == {dict} and unit is not None and unit.name == "wkb":
        return _column(_members(values, "wkb"), kind, Reading(), name)
    if is_special(kind) and kinds == {int} and not (is_decimal or is_binary):
        return _read(pa.array(values, pa.int64()), kind, how, name)
    if is_special(kind) and kinds == {str}:
        unit = UNSURE if unit is None and is_binary else unit
        return _read(pa.array(values, pa.string()), kind, Reading(unit, how.zone), name)
    first = next(value for value in values if value is not None)
    raise ValueError(
        f"{name}: {first!r:.100} is {type(first).__name__}; give the column the type that it has"
    )


def _read(values: pa.Array, kind: pa.DataType, how: Reading, name: str) -> pa.Array:
    """Read whole numbers, or texts, as of JSON."""
    numbers = pa.types.is_integer(values.type)
    unit = _unit(how)
    if not numbers or (unit is not None and unit.name in NANOS):
        column = json_values.column(values, kind, unit, how.zone)
        if column is not None:
            return column
    items = []
    for value in values.to_pylist():
        try:
            argument = Number(value) if numbers and value is not None else value
            items.append(
                None if value is None else json_values.scalar(argument, kind, unit, how.zone)
            )
        except MisfitError as error:
            words = str(error).replace("…", name) or f"{value!r} is not of the column's type"
            raise ValueError(f"{name}: {words}") from error
    return pa.array(items, kind)


def _floats(values: list[Any], kind: pa.DataType, name: str) -> pa.Array:
    try:
        column = pa.array(values, kind)
        if not pc.any(pc.is_inf(column)).as_py():
            return column
    except pa.ArrowInvalid:  # Arrow takes whole numbers of 53 bits, or of 24
        column = pa.array([*map(_float, values)], kind)
    for value, taken in zip(values, column.to_pylist(), strict=True):
        if type(value) is int and value != taken:
            raise ValueError(
                f"{name}: a {kind} column cannot store {value} exactly; "
                "take a bigint or decimal column"
            )
        if value is not None and math.isinf(taken) and not math.isinf(value):
            raise ValueError(
                f"{name}: {value} is too large for a {kind} column; take a double column"
            )
    return column


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _unscaled(values: list[Any], kind: pa.Decimal128Type, scale: int) -> pa.Array:
    """Make decimals of whole numbers in bytes, the first byte the greatest."""
    numbers = [int.from_bytes(value or b"", "big", signed=True) for value in values]  # null: 0
    octets = b"".join([number.to_bytes(16, "little", signed=True) for number in numbers])
    whole = pa.Array.from_buffers(
        pa.decimal128(38, scale), len(values), [None, pa.py_buffer(octets)]
    )
    return pc.if_else(pc.invert(_nulls(values)), whole, pa.scalar(None, whole.type)).cast(kind)


def _decimals(values: list[Any], kind: pa.Decimal128Type, scale: int | None = None) -> pa.Array:
    """Make decimals, rounded to the column's scale.

    They are of numbers, of bytes with the scale, or of mappings that have both.
    """
    try:
        return pa.array(values, kind) if scale is None else _unscaled(values, kind, scale)
    except (pa.ArrowException, OverflowError):
        return pa.array([_rounded(value, scale, kind) for value in values], kind)


def _rounded(value: Any, scale: int | None, kind: pa.Decimal128Type) -> Decimal | None:
    return None if value is None else json_values.rounded(_decimal(value, scale), kind)


def _decimal(value: Any, scale: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, int | Fraction):
        return json_values.plain(value.text if isinstance(value, Fraction) else str(value))
    octets = value
    if isinstance(value, dict):
        scale, octets = value.get("scale"), value.get("value")
    if type(scale) is not int or not isinstance(octets, bytes) or not -400 < scale < 400:
        raise ValueError("a record in a decimal column does not have a scale and a value")
    return Decimal(int.from_bytes(octets, "big", signed=True)).scaleb(-scale, json_values.EXACT)


def _require_zone(values: list[Any], kind: pa.TimestampType, name: str) -> None:
    for value in values:
        if value is not None and (value.tzinfo is None) is (kind.tz is not None):
            if kind.tz is not None:
                raise ValueError(f"{name}: {value} has no time zone; take a timestamp_ntz column")
            raise ValueError(f"{name}: {value} has a time zone; take a timestamp column")


def _text(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        raise ValueError(f"{name}: bytes are not text; take a binary column")
    text = json.dumps(
        value, ensure_ascii=False, separators=(",", ":"), default=partial(_named, name)
    )
    return json.loads(text) if text.startswith('"') else text


def _named(name: str, value: Any) -> Any:
    """Write values that JSON has no type for into a text column."""
    if isinstance(value, _TIMES):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise ValueError(
        f"{name}: {type(value).__name__} in a text column; give the column the type that it has"
    )


def _unit(how: Reading) -> Unit | None:
    return how.units if isinstance(how.units, Unit) else None


def _below(how: Reading, name: str) -> Reading:
    return Reading(how.units.get(name) if isinstance(how.units, Mapping) else None, how.zone)


def _members(values: Sequence[Any], name: str) -> list[Any]:
    try:
        return [value[name] for value in values]
    except (KeyError, TypeError):  # some lack it, or are null
        return [(value or {}).get(name) for value in values]


def _nulls(values: list[Any]) -> pa.BooleanArray:
    return pa.array([value is None for value in values])


def _offsets(values: list[Any]) -> pa.Int32Array:
    return pa.array(np.cumsum([0, *(len(value or ()) for value in values)]), pa.int32())
