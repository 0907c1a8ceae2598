"""Rows as JSON texts, as Spark's ``to_json`` with nulls has them, without the JVM.

*Law*: of types that are ``writable``, both texts are the same JSON; byte by byte, but for floating
and decimal numbers, which may be spelled differently (``1e+20`` for ``1.0E20``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import as_bytes, buffers, is_any, valid

_TEXT = pa.large_string()
_ESCAPED = {
    "\\": "\\\\",
    '"': '\\"',
    **{chr(byte): f"\\u{byte:04X}" for byte in range(0x20)},
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
"""Escapes of characters in a JSON text; the character that escapes others comes first."""
_ESCAPES = {ord(character): escape for character, escape in _ESCAPED.items()}


def writable(kind: pa.DataType, *, exact: bool = False) -> bool:
    """Tell whether columns of the type can be written here: text, truth, numbers, structs and lists
    of them.

    ``exact``: byte by byte as Spark does.
    """
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(writable(field.type, exact=exact) for field in kind)
    if pa.types.is_list(kind):
        return writable(kind.value_type, exact=exact)
    as_spark = is_any(kind, "string", "boolean", "signed_integer")
    return as_spark or (not exact and is_any(kind, "floating", "decimal128"))


def texts(values: pa.Array) -> pa.LargeStringArray:
    """The JSON of each value, ``null`` of a null; the type must be ``writable``."""
    kind = values.type
    if pa.types.is_struct(kind):
        return _or_null(values, objects([field.name for field in kind], values.flatten()))
    if pa.types.is_list(kind):
        items = pa.LargeListArray.from_arrays(values.offsets.cast(pa.int64()), texts(values.values))
        return _or_null(values, _joined("[", pc.binary_join(items, pa.scalar(",", _TEXT)), "]"))
    if pa.types.is_string(kind):
        return _or_null(values, _joined('"', _escaped(values), '"'))
    numbers = _floats(values) if pa.types.is_floating(kind) else values.cast(_TEXT)
    return pc.fill_null(numbers, "null")


def objects(names: Iterable[str], columns: Iterable[pa.Array]) -> pa.LargeStringArray:
    """JSON objects with these members, one for each row of the columns."""
    pieces: list[str | pa.LargeStringArray] = []
    before = "{"
    for name, column in zip(names, columns, strict=True):
        pieces += [f'{before}"{name.translate(_ESCAPES)}":', texts(column)]
        before = ","
    return _joined(*pieces, "}")


def _joined(*pieces: str | pa.Array) -> pa.LargeStringArray:
    return pc.binary_join_element_wise(*map(_piece, pieces), pa.scalar("", _TEXT))


def _piece(piece: str | pa.Array) -> Any:
    return pa.scalar(piece, _TEXT) if isinstance(piece, str) else piece


def _or_null(values: pa.Array, texts: pa.LargeStringArray) -> pa.LargeStringArray:
    if not values.null_count:
        return texts
    return pc.if_else(pa.array(valid(values)), texts, pa.scalar("null", _TEXT))


def _escaped(values: pa.StringArray) -> pa.LargeStringArray:
    # To count all bytes once is cheaper than to search for each character that is escaped.
    data, bounds = buffers(as_bytes(values))
    occurrences = np.bincount(data[bounds[0] : bounds[-1]], minlength=0x100)
    texts = values.cast(_TEXT)
    for character, escape in _ESCAPED.items():
        if occurrences[ord(character)]:
            texts = pc.replace_substring(texts, character, escape)
    return texts


def _floats(values: pa.Array) -> pa.LargeStringArray:
    """Whole ones end in ``.0``; what is not a number is a text, as Java names it."""
    texts = values.cast(_TEXT)
    texts = pc.if_else(pc.match_substring_regex(texts, "[.e]"), texts, _joined(texts, ".0"))
    names = {np.inf: '"Infinity"', -np.inf: '"-Infinity"'}
    for number, name in names.items():
        texts = pc.if_else(pc.equal(values, pa.scalar(number, values.type)), name, texts)
    return pc.if_else(pc.is_nan(values), '"NaN"', texts)
