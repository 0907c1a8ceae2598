"""PostgreSQL's types: which one a column gets, and whether an existing one can hold all values.

*Law*: where ``problems`` finds nothing, each value of each column is in the target what it was, but
that in ``jsonb`` and ``numeric`` -0.0 is 0.0, and a text in a type of its own (``uuid``, an enum)
is as that type writes it; or the column has no such value (text with U+0000, years before 4713 BC,
a text that is not a ``uuid``, a null), and PostgreSQL says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from psycopg import Connection
from pyspark.sql.types import DataType, DecimalType, StructType

from fkjoin.errors import TopologyError
from fkjoin.spark.json_texts import require_json
from fkjoin.spark.kinds import NESTED

_MADE = {
    "boolean": "boolean",
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "time": "time",
    "daytimeinterval": "interval",
    **dict.fromkeys(("struct", "array", "map"), "jsonb"),
}
"""Types of a new table, by the names that PySpark gives its own."""

_WHOLE = {"byte": 3, "short": 5, "integer": 10, "long": 19}
"""Decimal digits of whole numbers."""
_WHOLE_IN = {"int2": 5, "int4": 10, "int8": 19, "float4": 5, "float8": 10}
"""Digits of the longest of these numbers that are all in a type."""
_DIGITS = {"int2": 4, "int4": 9, "int8": 18}
_SIGNIFICANT = {"float4": 6, "float8": 15}
"""Decimal digits that are all in a type."""
_BASES = {"boolean": "bool", "real": "float4", "double precision": "float8"}
"""Own names of types that users read by other names."""
_WIDER = {
    "float": "float8",
    "date": "timestamp",
    **dict.fromkeys(("struct", "array", "map"), "json"),
}
"""Other types that keep every value, besides the type of a new table."""
_READ_FROM_TEXT = ("uuid", "enum", "json", "jsonb", "inet", "cidr", "macaddr")
"""Types that Spark does not have, so only a text goes there: PostgreSQL reads it, if it can."""
_READ_AS_KEYS = _READ_FROM_TEXT[:2]
"""Types in which the texts of a key stay apart; in ``uuid``, those that are spelled alike."""
_MICROSECONDS = 6
"""Digits of a second that times keep, unless the type says fewer."""

_COLUMNS = """
with recursive kinds as (
    select attnum, attname, format_type(atttypid, atttypmod) as shown, attnotnull as required,
        atthasdef or attidentity <> '' as filled, atttypid as kind, atttypmod as modifier,
        attcollation as sorting
    from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped
    union all
    select attnum, attname, shown, required or typnotnull, filled or typdefault is not null,
        typbasetype, typtypmod, sorting
    from kinds join pg_type on pg_type.oid = kind where typtype = 'd'
)
select attname, shown, case typtype when 'e' then 'enum' else typname end,
    modifier, required, filled,
    exists(select from pg_collation as c where c.oid = sorting and not collisdeterministic)
from kinds join pg_type on pg_type.oid = kind where typtype <> 'd' order by attnum
"""

_UNIQUE = """
select array_agg(attname::text order by attnum), indimmediate
from pg_index, unnest(indkey[0:indnkeyatts - 1]) as part
join pg_attribute on attnum = part
where indrelid = %s::regclass and attrelid = indrelid and indisunique and indisvalid
    and indpred is null and indexprs is null
group by indexrelid, indimmediate
"""


class TargetColumn(NamedTuple):
    """A column of the target."""

    name: str
    shown: str
    """Its type, as PostgreSQL writes it."""
    base: str
    """The type's own name; of a domain, the name of the type below; of an enum, ``enum``."""
    modifier: int
    required: bool
    """True for a column that takes no null."""
    filled: bool
    """True for a column that has a value where none is written."""
    is_loose: bool = False
    """True for a collation in which different texts may be equal, such as ``a`` and ``A``."""


def type_for(name: str, kind: DataType) -> str:
    """The type of a column of a new table.

    ``TopologyError`` if PostgreSQL has none that gives back what it is given.
    """
    if isinstance(kind, NESTED):
        require_json("to_postgres", StructType().add(name, kind))
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision}, {kind.scale})"
    if kind.typeName() not in _MADE:
        raise TopologyError(
            f"to_postgres: column {name} is {kind.simpleString()}, which no type of PostgreSQL "
            "stores unchanged: cast it to text"
        )
    return _MADE[kind.typeName()]


def problems(
    connection: Connection[Any], table: str, schema: StructType, key: tuple[str, ...]
) -> Iterator[str]:
    """Find what is wrong with a table's columns for rows of the schema, and what to do about it.

    ``table`` is quoted.
    """
    columns = {row[0]: TargetColumn(*row) for row in connection.execute(_COLUMNS, (table,))}
    for field in schema:
        if (column := columns.pop(field.name, None)) is None:
            continue  # a statement that is tried says so
        if not fits(field.dataType, column, key=field.name in key):
            wanted = type_for(field.name, field.dataType)
            yield (
                f"column {field.name} is {column.shown}, which cannot hold every "
                f"{field.dataType.simpleString()}: alter it to {wanted}, or cast the table's column"
            )
        elif column.is_loose and field.name in key:
            yield (
                f"column {field.name} has a collation in which different keys may be equal: alter "
                'it to text collate "C"'
            )
    for column in columns.values():
        if column.required and not column.filled:
            yield (
                f"column {column.name} is {column.shown} NOT NULL without a default, and the table "
                "has no such column: give it a default, or drop the constraint"
            )
    for names, immediate in connection.execute(_UNIQUE, (table,)):
        unique = f"({', '.join(names)})"
        if set(names) == set(key) and not immediate:
            yield (
                f"the constraint that makes {unique} unique is deferrable: make it NOT DEFERRABLE"
            )
        if set(names) < set(key):
            yield (
                f"{unique} is unique, and the key is ({', '.join(key)}), so that several rows may "
                "have the same: drop that constraint"
            )


def fits(kind: DataType, column: TargetColumn, *, key: bool = False) -> bool:
    """Tell whether the column keeps every value of the type.

    ``key``: and different values stay different.
    """
    base, name = column.base, kind.typeName()
    if base in ("text", "varchar"):
        return column.modifier < 0
    if name == "string":
        return base in (_READ_AS_KEYS if key else ("citext", *_READ_FROM_TEXT))
    if base == "numeric" and name in ("float", "double"):
        return column.modifier < 0
    if name in _WHOLE:
        digits = _WHOLE[name]
        return digits <= _WHOLE_IN.get(base, 0) or _in_numeric(digits, 0, column)
    if isinstance(kind, DecimalType):
        whole = _DIGITS.get(base, 0) if kind.scale == 0 else 0
        if kind.precision <= max(whole, _SIGNIFICANT.get(base, 0)):
            return True
        return _in_numeric(kind.precision - kind.scale, kind.scale, column)
    own = _MADE.get(name, "")
    return base in (_BASES.get(own, own), _WIDER.get(name)) and _exact(column)


def _in_numeric(digits: int, scale: int, column: TargetColumn) -> bool:
    """Tell whether so many digits before and after the point are in the column.

    See PostgreSQL's ``numeric_typmod_scale``.
    """
    if column.base != "numeric":
        return False
    # The modifier is 4 and two fields: precision in the upper bits, scale in 11 bits with a sign.
    packed = column.modifier - 4
    own_precision, own_scale = (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024
    return column.modifier < 0 or (own_scale >= scale and own_precision - own_scale >= digits)


def _exact(column: TargetColumn) -> bool:
    """Tell whether the column cuts nothing off."""
    return column.modifier < 0 or (column.base != "interval" and column.modifier >= _MICROSECONDS)
