"""Columns of Parquet files whose types Spark's reader refuses, or takes for others without a word.

The files' own footers tell: Spark makes out no schema of a file if one of its columns, wanted or
not, is of a type that it lacks.  A footer that is none is left to Spark, which stops at the file
and names it; one that cannot be opened is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkTypeError
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from fkjoin.checkpoint.files import files_at
from fkjoin.errors import TopologyError
from fkjoin.files.newest import newest
from fkjoin.spark.schemas import kind_text

_MOST_FILES = 10
"""The newest files whose types are compared."""
_END = 64 << 10
"""Bytes at the end of a file that are read first: footers are mostly shorter."""
_LENGTH = 8
"""Bytes that say how long the footer before them is, and that it is one."""
_MAGIC = b"PAR1"
_INT96 = "timestamp[s]"
"""The old instants of 96 bits: no other column of Parquet counts seconds."""
_LACKED = ("timestamp[ns]", "timestamp[ns, tz]", "time32[ms]", "time64[us]", "time64[ns]")
"""Types of files that Spark has none for, but for their numbers."""
_CALLED = {
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "uint64": "decimal(20,0)",
    _INT96: "timestamp",
}
"""Types of files, as Spark calls them, where Arrow does not tell."""
_DIGITS = {"int8": 10, "int16": 10, "int32": 10, "int64": 20}
_SMALL = ("int8", "int16", "int32", "uint8", "uint16", "null")
_WHOLE = (*_SMALL, "int64", "uint32", "duration[s]", "duration[ms]", "duration[us]", "duration[ns]")
_READ_FROM: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("byte", "short", "integer"), _WHOLE),
    "long": (*_WHOLE, *_LACKED),
    **dict.fromkeys(("float", "double"), (*_SMALL, "float", "double")),
    "boolean": ("bool",),
    "string": ("string", "binary"),
    "binary": ("string", "binary", "fixed_size_binary"),
    "date": ("date32[day]", "null"),
    "timestamp": (_INT96, "timestamp[ms, tz]", "timestamp[us, tz]"),
    "timestamp_ntz": ("timestamp[ms]", "timestamp[us]", "date32[day]"),
    "daytimeinterval": ("int64", "duration[us]"),
    "time": ("time64[us]",),
}
"""Types of a table, each with the files' types that Spark reads right for it; not of decimals."""
_IN_MAPS = {
    "byte": ("int8",),
    "short": ("int8", "int16", "uint8"),
    "integer": _SMALL,
    "float": ("float",),
}
"""Types in maps, which Spark does not read as wider ones."""


def require_kinds(
    spark: SparkSession, pattern: str, options: dict[str, Any], schema: StructType
) -> None:
    """Refuse a schema that Spark does not read right from one of the newest files there."""
    for file in newest(spark, pattern, options, _MOST_FILES):
        for name, wanted, kind in unread("", schema, _kinds(spark, file)):
            contrast = f"schema: {name} is {wanted.simpleString()}, and {_text(kind)} in {file}"
            if _name(kind) in _LACKED:
                raise TopologyError(
                    f"{contrast}, which Spark cannot read: declare it as bigint, and convert the "
                    "number with with_columns, such as timestamp_micros(… div 1000) for "
                    "nanoseconds; or write the file with microseconds"
                )
            raise TopologyError(
                f"{contrast}; give it that type, and convert it with with_columns, "
                "or write the file with the table's type"
            )


def _kinds(spark: SparkSession, file: str) -> pa.StructType:
    """The types of a file's columns; none if it has no footer."""
    folder, _, name = file.rpartition("/")
    files = files_at(spark, f"{folder}/")
    try:
        end = files.read_end(name, _END)
        size = int.from_bytes(end[-_LENGTH : -len(_MAGIC)], "little") + _LENGTH
        if size > len(end):
            end = files.read_end(name, size)
    except OSError as error:
        raise TopologyError(
            f"path: {file} cannot be opened, and its types not compared with the schema: "
            f"{error}. Let this session read it, or take it out of the folder"
        ) from error
    content = pa.BufferReader(_MAGIC + end[-size:])  # the end of a file, read as a file
    try:
        footer = pq.ParquetFile(content, coerce_int96_timestamp_unit="s")
    except (pa.ArrowException, OSError):
        return pa.struct([])
    try:
        return pa.struct(list(footer.schema_arrow))
    except pa.ArrowException as error:
        raise TopologyError(
            f"path: the types of {file} cannot be compared with the schema: {error}. "
            "Write the file again without that column"
        ) from error


def unread(
    name: str,
    wanted: DataType,
    kind: pa.DataType,
    allowed: Mapping[str, tuple[str, ...]] = _READ_FROM,
) -> Iterator[tuple[str, DataType, pa.DataType]]:
    """Yield the columns and fields that Spark does not read right.

    Each has its type in the table and in the files.
    """
    kind = kind.value_type if pa.types.is_dictionary(kind) else getattr(kind, "storage_type", kind)
    if isinstance(wanted, StructType) and pa.types.is_struct(kind):
        kinds = {field.name.lower(): field.type for field in kind}
        above = f"{name}." if name else ""
        for field in wanted:
            inner = kinds.get(field.name.lower())
            if inner is not None:
                yield from unread(above + field.name, field.dataType, inner, allowed)
    elif isinstance(wanted, ArrayType) and hasattr(kind, "value_type"):
        yield from unread(f"{name}[]", wanted.elementType, kind.value_type, allowed)
    elif isinstance(wanted, MapType) and pa.types.is_map(kind):
        yield from unread(f"{name}.key", wanted.keyType, kind.key_type, _READ_FROM | _IN_MAPS)
        yield from unread(f"{name}.value", wanted.valueType, kind.item_type, _READ_FROM | _IN_MAPS)
    elif isinstance(wanted, DecimalType):
        if not _holds(wanted, kind):
            yield name, wanted, kind
    elif _name(kind) not in allowed.get(wanted.typeName(), ()):
        yield name, wanted, kind


def _holds(wanted: DecimalType, kind: pa.DataType) -> bool:
    """Tell whether Spark reads the numbers as such decimals.

    For whole numbers, it wants ``_DIGITS`` before the point.
    """
    whole = wanted.precision - wanted.scale
    if pa.types.is_decimal(kind):
        return bool(wanted.scale >= kind.scale and whole >= kind.precision - kind.scale)
    return whole >= _DIGITS.get(str(kind), 39) or wanted.simpleString() == _CALLED.get(str(kind))


def _name(kind: pa.DataType) -> str:
    """The type as ``_READ_FROM`` calls it: one for all layouts in memory, zones and lengths."""
    return re.sub(r"^large_|_view$|(?<=tz)=[^]]+|(?<=fixed_size_binary)\[.+", "", str(kind))


def _text(kind: pa.DataType) -> str:
    """The type as Spark calls it, where it has it."""
    name = _name(kind)
    try:
        return name if name in _LACKED else _CALLED.get(name) or kind_text(kind)
    except PySparkTypeError:
        return name
