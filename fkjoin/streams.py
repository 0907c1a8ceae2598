"""A streaming DataFrame, or change-log files, as a table's node and frame."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fkjoin import versions
from fkjoin.columns import (
    Expression,
    Expressions,
    arrow_schema,
    listed,
    require_names,
    require_plain_keys,
    resolve_column,
    text,
)
from fkjoin.errors import TopologyError
from fkjoin.frame import DELETED, KEY, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.json_text import readable
from fkjoin.names import named, quoted, require_apart
from fkjoin.rules import WORKERS_EVALUATE_STEPS
from fkjoin.spark.json_lines import JsonLines, plain_path
from fkjoin.spark.settings import prepare, switched_off
from fkjoin.spark.vectorized import vector
from fkjoin.topology import Source, generated_name
from fkjoin.vectors import Vector

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_OF_ANY_FILE = {
    *("maxfilespertrigger", "maxbytespertrigger", "latestfirst", "maxfileage", "maxcachedfiles", "filenameonly"),
    *("cleansource", "sourcearchivedir", "recursivefilelookup", "pathglobfilter"),
}
"""Options of the file source whatever the format, in lower case."""
FileFormat = Literal["json", "parquet", "csv"]

_FORMATS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".csv": "csv"}


def read_stream(
    df: DataFrame,
    key: Expressions,
    version: Expressions,
    deleted: Expression | None,
    timestamp: Expression | None,
    name: str | None,
    log: str | None,
    beside: Collection[str] = (),
) -> tuple[Source, DataFrame, tuple[str, ...], str | None]:
    """The node, the frame, the key and the type of the timestamps; see ``Table.from_stream``.

    ``beside``: columns that are not the row's, whatever expressions read them.
    """
    if not isinstance(df, DataFrame):
        raise TopologyError(f"df: a streaming DataFrame is needed, this is a {type(df).__name__}")
    if not df.isStreaming:
        raise TopologyError(
            "df: a batch DataFrame has no changes to follow; read it as a stream "
            "(spark.readStream…), or use Table.from_files for change logs in files"
        )
    prepare(df.sparkSession)
    label = name or "the table"
    require_apart("df", df.columns, "rename one of them: df.withColumnRenamed(…), or in the files' schema=")
    keys = require_names("key", key, df.columns, label)
    require_plain_keys("key", StructType([df.schema[column] for column in keys]))
    deleted, timestamp = (named(item, df.columns) or item for item in (deleted, timestamp))
    ordering = [named(item, df.columns) or item for item in listed(version)]
    if not ordering:
        raise TopologyError("version: name the columns that order the changes of a key, such as an LSN")
    places = [resolve_column("version", item, df, df.columns, label) for item in ordering]
    for item, place in zip(ordering, places, strict=True):
        kind = _type(df, place)
        if not isinstance(kind, _INTEGERS):
            raise TopologyError(
                f"version: {text(item)} is {kind.simpleString()}, whole numbers are needed; "
                "cast it, for a timestamp with unix_micros(…)"
            )
    gone = F.lit(False) if deleted is None else resolve_column("deleted", deleted, df, df.columns, label)
    if not isinstance(_type(df, gone), BooleanType):
        raise TopologyError(
            f"deleted: {text(deleted or '')} is {_type(df, gone).simpleString()}, a boolean is needed: write a "
            "condition, such as \"op = 'd'\""
        )
    time, kind_of_time = _timestamp(df, timestamp, label)
    control = {*beside, *(item for item in [*ordering, deleted, timestamp] if isinstance(item, str))} - set(keys)
    row = [column for column in df.columns if column not in control]
    origin = f"stream of {', '.join(df.columns)}"
    node = Source(
        name or f"{'-'.join(keys)}-{generated_name(df.schema.json(), keys, ordering, deleted)}",
        keys,
        tuple(text(item) for item in ordering),
        None if deleted is None else text(deleted),
        None if timestamp is None else text(timestamp),
        tuple(row),
        origin,
        log,
    )
    gone = F.coalesce(gone, F.lit(False))
    frame = df.select(
        F.struct(*[F.col(quoted(column)) for column in keys]).alias(KEY),
        F.when(~gone, F.struct(*[F.col(quoted(column)) for column in row])).alias(ROW),
        gone.alias(DELETED),
        F.struct(*[place.cast("bigint").alias(f"v{at}") for at, place in enumerate(places)]).alias(VERSION),
        F.lit(bytearray(versions.identity(log or node.name))).alias(SOURCE),
        time.alias(TS),
        F.lit(None).cast("string").alias(PROBLEM),
    )
    return node, frame, keys, kind_of_time


def open_files(
    spark: SparkSession, pattern: str, schema: StructType | str | None, format: str | None, options: Mapping[str, Any] | None
) -> tuple[DataFrame, str, str]:
    """The streaming DataFrame over the files, their format, and a name for it; see ``Table.from_files``."""
    chosen = format or _format_of(pattern)
    if chosen not in get_args(FileFormat):
        raise TopologyError(f"format: {chosen!r} is not one of {', '.join(get_args(FileFormat))}")
    settings = {"header": True, **(options or {})} if chosen == "csv" else dict(options or {})
    if schema is None:
        try:
            schema = spark.read.format(chosen).options(**{"inferSchema": True, **settings}).load(pattern).schema
        except Exception as error:
            raise TopologyError(
                f"path: {pattern} cannot be read to learn its columns; is it there, and not empty? "
                f"Else give schema=. ({str(error).splitlines()[0]})"
            ) from error
    prepare(spark)
    frame = spark.readStream.format(chosen).schema(schema).options(**settings).load(pattern)
    stem = Path(pattern.rstrip("/*")).name or "files"
    return frame, chosen, stem.split(".")[0]


def plain_lines(
    spark: SparkSession,
    pattern: str,
    schema: StructType,
    node: Source,
    columns: tuple[Expressions, Expressions, Expression | None, Expression | None],
    format: str,
    options: Mapping[str, Any] | None,
) -> tuple[DataFrame, JsonLines] | None:
    """The files' lines and what is in them, when that can be told without Spark's expressions and JSON reader; else None.

    ``columns``: what the user gave for key, version, deleted and timestamp.
    """
    if format != "json" or {name.lower() for name in options or {}} - _OF_ANY_FILE:
        return None
    arrow = arrow_schema("schema", schema)
    if not readable(pa.struct(list(arrow))):
        return None
    _, version, deleted, timestamp = columns
    versions_at = [plain_path(named(item, arrow.names) or item, arrow) for item in listed(version)]
    gone = None
    if deleted is not None:
        rows = spark.createDataFrame([], schema)
        gone = vector(resolve_column("deleted", deleted, rows, rows.columns, node.name), rows, rows.columns)
        if gone is not None and not _is_test(gone) and WORKERS_EVALUATE_STEPS in switched_off(spark):
            return None
    time = None if timestamp is None else plain_path(named(timestamp, arrow.names) or timestamp, arrow)
    if None in versions_at or (deleted is not None and gone is None) or (timestamp is not None and time is None):
        return None
    places = tuple(path for path in versions_at if path is not None)
    source = versions.identity(node.log or node.name)
    lines = JsonLines(arrow, node.key, places, gone, time, node.columns, source)
    return spark.readStream.format("text").options(**{n: str(v) for n, v in (options or {}).items()}).load(pattern), lines


def _is_test(condition: Vector) -> bool:
    """Whether it is the name of a truth, a test for null, or a comparison with a text: workers have always evaluated these."""
    what, *others = condition.children or (condition,)
    while what.kind == "GetStructField":
        (what,) = what.children
    texts = all(isinstance(other.given, str) and other.kind == "Literal" for other in others)
    kinds = "AttributeReference", "GetStructField", "IsNull", "IsNotNull", "EqualTo"
    return condition.kind in kinds and what.kind == "AttributeReference" and texts


def _type(df: DataFrame, column: Column) -> DataType:
    return df.select(column.alias("it")).schema["it"].dataType


def _timestamp(df: DataFrame, given: Expression | None, label: str) -> tuple[Column, str | None]:
    """The timestamp as int64, and its type."""
    if given is None:
        return F.lit(None).cast("bigint"), None
    column = resolve_column("timestamp", given, df, df.columns, label)
    kind = _type(df, column)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return F.unix_micros(column.cast("timestamp")), "timestamp"
    if isinstance(kind, LongType | IntegerType):
        return column.cast("bigint"), "bigint"
    raise TopologyError(
        f"timestamp: {text(given)} is {kind.simpleString()}, a timestamp or bigint is needed; cast it with to_timestamp(…)"
    )


def _format_of(pattern: str) -> str:
    """Of a ``FileFormat``, from the endings of the files that ``pattern`` means."""
    places = glob.glob(pattern) or [pattern]
    names = [Path(name) for place in places for name in ([place] if Path(place).is_file() else glob.glob(f"{place}/*"))]
    endings = {_FORMATS[name.suffix] for name in [*names, Path(pattern)] if name.suffix in _FORMATS}
    if len(endings) == 1:
        return endings.pop()
    found = "files of several kinds" if endings else f"no {', '.join(_FORMATS)} file"
    raise TopologyError(f'path: {pattern} has {found}: give format="json", "parquet" or "csv"')
