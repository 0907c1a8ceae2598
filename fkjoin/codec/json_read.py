"""JSON texts, one object each, as rows, without the JVM.

``loaded`` says what JSON is: RFC 8259 in UTF-8, and ``NaN``, ``Infinity`` and ``-Infinity``; of no
more than ``DEEPEST`` levels, and without half a surrogate pair.

Arrow's reader parses what has the types that the schema says.  Texts that it does not take (they
are few) are read one by one: a field of another type is null, except that a text column takes any
JSON as its text; of fields that occur twice the last counts; a text that is not a JSON object is a
row of nulls.  ``read_objects`` also says which texts are as they should be. Times, decimals and
bytes are read by their units (``fkjoin.codec.units``).

*Law*: a text's row, and whether it fits, do not depend on the texts beside it.
"""

from __future__ import annotations

import functools
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from fkjoin.codec import json_values
from fkjoin.codec.arrays import (
    Bools,
    Bytes,
    Ints,
    Octets,
    as_bytes,
    buffers,
    concat,
    constant,
    is_any,
)
from fkjoin.codec.json_values import MisfitError, Number
from fkjoin.codec.units import ITEM, Notation, Unit, is_special

DEEPEST = 200
"""Levels of objects and arrays, the outermost among them: Python's JSON needs a stack for them."""

_ALONE = 64
"""Number of texts up to which those that are not taken together are read one by one."""

_FEWER = 8

_END = uuid.uuid4().hex[:8]
"""Name of a member that no text has, see ``_ended``: each process has another."""
_DIGITS = 40
_WHOLE = re.compile(r"-?[0-9]+")
_FLOATS = "NaN", "Infinity", "+Infinity", "+INF", "-Infinity", "-INF"
"""Texts that count as floating numbers."""
_BEYOND = {32: (2 - 2**-24) * 2.0**127, 64: math.inf}
"""Least number, by the bits of a type, that the type has only infinity for."""
_INFINITY = re.compile(rb"Inf[ \t\r\n]*[,}\]]")
_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")
"""Pattern of an escape that may be half a surrogate pair."""
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
"""Pattern of a string, which may lack its end; in this form it is searched for in linear time."""
_OPENS, _CLOSES = list(b"[{"), list(b"]}")


@dataclass(frozen=True)
class Reading:
    """Rules for values that JSON has no types of its own for."""

    units: Notation = None
    """Notation of the whole object."""
    zone: str = "UTC"
    """Time zone of clocks that name none."""


PLAIN = Reading()


class Objects(NamedTuple):
    """Rows that texts stand for."""

    rows: pa.StructArray
    fits: Bools
    """True for a text that is a JSON object with fields of the wanted types."""
    advice: Mapping[int, str]
    """Advice, by row, for some that do not fit."""


def parsable(kind: pa.DataType) -> bool:
    """Tell whether columns of the type can be read here: text, truth, numbers, structs and lists of
    them, what has units, and maps by text.
    """
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return len(names) == len(set(names)) and all(parsable(field.type) for field in kind)
    if pa.types.is_map(kind):
        return bool(pa.types.is_string(kind.key_type)) and parsable(kind.item_type)
    if pa.types.is_list(kind):
        return parsable(kind.value_type)
    plain = is_any(kind, "string", "boolean", "signed_integer", "float32", "float64")
    return plain or is_special(kind)


def read_objects(texts: pa.Array, kind: pa.StructType, how: Reading = PLAIN) -> Objects:
    """A row per text, which is UTF-8; a null text gives a null row; ``kind``: ``parsable``::

        if Arrow takes all texts: done
        if they are few: read them one by one
        else: cut them into parts, and read each part likewise

    So a text that Arrow does not take costs its neighbours no more than that they are parsed a few
    times.
    """
    rows = read_together(texts, kind, how)
    if rows is not None:
        return Objects(rows, np.ones(len(rows), bool), {})
    advice: dict[int, str] = {}
    if len(texts) <= _ALONE:
        singles = [_single(text, kind, how) for text in texts.cast(pa.binary()).to_pylist()]
        advice = {number: words for number, (_, _, words) in enumerate(singles) if words}
        fits = np.array([fits for _, fits, _ in singles], bool)
        return Objects(pa.array([row for row, *_ in singles], kind), fits, advice)
    step = -(-len(texts) // _FEWER)
    starts = range(0, len(texts), step)
    parts = [read_objects(texts.slice(start, step), kind, how) for start in starts]
    for start, part in zip(starts, parts, strict=True):
        advice |= {start + number: words for number, words in part.advice.items()}
    return Objects(
        pa.concat_arrays([part.rows for part in parts]),
        np.concatenate([part.fits for part in parts]),
        advice,
    )


def read_together(
    texts: pa.Array, kind: pa.StructType, how: Reading = PLAIN
) -> pa.StructArray | None:
    """Read all rows at once; None if Arrow does not take one of them, or reads it otherwise."""
    rows = len(texts)
    if not rows:
        return pa.array([], kind)
    wire: Any = _wire(kind, how.units)
    ended = None if texts.null_count or wire is None else _ended(texts)
    if ended is None:
        return None
    data, bounds = buffers(ended)
    if _has_only_arrows(data) or _any_deep(data, bounds):
        return None
    try:
        texts.validate(full=True)  # bytes that are not UTF-8 would pass
        schema = pa.schema([*wire, (_END, pa.bool_())])
        table = pyarrow.json.read_json(
            pa.BufferReader(pa.py_buffer(data[: bounds[-1]])),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pyarrow.json.ParseOptions(schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowException:
        return None
    if table.num_rows != rows or table.column(_END).null_count:
        return None
    columns = [table.column(field.name).combine_chunks() for field in wire]
    values = pa.StructArray.from_arrays(columns, fields=list(wire))
    return _converted(values, kind, how.units, how.zone)


def _ended(texts: pa.Array) -> Bytes | None:
    """The texts with a last member of a name that none has; None if one is not in braces.

    A row that has the member is a whole text.  So no text ends too soon, runs into the next, or is
    two: there are as many of these members as texts, and each is the end of its object.
    """
    whole = as_bytes(texts)
    if not _in_braces(whole):
        whole = as_bytes(pc.ascii_trim(whole.view(pa.large_string()), " \t\r\n"))
        if not _in_braces(whole):
            return None
    end = constant(f',"{_END}":true}}\n'.encode(), len(whole))
    return concat(pc.binary_slice(whole, 0, -1), end)


def _has_only_arrows(data: Octets) -> bool:
    """Tell whether there may be a number that Arrow takes and ``loaded`` does not.

    It may be in a text, too.
    """
    if len(_places(data, b"-NaN")):
        return True
    return any(_INFINITY.match(data.data, position) for position in _places(data, b"Inf").tolist())


def _places(data: Octets, word: bytes) -> Ints:
    """The places where a word is; for a short one, several times as fast as a search by Python."""
    positions = np.flatnonzero(data[: len(data) - len(word) + 1] == word[0])
    for step, octet in enumerate(word[1:], 1):
        positions = positions[data[positions + step] == octet]
    return positions


def _in_braces(texts: Bytes) -> bool:
    """Tell whether each begins and ends as an object does.

    Arrow's reader ends the process if a null comes first.
    """
    data, bounds = buffers(texts)
    if not np.diff(bounds).all():
        return False
    return bool((data[bounds[:-1]] == ord("{")).all() and (data[bounds[1:] - 1] == ord("}")).all())


def _wire(kind: pa.DataType, units: Notation) -> pa.DataType | None:
    """Choose the type with which Arrow reads this one; None if there is none."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _wire(field.type, _below(units, field.name))) for field in kind]
        whole = bool(fields) and all(inner is not None for _, inner in fields)
        return pa.struct(fields) if whole else None
    if pa.types.is_map(kind):
        return None
    if pa.types.is_list(kind):
        inner = _wire(kind.value_type, _below(units, ITEM))
        return None if inner is None else pa.list_(kind.value_field.with_type(inner))
    if pa.types.is_float32(kind):
        return pa.float64()
    return json_values.wire(kind, _unit(units)) if is_special(kind) else kind


def _converted(values: pa.Array, kind: pa.DataType, units: Notation, zone: str) -> pa.Array | None:
    """Convert what was read as ``_wire`` into the type; None if a value may be none of the type."""
    nulls = values.is_null() if values.null_count else None
    if pa.types.is_struct(kind):
        parts = [
            _converted(values.field(index), field.type, _below(units, field.name), zone)
            for index, field in enumerate(kind)
        ]
        whole = all(part is not None for part in parts)
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=nulls) if whole else None
    if pa.types.is_list(kind):
        items = _converted(values.values, kind.value_type, _below(units, ITEM), zone)
        if items is None:
            return None
        return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=nulls)
    if pa.types.is_floating(kind):
        # Infinity may be one that is written, or a number beyond the type: Arrow does not tell.
        floats = values.cast(kind, safe=False)
        return None if pc.any(pc.is_inf(floats)).as_py() else floats
    return json_values.column(values, kind, _unit(units), zone) if is_special(kind) else values


def _below(units: Notation, name: str) -> Notation:
    return units.get(name) if isinstance(units, Mapping) else None


def _unit(units: Notation) -> Unit | None:
    return units if isinstance(units, Unit) else None


def loaded(
    text: bytes, fraction: Callable[[str], Any] = Number, whole: Callable[[str], Any] = Number
) -> Any:
    """The value of a JSON text; None if it is none.

    ``fraction``, ``whole``: what makes numbers of their texts, by default as they are written.
    """
    if _is_deep(text):
        return None
    try:
        value = json.loads(
            text.decode(), parse_float=fraction, parse_int=whole, parse_constant=fraction
        )
        if _HALVES.search(text):
            # Half a surrogate pair has no bytes in UTF-8, and raises ``ValueError`` here.
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except ValueError:
        return None
    return value


def _is_deep(text: bytes) -> bool:
    """Tell whether a text has more than ``DEEPEST`` levels; it need not be JSON."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    octets = np.frombuffer(_STRINGS.sub(b"", text), np.uint8)
    steps = np.isin(octets, _OPENS).astype(np.int64) - np.isin(octets, _CLOSES)
    return bool(steps.cumsum().max(initial=0) > DEEPEST)


def _any_deep(data: Octets, bounds: Ints) -> bool:
    """Tell whether one of several texts has too many levels."""
    if np.diff(bounds).max() <= 2 * DEEPEST:
        return False
    opens = np.flatnonzero((data | 0x20) == ord("{"))  # [ and { differ in this bit
    many = np.flatnonzero(np.diff(np.searchsorted(opens, bounds)) > DEEPEST)
    return any(_is_deep(data[bounds[number] : bounds[number + 1]].tobytes()) for number in many)


def _single(text: bytes | None, kind: pa.StructType, how: Reading = PLAIN) -> tuple[Any, bool, str]:
    """The row, whether the text is as it should be, and advice, if there is some."""
    if text is None:
        return None, False, ""
    value, fitting = loaded(text), _Fitting(how.zone)
    row = fitting.fitted(value if isinstance(value, dict) else {}, kind, how.units, "")
    fits = isinstance(value, dict) and not fitting.misfits
    return row, fits, next((words for words in fitting.misfits if words), "")


@dataclass
class _Fitting:
    """Convert values to a type, and remember which cannot be converted."""

    zone: str
    misfits: list[str] = field(default_factory=list)
    """Advice by row, where there is any."""

    def fitted(self, value: Any, kind: pa.DataType, units: Notation, name: str) -> Any:
        """The value as one of the type; None when it is of another."""
        if value is None:
            return None
        try:
            fitting = self._as(value, kind, units, name)
        except MisfitError as error:
            advice = str(error).replace("…", name)
            self.misfits.append(f"{name}: {advice}" if advice else "")
            return None
        if fitting is None:
            self.misfits.append("")
        return fitting

    def _as(self, value: Any, kind: pa.DataType, units: Notation, name: str) -> Any:
        if pa.types.is_struct(kind):
            if not isinstance(value, dict):
                return None
            row = {}
            for part in kind:
                below = _below(units, part.name)
                row[part.name] = self.fitted(value.get(part.name), part.type, below, part.name)
            return row
        below = _below(units, ITEM)
        if pa.types.is_map(kind):
            if not isinstance(value, dict):
                return None
            return [
                (key, self.fitted(item, kind.item_type, below, name)) for key, item in value.items()
            ]
        if pa.types.is_list(kind):
            if not isinstance(value, list):
                return None
            items = [self.fitted(item, kind.value_type, below, name) for item in value]
            # A list with an item of another type is null as a whole: a null in the item's place
            # would say that the item was null.
            pairs = zip(items, value, strict=True)
            return None if any(item is None is not raw for item, raw in pairs) else items
        if is_special(kind):
            return json_values.scalar(value, kind, _unit(units), self.zone)
        return _simple(value, kind)


def _simple(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else as_json(value)
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if pa.types.is_floating(kind):
        numeric = isinstance(value, Number) or value in _FLOATS
        return _float(value, kind) if numeric else None
    if not isinstance(value, Number) or not _WHOLE.fullmatch(value) or len(value) >= _DIGITS:
        return None
    limit = 1 << (kind.bit_width - 1)
    return int(value) if -limit <= int(value) < limit else None


def _float(text: str, kind: pa.DataType) -> float | None:
    """The floating number of a text; None if it is beyond the type, and would be infinity."""
    number = float(text)
    beyond = text[-1].isdigit() and abs(number) >= _BEYOND[kind.bit_width]
    return None if beyond else number


def as_json(value: Any) -> str:
    """The JSON of what was ``loaded``, numbers as they were written."""
    if isinstance(value, Number):
        return value
    text = functools.partial(json.dumps, ensure_ascii=False)
    if isinstance(value, dict):
        members = (f"{text(name)}:{as_json(item)}" for name, item in value.items())
        return "{" + ",".join(members) + "}"
    return "[" + ",".join(map(as_json, value)) + "]" if isinstance(value, list) else text(value)
