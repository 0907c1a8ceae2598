"""Arrow's types of a target's columns: whether they can hold all values of a table's columns.

*Law*: where ``problems`` finds nothing, ``fitting`` rows have each value unchanged, in the target's types; or a row has a
null or a day that the target cannot have, and ``fitting`` says so.
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


def problems(there: pa.Schema, schema: pa.Schema) -> Iterator[str]:
    """Find what is wrong with the columns of a target for rows of the schema, and what to do about it."""
    for field in schema:
        target = there.field(field.name)
        if not fits(field.type, target.type):
            yield (
                f"column {field.name} is {_text(target.type)}, which cannot hold every {kind_text(field.type)}: make it "
                f"{kind_text(field.type)}, or cast the table's column"
            )
    for field in there:
        if not field.nullable and field.name not in schema.names:
            yield (
                f"column {field.name} is {_text(field.type)} NOT NULL, and the table has no such column: "
                "drop the constraint, or add the column"
            )


def require_columns(target: str, there: pa.Schema, schema: pa.Schema, *, evolve: bool) -> None:
    """``FkJoinError`` if a target lacks columns of the schema, or cannot hold their values; ``target`` is what it calls it."""
    if missing := [name for name in schema.names if name not in there.names]:
        lacked, known = ", ".join(missing), ", ".join(sorted(there.names))
        if len(addable(there, pa.schema(map(schema.field, missing)))) < len(missing):
            raise FkJoinError(
                f"{target} lacks the columns {lacked}, and has ones that differ in case alone, one to Spark ({known}): rename "
                "them in a view of the table, or write to another one"
            )
        way = "" if evolve else "let evolve=True add them, "
        raise FkJoinError(f"{target} lacks the columns {lacked} (it has {known}): add them, {way}or write to another one")
    if wrong := list(problems(there, schema)):
        raise FkJoinError(f"{target} cannot be kept as fkjoin's table is: {'; '.join(wrong)}")


def addable(there: pa.Schema, schema: pa.Schema) -> list[pa.Field]:
    """The columns that a target lacks and can get: to Spark, names that differ in case are one."""
    known = {name.lower() for name in there.names}
    return [field for field in schema if field.name.lower() not in known]


def fits(kind: pa.DataType, there: pa.DataType) -> bool:
    """Tell whether every value of the type is one of the other, unchanged."""
    if pa.types.is_struct(kind):
        if not pa.types.is_struct(there) or [field.name for field in kind] != [field.name for field in there]:
            return False
        return all(_fits_in(ours.type, theirs) for ours, theirs in zip(kind, there, strict=True))
    if pa.types.is_list(kind):
        return pa.types.is_list(there) and _fits_in(kind.value_type, there.value_field)
    if pa.types.is_map(kind):
        return pa.types.is_map(there) and fits(kind.key_type, there.key_type) and _fits_in(kind.item_type, there.item_field)
    if kind == there or (pa.types.is_string(there) and _has_text(kind)):
        return True
    if pa.types.is_signed_integer(kind):
        return _whole_fits(kind, there)
    if pa.types.is_decimal(kind):
        exact = pa.types.is_decimal(there) and there.scale >= kind.scale
        more = exact and there.precision - there.scale >= kind.precision - kind.scale
        return more or kind.precision <= _SIGNIFICANT.get(there, 0)
    return (kind, there) in (
        (pa.float32(), pa.float64()),
        (pa.date32(), pa.timestamp("us")),
        (pa.time64("ns"), pa.time64("us")),  # Spark's times of day have microseconds
    )


def fitting(
    target: str,
    rows: pa.Table,
    there: pa.Schema,
    key: Sequence[str],
    of_days: Callable[[pa.DataType], bool] = pa.types.is_date32,
) -> pa.Table:
    """The rows with the types of the target; ``FkJoinError`` of a null or a day that it cannot have.

    ``target`` is what errors call it; ``of_days`` tells the types whose values must be in the years 1 to 9999.
    """
    for name in rows.column_names:
        if rows[name].null_count and not there.field(name).nullable:
            row = row_text(rows.filter(rows[name].is_null()), key)
            raise cannot_be(target, f"column {name} is NOT NULL there, and null in the row with {row}")
        for days in _days(rows[name].combine_chunks(), of_days):
            kind, number, of_a_day = ("date", pa.int32(), 1) if pa.types.is_date32(days.type) else ("time", pa.int64(), _DAY_US)
            ends = pc.min_max(days.cast(number))
            if ends["min"].is_valid and not (
                _DAYS[0] <= ends["min"].as_py() // of_a_day <= ends["max"].as_py() // of_a_day <= _DAYS[1]
            ):
                tables = f"{target.partition(' ')[0]} tables"
                raise cannot_be(
                    target, f"column {name} has a {kind} outside of the years 1 to 9999, which {tables} cannot have"
                )
    return rows.cast(pa.schema([there.field(name).with_nullable(True) for name in rows.column_names]))


def row_text(rows: pa.Table, key: Sequence[str]) -> str:
    """The key of the first row, for people."""
    row = rows.select(key).slice(0, 1).to_pylist()[0]
    return ", ".join(f"{part} = {value!r}" for part, value in row.items())


def cannot_be(target: str, why: str) -> FkJoinError:
    """The error of a row that a target cannot have."""
    return FkJoinError(
        f"a row cannot be in {target}: {why}. Replace such values in a view of the table, or leave such rows out with a "
        "filter: either needs a new checkpoint and an empty target"
    )


def _text(kind: pa.DataType) -> str:
    """The type as Spark calls it, or as Arrow does where Spark has none."""
    try:
        return kind_text(kind)
    except PySparkException:
        return str(kind)


def _fits_in(kind: pa.DataType, there: pa.Field) -> bool:
    return there.nullable and fits(kind, there.type)


def _whole_fits(kind: pa.DataType, there: pa.DataType) -> bool:
    if pa.types.is_signed_integer(there):
        return kind.bit_width <= there.bit_width
    if pa.types.is_decimal(there):
        return there.precision - there.scale >= _DIGITS[kind]
    return kind.bit_width <= {pa.float32(): 16, pa.float64(): 32}.get(there, 0)


def _has_text(kind: pa.DataType) -> bool:
    """Tell whether each value has a text of its own."""
    tests = (pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date)
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
