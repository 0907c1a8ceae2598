"""Rows as JSON texts, by Spark's expressions, which the same schema reads back as the same rows.

*Law*: a text is, byte by byte, what ``to_json`` makes of the row.  Only times with microseconds
have six digits, which ``to_json`` cuts off.  A row that ``to_json`` keeps whole has the bytes that
it always had, so keys do too.
"""

from __future__ import annotations

from pyspark.sql import Column, types
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from fkjoin.errors import TopologyError
from fkjoin.spark.kinds import TIMES_OF_DAY, parts, require_kinds

_TIMES = (types.TimestampType, types.TimestampNTZType)
_INTERVALS = (types.DayTimeIntervalType, types.YearMonthIntervalType)


def written(value: Column, kind: DataType) -> Column:
    """The JSON of a struct, an array or a map of that type, nulls included; null of a null."""
    return F.to_json(_shown(value, kind), {"ignoreNullFields": "false"})


def require_json(argument: str, schema: StructType) -> None:
    """``TopologyError`` if a column, or something in it, would come back from JSON changed."""
    require_kinds(argument, schema, *_INTERVALS, *TIMES_OF_DAY)
    for name, kind in parts(schema):
        if isinstance(kind, MapType) and not isinstance(kind.keyType, types.StringType):
            raise TopologyError(
                f"{argument}: column {name} is {kind.simpleString()}, and the keys of a JSON "
                f"object are texts: write map_entries({name}), or transform_keys({name}, (k, v) -> "
                "cast(k as string))"
            )


def _shown(value: Column, kind: DataType) -> Column:
    """The value with texts in the place of the times in it; one without times as it is."""
    if not _has_times(kind):
        return value
    if isinstance(kind, StructType):
        fields = [
            _shown(value.getField(field.name), field.dataType).alias(field.name) for field in kind
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda item: _shown(item, kind.elementType))
    if isinstance(kind, MapType):
        return F.transform_values(value, lambda _, item: _shown(item, kind.valueType))
    zone = F.date_format(value, "XXXXX") if isinstance(kind, types.TimestampType) else F.lit("")
    return _time(value.cast("string"), zone)


def _time(text: Column, zone: Column) -> Column:
    """``2026-01-02 03:04:05.1`` → ``2026-01-02T03:04:05.100``, and the zone.

    There are three digits, or six if it takes them.
    """
    seconds = F.replace(F.substring_index(text, ".", 1), F.lit(" "), F.lit("T"))
    fraction = F.when(F.contains(text, F.lit(".")), F.substring_index(text, ".", -1)).otherwise(
        F.lit("")
    )
    digits = F.when(F.length(fraction) > 3, F.rpad(fraction, 6, "0")).otherwise(
        F.rpad(fraction, 3, "0")
    )
    return F.concat(seconds, F.lit("."), digits, zone)


def _has_times(kind: DataType) -> bool:
    return any(isinstance(part, _TIMES) for _, part in parts(StructType().add("", kind)))
