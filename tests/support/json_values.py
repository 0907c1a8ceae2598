"""Single values read from JSON."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from fkjoin.codec.json_read import Reading, read_objects
from fkjoin.codec.units import Unit

KINDS: dict[str, pa.DataType] = {
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "day": pa.date32(),
    "time": pa.time64("ns"),
    "span": pa.duration("us"),
    "price": pa.decimal128(9, 2),
    "data": pa.binary(),
    "number": pa.int64(),
    "text": pa.string(),
}


def read(kind: pa.DataType, unit: Unit | None, value: Any, zone: str = "UTC") -> tuple[Any, str | None]:
    """Read a value: return it as a Python value, and the advice, which is None where it fits."""
    text = f'{{"it":{value if isinstance(value, str) else json.dumps(value)}}}'
    found = read_objects(pa.array([text]), pa.struct([("it", kind)]), Reading({"it": unit}, zone))
    shown = found.rows.field("it")
    return shown[0].as_py(), None if found.fits[0] else found.advice.get(0, "")
