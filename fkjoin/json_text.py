"""JSON texts, one object each, as rows, without the JVM.

Arrow's reader parses what has the types that the schema says.  Texts that it does not take (they are few) are read one by
one, as Spark would: a field of another type is null, except that a text column takes any JSON as its text; of fields that occur
twice the last counts; a text that is no JSON object is a row of nulls.  ``read_objects`` also says which texts are as they
should be.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from fkjoin.arrays import Bools, as_bytes, buffers, concat, constant

_ALONE = 64
"""So many texts or fewer that are not taken together are read one by one."""

_FEWER = 8

_BLANKS = b" \t\r\n"
_DIGITS = 40
_WHOLE = re.compile(r"-?[0-9]+")
_FLOATS = {"NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "+INF": "inf", "-Infinity": "-inf", "-INF": "-inf"}
"""Texts that count as floating numbers."""


class _Number(str):
    """A number, as it was written."""

    __slots__ = ()


def readable(kind: pa.DataType) -> bool:
    """Whether columns of the type can be read here: text, truth, whole and floating numbers, structs and lists of them."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return len(names) == len(set(names)) > 0 and all(readable(field.type) for field in kind)
    if pa.types.is_list(kind):
        return readable(kind.value_type)
    return any(
        test(kind) for test in (pa.types.is_string, pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float64)
    )


def read_rows(texts: pa.Array, kind: pa.StructType) -> pa.StructArray:
    """A row per text, which is UTF-8 (a null text gives a null row); ``kind`` must be ``readable``."""
    return read_objects(texts, kind)[0]


def read_objects(texts: pa.Array, kind: pa.StructType) -> tuple[pa.StructArray, Bools]:
    """As ``read_rows``, and which texts are a JSON object whose fields are of the types of ``kind``."""
    rows = read_together(texts, kind)
    if rows is not None:
        return rows, np.ones(len(rows), bool)
    if len(texts) <= _ALONE:
        found = [_one(text, kind) for text in texts.cast(pa.binary()).to_pylist()]
        return pa.array([row for row, _ in found], kind), np.array([fits for _, fits in found], bool)
    step = -(-len(texts) // _FEWER)
    parts = [read_objects(texts.slice(at, step), kind) for at in range(0, len(texts), step)]
    return pa.concat_arrays([rows for rows, _ in parts]), np.concatenate([fits for _, fits in parts])


def read_together(texts: pa.Array, kind: pa.StructType) -> pa.StructArray | None:
    """All rows at once; None when there is a text among them that Arrow does not take.

    Each text is the only member of an object of its own, so that none can end early, run into the next, or be two.
    """
    rows = len(texts)
    if not rows:
        return pa.array([], kind)
    if texts.null_count:
        return None
    data, bounds = buffers(concat(constant(b'{"":', rows), as_bytes(texts), constant(b"}\n", rows)))
    try:
        texts.validate(full=True)  # bytes that are no UTF-8 would pass
        table = pyarrow.json.read_json(
            pa.BufferReader(pa.py_buffer(data[: bounds[-1]])),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pyarrow.json.ParseOptions(pa.schema([("", kind)]), unexpected_field_behavior="ignore"),
        )
    except pa.ArrowException:
        return None
    if table.num_rows != rows:
        return None
    found = table.column(0).combine_chunks()
    return None if found.null_count else found


def _one(text: bytes | None, kind: pa.StructType) -> tuple[Any, bool]:
    """The row, and whether the text is as it should be."""
    if text is None:
        return None, False
    try:
        value = json.loads(
            text.decode("utf-8-sig", errors="replace"), parse_float=_Number, parse_int=_Number, parse_constant=_Number
        )
    except (ValueError, RecursionError):
        value = None
    misfits: list[Any] = []
    row = _fitted(value if isinstance(value, dict) else {}, kind, misfits)
    return row, isinstance(value, dict) and not misfits and text.lstrip(_BLANKS).startswith(b"{")


def _fitted(value: Any, kind: pa.DataType, misfits: list[Any]) -> Any:
    """The value as one of the type; None when it is of another, and then it is added to the ``misfits``."""
    if value is None:
        return None
    found = _as(value, kind, misfits)
    if found is None:
        misfits.append(value)
    return found


def _as(value: Any, kind: pa.DataType, misfits: list[Any]) -> Any:
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            return None
        return {field.name: _fitted(value.get(field.name), field.type, misfits) for field in kind}
    if pa.types.is_list(kind):
        items = [_fitted(item, kind.value_type, misfits) for item in value] if isinstance(value, list) else None
        return None if items is None or any(a is None is not b for a, b in zip(items, value, strict=True)) else items
    if pa.types.is_string(kind):
        return _text(value).encode(errors="replace").decode()
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if pa.types.is_floating(kind):
        number = _FLOATS.get(value, value if isinstance(value, _Number) else "") if isinstance(value, str) else ""
        return float(number) if number else None
    whole = int(value) if isinstance(value, _Number) and _WHOLE.fullmatch(value) and len(value) < _DIGITS else None
    limit = 1 << (kind.bit_width - 1)
    return whole if whole is not None and -limit <= whole < limit else None


def _text(value: Any) -> str:
    """Of a text, itself; of anything else, its JSON, numbers as they were written."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        members = (f"{json.dumps(name, ensure_ascii=False)}:{_json(item)}" for name, item in value.items())
        return "{" + ",".join(members) + "}"
    return "[" + ",".join(map(_json, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _json(value: Any) -> str:
    plain = isinstance(value, str) and not isinstance(value, _Number)
    return json.dumps(value, ensure_ascii=False) if plain else _text(value)
