"""Messages of Protobuf → mappings of Python's values, of all messages one field after another.

*Law*: what a message becomes does not depend on the messages beside it.  A field that has presence
and is not set is null; one without presence is its default.  Entries of a map are in the order of
their keys, since Protobuf gives them none. Descriptors come from the package ``protobuf``,
whatever pool has made them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from fkjoin.codec.json_values import EXACT
from fkjoin.codec.units import ITEM, Notation, Unit

_Read: TypeAlias = Callable[[list[Any]], list[Any]]
"""A function of many messages, or of many values of a field, none of them null."""

_WRAPPED = "Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"
_WRAPPERS = {"google.type.Decimal", *(f"google.protobuf.{name}Value" for name in _WRAPPED)}
"""Messages that stand for their field ``value``."""


class FieldReader(NamedTuple):
    """Function that reads values, and the notation of what it gives."""

    read: _Read
    units: Notation = None


def fields_of(message: Any, kind: pa.StructType) -> FieldReader:
    """Choose how messages become mappings; ``message``: their descriptor.

    Members that it lacks are left out.
    """
    known = message.fields_by_name
    parts = {
        field.name: _field(known[field.name], field.type) for field in kind if field.name in known
    }
    units = {name: part.units for name, part in parts.items() if part.units}

    def mappings(messages: list[Any]) -> list[dict[str, Any]]:
        if not parts:
            return [{} for _ in messages]
        columns = [part.read(messages) for part in parts.values()]
        return [dict(zip(parts, row, strict=True)) for row in zip(*columns, strict=True)]

    return FieldReader(mappings, units or None)


def _field(field: Any, kind: pa.DataType) -> FieldReader:
    """Choose how a field of messages is read into a column."""
    get = attrgetter(field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        is_map = pa.types.is_map(kind)
        key = _value(entry["key"], kind.key_type if is_map else None)
        item = _value(entry["value"], kind.item_type if is_map else None)
        units = {ITEM: item.units} if item.units else None
        return FieldReader(partial(_maps, get, key.read, item.read), units)
    if _is_repeated(field):
        item = _value(field, kind.value_type if pa.types.is_list(kind) else None)
        units = {ITEM: item.units} if item.units else None
        return FieldReader(partial(_lists, get, item.read), units)
    value = _value(field, kind)
    if field.has_presence:
        return FieldReader(partial(_optional, field.name, get, value.read), value.units)
    return FieldReader(lambda messages: value.read([*map(get, messages)]), value.units)


def _optional(name: str, get: Callable[[Any], Any], read: _Read, messages: list[Any]) -> list[Any]:
    present = [message.HasField(name) for message in messages]
    values: list[Any] = [None] * len(messages)
    numbers = [number for number, has in enumerate(present) if has]
    read_values = read([get(messages[number]) for number in numbers])
    for number, value in zip(numbers, read_values, strict=True):
        values[number] = value
    return values


def _lists(get: Callable[[Any], Any], read: _Read, messages: list[Any]) -> list[list[Any]]:
    # The items of all lists are read at once, and then dealt out again by the lists' lengths.
    lists = [*map(get, messages)]
    items = iter(read([*chain.from_iterable(lists)]))
    return [[*islice(items, len(items_of))] for items_of in lists]


def _maps(
    get: Callable[[Any], Any], key: _Read, item: _Read, messages: list[Any]
) -> list[dict[Any, Any]]:
    names: list[Any] = []
    values: list[Any] = []
    sizes: list[int] = []
    for entries_of in map(get, messages):
        ordered = sorted(entries_of)
        names += ordered
        values += map(entries_of.__getitem__, ordered)
        sizes.append(len(ordered))
    entries = zip(key(names), item(values), strict=True)
    return [dict(islice(entries, size)) for size in sizes]


def _is_repeated(field: Any) -> bool:
    # Before protobuf 6.31 there are only labels, and in 7 there are none.
    many = getattr(field, "is_repeated", None)
    return field.label == field.LABEL_REPEATED if many is None else many


def _value(field: Any, kind: pa.DataType | None) -> FieldReader:
    """Choose how values of a field are read; ``kind``: None if the column has none for them."""
    if field.message_type is not None:
        return _message(field.message_type, kind)
    if field.enum_type is not None and not (kind is not None and pa.types.is_integer(kind)):
        # Backwards: if one number has several names, the first stays.
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        # A number that has no name is left as it is, as in Protobuf's JSON.
        return FieldReader(lambda values: [names.get(value, value) for value in values])
    return FieldReader(list)


def _message(message: Any, kind: pa.DataType | None) -> FieldReader:
    name = message.full_name
    if kind is None or (pa.types.is_string(kind) and name not in _WRAPPERS):
        return FieldReader(_each(_json))
    if pa.types.is_struct(kind):
        return fields_of(message, kind)
    if name in _WRAPPERS:
        # A registry's own file of the type may lack the field, which must be said before a row.
        inner = _value(message.fields_by_name["value"], kind)
        if name == "google.type.Decimal":  # an empty text means 0
            return FieldReader(_each(lambda value: str(value.value or "0")))
        return FieldReader(
            lambda values: inner.read([value.value for value in values]), inner.units
        )
    if name == "google.protobuf.Timestamp":
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return FieldReader(_each(_micros), Unit("micros", "instant"))
        return FieldReader(_each(methodcaller("ToDatetime", datetime.timezone.utc)))
    if name == "google.protobuf.Duration":
        if pa.types.is_duration(kind):
            return FieldReader(_each(_micros), Unit("micros", "span"))
        return FieldReader(_each(methodcaller("ToTimedelta")))
    if name == "google.type.Date" and pa.types.is_date(kind):
        return FieldReader(_each(_date))
    if name == "google.type.TimeOfDay" and pa.types.is_time(kind):
        return FieldReader(_each(_time))
    if name == "confluent.type.Decimal" and pa.types.is_decimal(kind):
        return FieldReader(_each(_decimal))
    return FieldReader(_each(_json))


def _each(convert: Callable[[Any], Any]) -> _Read:
    return lambda values: [*map(convert, values)]


def _micros(value: Any) -> int:
    """Count the microseconds of an instant or a span, rounded down.

    ``ValueError`` if Protobuf does not allow it.
    """
    seconds, nanos = value.seconds, value.nanos
    if value.DESCRIPTOR.name == "Duration":  # of up to 10,000 years, both with one sign
        allowed = abs(seconds) <= 315_576_000_000 and abs(nanos) < 10**9 and seconds * nanos >= 0
    else:  # in the years 1 to 9999
        allowed = -62_135_596_800 <= seconds <= 253_402_300_799 and 0 <= nanos < 10**9
    if not allowed:
        raise ValueError(f"{seconds} s and {nanos} ns are not a {value.DESCRIPTOR.full_name}")
    return seconds * 10**6 + nanos // 1000


def _date(value: Any) -> datetime.date:
    return datetime.date(value.year, value.month, value.day)


def _time(value: Any) -> datetime.time:
    return datetime.time(value.hours, value.minutes, value.seconds, value.nanos // 1000)


def _decimal(value: Any) -> Decimal:
    if not -400 < value.scale < 400:
        raise ValueError(f"{value.scale} is not the scale of a decimal")
    return Decimal(int.from_bytes(value.value, "big", signed=True)).scaleb(-value.scale, EXACT)


def _json(value: Any) -> Any:
    """Make Protobuf's JSON of a message, with the fields' own names, in the order of the names."""
    from google.protobuf.json_format import MessageToDict

    pool = value.DESCRIPTOR.file.pool
    members = MessageToDict(
        value,
        always_print_fields_with_no_presence=True,
        preserving_proto_field_name=True,
        descriptor_pool=pool,
    )
    return _ordered(members)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value
