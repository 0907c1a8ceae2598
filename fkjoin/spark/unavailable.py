"""Values that an event of Debezium lacks.

PostgreSQL leaves out large ones that an update did not change (TOAST), and Debezium puts a
placeholder in their place.  Where ``before`` has the value it is taken from there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import Bools, Ints, as_bytes, bools, buffers

PLACEHOLDER = "__debezium_unavailable_value"

_NOWHERE = frozenset({"-99999999", "-99999999.0", "-9.9999999E7"})
"""Spellings of the coordinates of a point that the event does not have."""
_SHAPES = (
    "0101000020e6100000000000fc83d797c1000000fc83d797c1",
    "0101000020e61000000c21e7fdff7f66401842cefbff7f5640",
)
"""The points that stand for a geometry and a geography that the event does not have, as WKB."""


@dataclass(frozen=True)
class Placeholder:
    """The text that the connector writes for values that it lacks, and its form in other types."""

    text: str = PLACEHOLDER

    def in_json(self, data: pa.BinaryArray, row: pa.Schema) -> Ints:
        """The places of JSON texts that may have it, in one of the row's columns."""
        return _places(data, row, _json_forms(self.text))

    def in_avro(self, data: pa.BinaryArray, row: pa.Schema) -> Ints:
        """The places of Avro records that may have it, in one of the row's columns."""
        return _places(data, row, _avro_forms(self.text))

    def complete(self, body: Mapping[str, Any], names: Sequence[str]) -> list[str]:
        """Put values of ``before`` into ``after``; the columns for which there are none."""
        row = body.get("after")
        if not isinstance(row, dict):
            return []
        before = body["before"] if isinstance(body.get("before"), dict) else {}
        lacking = []
        for name in names:
            if self.is_it(row.get(name)):
                # With REPLICA IDENTITY USING INDEX, before has a null for each column outside the
                # index.
                had = before.get(name) is not None and not self.is_it(before[name])
                row[name] = before[name] if had else None
                lacking += [] if had else [name]
        return lacking

    def is_it(self, value: Any) -> bool:
        """Tell whether a value is none."""
        if isinstance(value, str):
            return value in _texts(self.text)
        if isinstance(value, bytes):
            return value == self.text.encode() or value.hex() in _SHAPES
        if isinstance(value, list):
            return [str(item) for item in value] == [str(byte) for byte in self.text.encode()] or (
                len(value) == 1 and self.is_it(value[0])
            )
        if isinstance(value, dict):
            nowhere = {str(value.get("x")), str(value.get("y"))} <= _NOWHERE
            return nowhere or value == {self.text: self.text} or self.is_it(value.get("wkb"))
        return False


def _may_lack(kind: pa.DataType) -> bool:
    """Tell whether PostgreSQL may keep a value of the type out of the row."""
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _places(data: pa.BinaryArray, row: pa.Schema, forms: Iterable[bytes]) -> Ints:
    if not any(map(_may_lack, row.types)):
        return np.zeros(0, np.int64)
    octets, bounds = buffers(as_bytes(data))
    whole = octets[bounds[0] : bounds[-1]].tobytes()
    masks = [certain(pc.match_substring(data, form)) for form in forms if form in whole]
    return np.flatnonzero(np.logical_or.reduce(masks)) if masks else np.zeros(0, np.int64)


@lru_cache(8)
def _json_forms(placeholder: str) -> tuple[bytes, ...]:
    """List the forms in JSON: for texts, bytes, arrays of numbers, shapes."""
    texts = json.dumps(placeholder)[1:-1], *_texts(placeholder), *_NOWHERE
    numbers = (between.join(map(str, placeholder.encode())) for between in (",", ", "))
    return tuple(dict.fromkeys(form.encode() for form in (*texts, *numbers)))


@lru_cache(8)
def _avro_forms(placeholder: str) -> tuple[bytes, ...]:
    """List the forms in Avro: of texts and bytes, of arrays of whole numbers, and of shapes."""
    texts = (text.encode() for text in _texts(placeholder))
    numbers = b"".join(map(_avro_number, placeholder.encode()))
    shapes = (*map(bytes.fromhex, _SHAPES), struct.pack("<d", -99999999.0))
    return tuple(dict.fromkeys((*texts, numbers, *shapes)))


def _avro_number(byte: int) -> bytes:
    """A byte as Avro writes whole numbers: doubled, in groups of seven bits."""
    doubled = byte << 1
    return bytes([doubled]) if byte < 64 else bytes([(doubled & 127) | 128, byte >> 6])


@lru_cache
def _texts(placeholder: str) -> tuple[str, ...]:
    """List the texts that stand for no value.

    They are the placeholder, its bytes and the bytes of shapes, and in arrays of UUIDs a UUID.
    """
    raw = placeholder.encode()
    uuid = UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3)
    texts = [placeholder, str(uuid)]
    for octets in (raw, *map(bytes.fromhex, _SHAPES)):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            texts.append(encode(octets).decode())
        texts.append(octets.hex())
    return tuple(texts)


def certain(mask: pa.BooleanArray) -> Bools:
    """Replace nulls with false."""
    return bools(pc.fill_null(mask, False))
