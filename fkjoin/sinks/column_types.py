"""Arrow's types of a target's columns: whether they can hold all values of a table's columns.

*Law*: where ``problems`` finds nothing, ``fitting`` rows have each value unchanged, in the target's
types; or a row has a null or a day that the target cannot store, and ``fitting`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException

from fkjoin.errors import FkJoinError
from fkjoin.spark.schemas import kind_text

_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_SIGNIFICANT = {pa.float32(): 6, pa.float64(): 15}
"""Decimal digits that are all in a type."""
_DAYS = (-719_162, 2_932_896)
"""The years 1 to 9999: of other days, the files' statistics cannot be read."""
_DAY_US = 86_400_000_000


def problems(existing: pa.Schema, schema: pa.Schema) -> Iterator[str]:
    """Find what is wrong with a target's columns for rows of the schema, and what helps."""
    for field in schema:
        column, wanted = existing.field(field.name), kind_text(field.type)
        if not fits(field.type, column.type):
            yield (
                f"column {field.name} is {_text(column.type)}, which cannot hold every {wanted}: "
                f"make it {wanted}, or cast the table's column"
            )
    for field in existing:
        if not field.nullable and field.name not in schema.names:
            yield (
                f"column {field.name} is {_text(field.type)} NOT NULL, and the table has no such "
                "column: drop the constraint, or add the column"
            )


def require_columns(target: str, existing: pa.Schema, schema: pa.Schema, *, evolve: bool) -> None:
    """``FkJoinError`` if a target lacks columns of the schema, or cannot hold their values.

    ``target`` is what it calls it.
    """
    if missing := [name for name in schema.names if name not in existing.names]:
        lacked, known = ", ".join(missing), ", ".join(sorted(existing.names))
        if len(addable(existing, pa.schema(map(schema.field, missing)))) < len(missing):
            raise FkJoinError(
                f"{target} lacks the columns {lacked}, and has columns whose names differ only in "
                f"case, which Spark does not distinguish ({known}): rename the columns in a view "
                "of the table, or write to another table"
            )
        way = "" if evolve else "let evolve=True add them, "
        raise FkJoinError(
            f"{target} lacks the columns {lacked} (it has {known}): add them, {way}"
            "or write to another one"
        )
    if wrong := list(problems(existing, schema)):
        raise FkJoinError(f"{target} does not match fkjoin's table: {'; '.join(wrong)}")


def addable(existing: pa.Schema, schema: pa.Schema) -> list[pa.Field]:
    """The columns that a target lacks and can get: to Spark, names that differ in case are one."""
    known = {name.lower() for name in existing.names}
    return [field for field in schema if field.name.lower() not in known]


def fits(kind: pa.DataType, target: pa.DataType) -> bool:
    """Tell whether every value of the type is one of the other, unchanged."""
    if pa.types.is_struct(kind):
        if not pa.types.is_struct(target) or _names(kind) != _names(target):
            return False
        return all(_fits_in(ours.type, theirs) for ours, theirs in zip(kind, target, strict=True))
    if pa.types.is_list(kind):
        return pa.types.is_list(target) and _fits_in(kind.value_type, target.value_field)
    if pa.types.is_map(kind):
        keys_fit = pa.types.is_map(target) and fits(kind.key_type, target.key_type)
        return keys_fit and _fits_in(kind.item_type, target.item_field)
    if kind == target or (pa.types.is_string(target) and _has_text(kind)):
        return True
    if pa.types.is_signed_integer(kind):
        return _whole_fits(kind, target)
    if pa.types.is_decimal(kind):
        exact = pa.types.is_decimal(target) and target.scale >= kind.scale
        more = exact and target.precision - target.scale >= kind.precision - kind.scale
        return more or kind.precision <= _SIGNIFICANT.get(target, 0)
    return (kind, target) in (
        (pa.float32(), pa.float64()),
        (pa.date32(), pa.timestamp("us")),
        (pa.time64("ns"), pa.time64("us")),  # Spark's times of day have microseconds
    )


def fitting(
    target: str,
    rows: pa.Table,
    existing: pa.Schema,
    key: Sequence[str],
    of_days: Callable[[pa.DataType], bool] = pa.types.is_date32,
) -> pa.Table:
    """The rows with the target's types; ``FkJoinError`` of a null or a day that it cannot store.

    ``target`` is what errors call it; ``of_days`` tells the types whose values must be in the years
    1 to 9999.
    """
    for name in rows.column_names:
        if rows[name].null_count and not existing.field(name).nullable:
            row = row_text(rows.filter(rows[name].is_null()), key)
            why = f"column {name} is NOT NULL there, and null in the row with {row}"
            raise cannot_be(target, why)
        for days in _days(rows[name].combine_chunks(), of_days):
            if beyond_years(days):
                kind = "date" if pa.types.is_date32(days.type) else "time"
                why = f"column {name} has a {kind} outside of the years "
                why += f"1 to 9999, which {target.partition(' ')[0]} tables cannot store"
                raise cannot_be(target, why)
    fields = [existing.field(name).with_nullable(True) for name in rows.column_names]
    return rows.cast(pa.schema(fields))


def beyond_years(values: pa.Array | pa.ChunkedArray) -> bool:
    """Tell whether one of some dates, or of times in microseconds, is outside of 1 to 9999."""
    is_date = pa.types.is_date32(values.type)
    ends = pc.min_max(values.cast(pa.int32() if is_date else pa.int64()))
    if not ends["min"].is_valid:
        return False
    step = 1 if is_date else _DAY_US
    return ends["min"].as_py() // step < _DAYS[0] or ends["max"].as_py() // step > _DAYS[1]


def row_text(rows: pa.Table, key: Sequence[str]) -> str:
    """The key of the first row, for people."""
    row = rows.select(key).slice(0, 1).to_pylist()[0]
    return ", ".join(f"{part} = {value!r}" for part, value in row.items())


def cannot_be(target: str, why: str) -> FkJoinError:
    """The error of a row that a target cannot store."""
    return FkJoinError(
        f"a row cannot be in {target}: {why}. Replace such values in a view of the table, or leave "
        "such rows out with a filter: either needs a new checkpoint and an empty target"
    )


def _text(kind: pa.DataType) -> str:
    """The type as Spark calls it, or as Arrow does where Spark has none."""
    try:
        return kind_text(kind)
    except PySparkException:
        return str(kind)


def _names(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind]


def _fits_in(kind: pa.DataType, column: pa.Field) -> bool:
    return column.nullable and fits(kind, column.type)


def _whole_fits(kind: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_signed_integer(target):
        return kind.bit_width <= target.bit_width
    if pa.types.is_decimal(target):
        return target.precision - target.scale >= _DIGITS[kind]
    return kind.bit_width <= {pa.float32(): 16, pa.float64(): 32}.get(target, 0)


def _has_text(kind: pa.DataType) -> bool:
    """Tell whether each value has a text of its own."""
    tests = (
        pa.types.is_boolean,
        pa.types.is_signed_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_date,
    )
    return any(test(kind) for test in tests)


def _days(values: pa.Array, wanted: Callable[[pa.DataType], bool]) -> Iterator[pa.Array]:
    """The values of some types in a column."""
    kind = values.type
    if wanted(kind):
        yield values
    elif pa.types.is_nested(kind):
        entries = [values.keys, values.items] if pa.types.is_map(kind) else [values.flatten()]
        for inner in values.flatten() if pa.types.is_struct(kind) else entries:
            yield from _days(inner, wanted)
