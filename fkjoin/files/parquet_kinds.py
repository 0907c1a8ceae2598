"""Columns of Parquet files whose stored number Spark's reader takes for a value of another kind, and says nothing.

The files' own footers tell: Spark makes out no schema of a file if one of its columns, wanted or not, is of a type that it
lacks.  A footer that is none is left to Spark, which stops at the file and names it; one that cannot be opened is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fkjoin.checkpoint.files import hadoop
from fkjoin.errors import TopologyError
from fkjoin.files.newest import newest
from fkjoin.sessions.arrow_files import ArrowFiles, ArrowPath
from fkjoin.spark.cause import cause_of
from fkjoin.spark.kinds import TIMES_OF_DAY
from fkjoin.spark.object_store import by_one_name
from fkjoin.spark.schemas import kind_text

_MOST_FILES = 10
"""The newest files whose types are compared."""
_END = 64 << 10
"""Bytes at the end of a file that are read first: footers are mostly shorter."""
_LENGTH = 8
"""Bytes that say how long the footer before them is, and that it is one."""
_MAGIC = b"PAR1"
_INT96 = "s"
"""Unit that stands for the old instants of 96 bits: no other column of Parquet counts seconds."""


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and (kind.tz is not None or kind.unit == _INT96)


def _is_clock(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and not _is_instant(kind)


def _is_unknown(kind: pa.DataType) -> bool:
    """Tell whether Spark has no type for it."""
    return bool(pa.types.is_time(kind)) or (bool(pa.types.is_timestamp(kind)) and kind.unit == "ns")


_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_Tests = tuple[Callable[[pa.DataType], bool], ...]
_MISREAD: tuple[tuple[tuple[type[DataType], ...], _Tests], ...] = (
    (_WHOLE, (pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal)),
    ((DateType,), (pa.types.is_signed_integer,)),
    ((TimestampType,), (_is_clock,)),
    ((TimestampNTZType,), (_is_instant,)),
)
"""Types of a table, each with the types of files that Spark reads as other values."""


def require_kinds(spark: SparkSession, pattern: str, options: dict[str, Any], schema: StructType) -> None:
    """Refuse a schema that one of the newest files there contradicts without Spark's notice."""
    for file in newest(spark, pattern, options, _MOST_FILES):
        footer = _footer(spark, file)
        if footer is None:
            continue
        for name, given, kind in _misread("", schema, _kinds(footer, file)):
            wanted, own = given.simpleString(), _text(kind)
            if _is_unknown(kind):
                raise TopologyError(
                    f"schema: {name} is {wanted}, and {own} in the files of {pattern}, which Spark does not read: make it "
                    "bigint, its number, and convert that with with_columns, such as timestamp_micros(… div 1000) of "
                    "nanoseconds; or write the files with microseconds"
                )
            raise TopologyError(
                f"schema: {name} is {wanted}, and {own} in the files of {pattern}; give it that type, and convert it with "
                "with_columns: Spark would read other values"
            )


def _footer(spark: SparkSession, file: str) -> pq.ParquetFile | None:
    """The end of a file, read as a file; None if it has no footer."""
    path, files = hadoop(spark, file)
    try:
        end = _end(path, files, _END)
        size = int.from_bytes(end[-_LENGTH : -len(_MAGIC)], "little") + _LENGTH
        if size > len(end):
            end = _end(path, files, size)
    except (Py4JJavaError, OSError) as error:
        raise TopologyError(
            f"path: {file} cannot be opened, and its types not compared with the schema: {cause_of(error)}. Let this session "
            "read it, or take it out of the folder"
        ) from error
    try:
        return pq.ParquetFile(pa.BufferReader(_MAGIC + end[-size:]), coerce_int96_timestamp_unit=_INT96)
    except (pa.ArrowException, OSError):
        return None


def _end(path: Any, files: Any, most: int) -> bytes:
    """The last bytes of a file."""
    if isinstance(files, ArrowFiles):
        return files.read_end(ArrowPath(by_one_name(path)), most)
    stream = files.open(path)
    try:
        stream.seek(max(0, files.getFileStatus(path).getLen() - most))
        return bytes(stream.readNBytes(most))
    finally:
        stream.close()


def _kinds(footer: pq.ParquetFile, file: str) -> pa.StructType:
    try:
        return pa.struct(list(footer.schema_arrow))
    except pa.ArrowException as error:
        raise TopologyError(
            f"path: the types of {file} cannot be compared with the schema: {error}. Write the file again without that column"
        ) from error


def _misread(name: str, given: DataType, kind: pa.DataType) -> Iterator[tuple[str, DataType, pa.DataType]]:
    """Yield the columns and fields that are misread, each with its type in the table and in the files."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(given, StructType) and pa.types.is_struct(kind):
        kinds = {field.name.lower(): field.type for field in kind}
        for field in given:
            if field.name.lower() in kinds:
                yield from _misread(f"{name}.{field.name}".lstrip("."), field.dataType, kinds[field.name.lower()])
    elif isinstance(given, ArrayType) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        yield from _misread(f"{name}[]", given.elementType, kind.value_type)
    elif isinstance(given, MapType) and pa.types.is_map(kind):
        yield from _misread(f"{name}.key", given.keyType, kind.key_type)
        yield from _misread(f"{name}.value", given.valueType, kind.item_type)
    elif _is_unknown(kind):
        if not isinstance(given, (LongType, *(TIMES_OF_DAY if pa.types.is_time(kind) else ()))):
            yield name, given, kind
    elif any(isinstance(given, ours) and any(test(kind) for test in theirs) for ours, theirs in _MISREAD):
        yield name, given, kind


def _text(kind: pa.DataType) -> str:
    """The type as Spark calls it, where it has it."""
    if _is_unknown(kind):
        return str(kind)
    return kind_text(pa.timestamp("us", "UTC") if _is_instant(kind) else kind)
