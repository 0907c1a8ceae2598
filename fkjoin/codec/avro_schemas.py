"""Avro schemas for reading some columns: logical types become units where numbers make a column.

What the rewritten schema reads are the same bytes.  A logical type stays where its value, not its
number, is wanted: in a text column, in a column of another type, where a union has several types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from fkjoin.codec.units import CONNECT_UNITS, ITEM, Notation, Unit, is_special


class Rewritten(NamedTuple):
    """A schema that reads the same bytes, and the notation of the values that it gives."""

    schema: Any
    units: Notation
    endless: bool = False
    """The schema has itself in it, so that records may be of any depth."""


def _instants(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


def _clocks(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


_UNITS: dict[str, tuple[Callable[[pa.DataType], bool], Unit]] = {
    "timestamp-millis": (_instants, Unit("millis", "instant")),
    "timestamp-micros": (_instants, Unit("micros", "instant")),
    "local-timestamp-millis": (_clocks, Unit("millis", "instant")),
    "local-timestamp-micros": (_clocks, Unit("micros", "instant")),
    "date": (pa.types.is_date, Unit("days", "day")),
    "time-millis": (pa.types.is_time, Unit("millis", "time")),
    "time-micros": (pa.types.is_time, Unit("micros", "time")),
}
"""Logical types of numbers, the columns that are made of these, and their units."""

_Kind: TypeAlias = pa.DataType | str | None
_ANY = "any"
"""In the place of a type: the value as it is."""
_NAMED = ("record", "error", "enum", "fixed")


class _RecursiveError(Exception):
    """A type that has itself in it."""


def rewritten(schema: Any, kind: pa.StructType) -> Rewritten:
    """Rewrite a schema for rows of the type.

    ``schema``: parsed, so that names are whole.  What is made has other names, since a type may be
    wanted in two ways.
    """
    try:
        return _Rewriting(dict(_named(schema))).of(schema, kind)
    except _RecursiveError:
        return Rewritten(schema, None, endless=True)


def _named(schema: Any) -> list[tuple[str, dict[str, Any]]]:
    """The definitions of named types."""
    if isinstance(schema, list):
        return list(chain.from_iterable(map(_named, schema)))
    if not isinstance(schema, dict):
        return []
    own = [(schema["name"], schema)] if schema.get("type") in _NAMED else []
    fields = [item["type"] for item in schema.get("fields", ())]
    inner = schema.get("type"), schema.get("items"), schema.get("values"), *fields
    return own + list(chain.from_iterable(map(_named, inner)))


@dataclass
class _Rewriting:
    named: Mapping[str, Any]
    inside: list[str] = field(default_factory=list)
    """Names of the types that are being rewritten."""
    known: dict[tuple[str, _Kind], Rewritten] = field(default_factory=dict)
    """New names of types, and their units, by their names and by what they are wanted for."""

    def of(self, schema: Any, kind: _Kind) -> Rewritten:
        """``kind``: None where the value is not wanted."""
        if isinstance(schema, list):
            # Of a union with several types a number does not tell which it is of: values stay.
            if kind is not None and sum(branch != "null" for branch in schema) > 1:
                kind = _ANY
            parts = [self.of(branch, kind) for branch in schema]
            units = next((part.units for part in parts if part.units), None)
            return Rewritten([part.schema for part in parts], units)
        if isinstance(schema, str):
            if schema in self.named:
                return self.of(self.named[schema], kind)
            return Rewritten(schema, None)
        type_ = schema["type"]
        if isinstance(type_, dict | list):
            return self.of(type_, kind)
        if type_ in self.named:
            return self.of(self.named[type_], kind)
        if type_ in _NAMED:
            return self._of_name(schema, kind)
        for part, test in (("items", pa.types.is_list), ("values", pa.types.is_map)):
            if part in schema:
                inner = self.of(schema[part], _item(kind, test))
                item_units = {ITEM: inner.units} if inner.units else None
                return Rewritten({**schema, part: inner.schema}, item_units)
        return _leaf(schema, kind)

    def _of_name(self, schema: Any, kind: _Kind) -> Rewritten:
        name = schema["name"]
        if name in self.inside:
            raise _RecursiveError
        if (name, kind) in self.known:
            return self.known[name, kind]
        self.inside.append(name)
        wanted = kind
        # A new name for each type that is wanted otherwise; ``inside`` are those not known yet.
        record = {
            key: value
            for key, value in schema.items()
            if key not in ("namespace", "aliases") and not key.startswith("__")
        }
        record["name"] = f"_{len(self.known) + len(self.inside)}.{name}"
        units: Notation = None
        if "fields" in schema and isinstance(kind, pa.DataType) and not pa.types.is_struct(kind):
            units = _unit(schema, kind)
            kind = _ANY
        if "fields" in schema:
            fields = {
                item["name"]: self.of(item["type"], _member(kind, item["name"]))
                for item in schema["fields"]
            }
            record["fields"] = [
                {"name": item["name"], "type": fields[item["name"]].schema}
                for item in schema["fields"]
            ]
            of_fields = {title: part.units for title, part in fields.items() if part.units}
            units = units or of_fields or None
        else:
            leaf = _leaf(record, kind)
            record, units = leaf.schema, leaf.units
        self.inside.pop()
        self.known[name, wanted] = Rewritten(record["name"], units)
        return Rewritten(record, units)


def _member(kind: _Kind, name: str) -> _Kind:
    if isinstance(kind, str) or kind is None:
        return kind
    index = kind.get_field_index(name)
    return kind.field(index).type if index >= 0 else None


def _item(kind: _Kind, test: Callable[[pa.DataType], bool]) -> _Kind:
    if isinstance(kind, str) or kind is None:
        return kind
    if not test(kind):
        return _ANY
    return kind.value_type if pa.types.is_list(kind) else kind.item_type


def _leaf(schema: Mapping[str, Any], kind: _Kind) -> Rewritten:
    if kind == _ANY:
        return Rewritten(schema, None)
    bare = {key: value for key, value in schema.items() if key != "logicalType"}
    if kind is None:
        return Rewritten(bare, None)
    if (unit := _unit(schema, kind)) is not None:
        return Rewritten(bare, unit)
    logical = schema.get("logicalType")
    if logical == "decimal" and pa.types.is_decimal128(kind):
        return Rewritten(bare, Unit("unscaled", scale=schema.get("scale", 0)))
    test, unit = _UNITS.get(logical or "", (_never, None))
    return Rewritten(bare, unit) if test(kind) else Rewritten(schema, None)


def _unit(schema: Mapping[str, Any], kind: Any) -> Unit | None:
    """The unit by the name that Connect gives a value."""
    if not (is_special(kind) or pa.types.is_integer(kind)):
        return None
    return CONNECT_UNITS.get(schema.get("connect.name", ""))


def _never(_: pa.DataType) -> bool:
    return False
