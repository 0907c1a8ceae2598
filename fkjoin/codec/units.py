"""Notation of values where their JSON does not tell it: what a number counts, how a text is bytes.

A notation is a tree like the type that it is for: of a struct, the notations of its fields by name;
of a list or a map, its items' notation under ``ITEM``; of anything else, a ``Unit``.  What is not
in it is written as JSON has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from fkjoin.codec.arrays import is_any
from fkjoin.errors import TopologyError, nearest

ITEM = "[]"
"""Stands for the items of a list or a map."""

NANOS = {"days": 86_400 * 10**9, "seconds": 10**9, "millis": 10**6, "micros": 10**3, "nanos": 1}
"""Nanoseconds in each unit of time."""


SCALE = re.compile("-?[0-9]{1,3}")
"""Pattern of a decimal's scale."""


class Unit(NamedTuple):
    """Notation of a value."""

    name: str
    quantity: str = ""
    """Kind of the number: ``instant``, ``day``, ``time`` of day, ``span``; empty: the column's."""
    scale: int | None = None
    """Scale of a decimal in base64; None: the column's."""


Notation: TypeAlias = Unit | Mapping[str, Any] | None

UNSURE = Unit("unsure")
"""A text that may be base64 or not."""

CONNECT_UNITS = {
    "io.debezium.time.Date": Unit("days", "day"),
    "io.debezium.time.Timestamp": Unit("millis", "instant"),
    "io.debezium.time.MicroTimestamp": Unit("micros", "instant"),
    "io.debezium.time.NanoTimestamp": Unit("nanos", "instant"),
    "io.debezium.time.IsoTimestamp": Unit("local"),
    "io.debezium.time.Time": Unit("millis", "time"),
    "io.debezium.time.MicroTime": Unit("micros", "time"),
    "io.debezium.time.NanoTime": Unit("nanos", "time"),
    "io.debezium.time.MicroDuration": Unit("micros", "span"),
    "io.debezium.time.NanoDuration": Unit("nanos", "span"),
    "org.apache.kafka.connect.data.Date": Unit("days", "day"),
    "org.apache.kafka.connect.data.Time": Unit("millis", "time"),
    "org.apache.kafka.connect.data.Timestamp": Unit("millis", "instant"),
    "io.debezium.data.geometry.Geometry": Unit("wkb"),
    "io.debezium.data.geometry.Geography": Unit("wkb"),
    "io.debezium.data.geometry.Point": Unit("wkb"),
}
"""Units by the names that Debezium and Kafka Connect give a field's schema."""

_DECIMAL = "org.apache.kafka.connect.data.Decimal"


@cache  # asked for each value of a text that does not fit
def is_special(kind: pa.DataType) -> bool:
    """Tell whether JSON lacks values of the type, or a unit can change how they are read."""
    return is_any(kind, "timestamp", "date", "time", "duration", "decimal", "binary")


def needs_units(kind: pa.DataType) -> bool:
    """Tell whether there is such a type in it."""
    return is_special(kind) or any(needs_units(inner) for inner in _inside(kind).values())


def from_names(
    units: Mapping[str, str],
    schema: pa.Schema,
    format_name: str,
    type_text: Callable[[pa.DataType], str],
) -> Mapping[str, Any]:
    """The notation that a user gives, by columns, or by fields in them with dots between.

    ``format_name``: for errors; ``type_text``: how they write a type.  ``TopologyError`` if there
    is no such name or unit.
    """
    notation: dict[str, Any] = {}
    for path, unit in units.items():
        steps = [path] if path in schema.names else path.split(".")
        kind = _kind_at(path, steps, schema, format_name)
        known = _units_of(kind)
        if unit not in known:
            none = "left out: a unit is for times, decimals and bytes"
            choice = f"one of {', '.join(known)}" if known else none
            raise TopologyError(
                f"{format_name}: units: {path!r} is {type_text(kind)}; "
                f"its unit {unit!r} should be {choice}"
            )
        *above, last = steps
        level = notation
        for name in above:
            level = level.setdefault(name, {})
        level[last] = _down_to(kind, Unit(unit))
    return notation


def everywhere(kind: pa.DataType, unit: Unit, test: Any) -> Notation:
    """The unit wherever a type passes the test."""
    if test(kind):
        return unit
    notations = {name: everywhere(inner, unit, test) for name, inner in _inside(kind).items()}
    return {name: notation for name, notation in notations.items() if notation} or None


def merged(first: Notation, then: Notation) -> Notation:
    """The first, and what it does not say, or not for sure, from the other."""
    if isinstance(first, Mapping) and isinstance(then, Mapping):
        names = dict.fromkeys([*first, *then])
        return {name: merged(first.get(name), then.get(name)) for name in names}
    return then if first is None or (first == UNSURE and then is not None) else first


def from_connect(schema: Any, kind: pa.DataType) -> Notation:
    """The notation that the ``schema`` part of a message gives for values of the type."""
    if not isinstance(schema, dict):
        return None
    if pa.types.is_struct(kind):
        fields = {item.get("field"): item for item in _dicts(schema.get("fields"))}
        notations = {field.name: from_connect(fields.get(field.name), field.type) for field in kind}
        return {name: notation for name, notation in notations.items() if notation is not None}
    if pa.types.is_map(kind):
        return {ITEM: from_connect(schema.get("values"), kind.item_type)}
    if pa.types.is_list(kind):
        return {ITEM: from_connect(schema.get("items"), kind.value_type)}
    return _unit(schema, kind) if is_special(kind) else None


def field_of(schema: Any, name: str) -> Any:
    """The schema of a field of a struct; None without one."""
    fields = _dicts(schema.get("fields")) if isinstance(schema, dict) else []
    return next((field for field in fields if field.get("field") == name), None)


def _unit(schema: Mapping[str, Any], kind: pa.DataType) -> Unit | None:
    name = schema.get("name")
    if name == _DECIMAL:
        parameters = schema.get("parameters")
        scale = str(parameters.get("scale", 0)) if isinstance(parameters, dict) else "0"
        return Unit("base64", scale=int(scale)) if SCALE.fullmatch(scale) else None
    if isinstance(name, str) and name in CONNECT_UNITS:
        return CONNECT_UNITS[name]
    if schema.get("type") == "string" and pa.types.is_decimal(kind):
        return Unit("text")
    if schema.get("type") == "bytes" and pa.types.is_binary(kind):
        return Unit("base64")
    return UNSURE if schema.get("type") == "string" and pa.types.is_binary(kind) else None


def _dicts(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _inside(kind: pa.DataType) -> dict[str, pa.DataType]:
    if pa.types.is_struct(kind):
        return {field.name: field.type for field in kind}
    if pa.types.is_map(kind):
        return {ITEM: kind.item_type}
    return {ITEM: kind.value_type} if pa.types.is_list(kind) else {}


def _units_of(kind: pa.DataType) -> tuple[str, ...]:
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _units_of(_inside(kind)[ITEM])
    if pa.types.is_decimal(kind):
        return "text", "base64"
    if pa.types.is_binary(kind):
        return "base64", "base64-url", "hex", "wkb"
    return tuple(NANOS) if is_special(kind) else ()


def _down_to(kind: pa.DataType, unit: Unit) -> Notation:
    """The unit, for the items where the type is a list or a map."""
    nested = pa.types.is_list(kind) or pa.types.is_map(kind)
    return {ITEM: _down_to(_inside(kind)[ITEM], unit)} if nested else unit


def _kind_at(path: str, steps: list[str], schema: pa.Schema, format_name: str) -> pa.DataType:
    kind: pa.DataType = pa.struct(list(schema))
    for name in steps:
        inside = _inside(kind) if pa.types.is_struct(kind) else {}
        if name not in inside:
            raise TopologyError(
                f"{format_name}: units: there is no column {path!r}; {nearest(name, inside, 10)}"
            )
        kind = inside[name]
    return kind
