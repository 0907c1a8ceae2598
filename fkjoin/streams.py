"""A streaming DataFrame, or change-log files, as a table's node and frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import pyarrow as pa
from pyspark.sql import Column, DataFrame
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
from fkjoin.columns import Expression, Expressions, arrow_schema, listed, require_names, resolve_column, text
from fkjoin.errors import TopologyError
from fkjoin.files import FilesRead, as_session
from fkjoin.frame import DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.json_values import UTC
from fkjoin.rules import WORKERS_EVALUATE_STEPS
from fkjoin.spark.json_lines import SET_ASIDE, JsonLines, kind_at, no_version, plain_path
from fkjoin.spark.settings import prepare, switched_off
from fkjoin.spark.vectorized import vector
from fkjoin.topology import Source, generated_name
from fkjoin.vectors import Vector

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
OnError = Literal["fail", "dead-letter", "skip"]


def require_on_error(given: str) -> None:
    """``TopologyError`` if it is no ``OnError``."""
    if given not in get_args(OnError):
        raise TopologyError(f"on_error: {given!r} is not one of {', '.join(get_args(OnError))}")


def read_stream(
    df: DataFrame,
    key: Expressions,
    version: Expressions,
    deleted: Expression | None,
    timestamp: Expression | None,
    name: str | None,
    log: str | None,
    on_error: OnError,
) -> tuple[Source, DataFrame, tuple[str, ...], str | None]:
    """The node, the frame, the key and the type of the timestamps; see ``Table.from_stream``.

    ``df`` may have ``RAW`` and ``PROBLEM``, which are no columns of the table.
    """
    require_on_error(on_error)
    if not isinstance(df, DataFrame):
        raise TopologyError(f"df: a streaming DataFrame is needed, this is a {type(df).__name__}")
    if not df.isStreaming:
        raise TopologyError(
            "df: a batch DataFrame has no changes to follow; read it as a stream "
            "(spark.readStream…), or use Table.from_files for change logs in files"
        )
    prepare(df.sparkSession)
    label = name or "the table"
    columns = [column for column in df.columns if column not in (RAW, PROBLEM)]
    keys = require_names("key", key, columns, label)
    ordering = listed(version)
    if not ordering:
        raise TopologyError("version: name the columns that order the changes of a key, such as an LSN")
    places = [resolve_column("version", item, df, columns, label) for item in ordering]
    for item, place in zip(ordering, places, strict=True):
        number = _type(df, place)
        if not isinstance(number, _INTEGERS):
            raise TopologyError(
                f"version: {text(item)} is {number.simpleString()}, whole numbers are needed; "
                "cast it, for a timestamp with unix_micros(…)"
            )
    gone = F.lit(False) if deleted is None else resolve_column("deleted", deleted, df, columns, label)
    if not isinstance(_type(df, gone), BooleanType):
        raise TopologyError(
            f"deleted: {text(deleted or '')} is {_type(df, gone).simpleString()}, a boolean is needed: write a "
            "condition, such as \"op = 'd'\""
        )
    time, kind_of_time = _timestamp(df, timestamp, columns, label)
    control = {item for item in [*ordering, deleted, timestamp] if isinstance(item, str)} - set(keys)
    row = [column for column in columns if column not in control]
    origin = f"stream of {', '.join(columns)}"
    kind = StructType([df.schema[column] for column in columns])
    node = Source(
        name or f"{'-'.join(keys)}-{generated_name(kind.json(), keys, ordering, deleted)}",
        keys,
        tuple(text(item) for item in ordering),
        None if deleted is None else text(deleted),
        None if timestamp is None else text(timestamp),
        tuple(row),
        origin,
        log,
    )
    gone = F.coalesce(gone, F.lit(False))
    raw = _raw(df, node.name, keys, row)
    problem = _without_version(df, keys, dict(zip(node.version, places, strict=True)))
    if on_error == "fail":
        problem = _failing(
            problem, node.name, raw, [column for column in ("file", "key", "value") if column in _fields(df, raw)]
        )
    frame = df.select(
        F.struct(*[F.col(f"`{column}`") for column in keys]).alias(KEY),
        F.when(~gone, F.struct(*[F.col(f"`{column}`") for column in row])).alias(ROW),
        gone.alias(DELETED),
        F.struct(*[place.cast("bigint").alias(f"v{at}") for at, place in enumerate(places)]).alias(VERSION),
        F.lit(bytearray(versions.identity(log or node.name))).alias(SOURCE),
        time.alias(TS),
        problem.alias(PROBLEM),
        raw.alias(RAW),
    )
    return node, frame, keys, kind_of_time


def plain_lines(
    files: FilesRead,
    node: Source,
    columns: tuple[Expressions, Expressions, Expression | None, Expression | None],
    on_error: OnError,
) -> tuple[DataFrame, JsonLines] | None:
    """The files' lines and what is in them, when that can be told without Spark's expressions and JSON reader; else None.

    ``columns``: what the user gave for key, version, deleted and timestamp.
    """
    if files.lines is None:
        return None
    spark = files.lines.sparkSession
    arrow = arrow_schema("schema", files.schema)
    key, version, deleted, timestamp = columns
    versions_at = [plain_path(item, arrow) for item in listed(version)]
    gone = None
    if deleted is not None:
        rows = spark.createDataFrame([], files.schema)
        gone = vector(resolve_column("deleted", deleted, rows, rows.columns, node.name), rows, rows.columns)
        if gone is not None and not _is_test(gone) and WORKERS_EVALUATE_STEPS in switched_off(spark):
            return None
    time = None if timestamp is None else plain_path(timestamp, arrow)
    if None in versions_at or (deleted is not None and gone is None) or (timestamp is not None and time is None):
        return None
    places = tuple(path for path in versions_at if path is not None)
    source = versions.identity(node.log or node.name)
    fails = node.name if on_error == "fail" else None
    how = as_session(spark)
    if time is not None and kind_at(arrow, time) == pa.timestamp("us") and how.zone not in UTC:
        return None  # which instant a clock shows depends on the session
    about = source, node.version, files.what, how, fails
    return files.lines, JsonLines(arrow, tuple(listed(key)), places, gone, time, node.columns, *about)


def _raw(df: DataFrame, name: str, keys: Sequence[str], row: Sequence[str]) -> Column:
    """What a dead letter says: where the change was read, or else its key and row as JSON; and the table's name."""
    table = F.lit(name).alias("table")
    if RAW in df.columns:
        return F.struct(table, *(F.col(RAW)[one].alias(one) for one in _fields(df, F.col(RAW))))
    parts = {"key": keys, "value": row}
    texts = {part: F.to_json(F.struct(*(F.col(f"`{one}`") for one in names))) for part, names in parts.items()}
    return F.struct(table, *(one.cast("binary").alias(part) for part, one in texts.items()))


def _fields(df: DataFrame, struct: Column) -> list[str]:
    kind = _type(df, struct)
    assert isinstance(kind, StructType)
    return kind.names


def _without_version(df: DataFrame, keys: Sequence[str], version: Mapping[str, Column]) -> Column:
    """What is wrong with a row: what its reader says, or that there is no version where there is a key."""
    before = F.col(PROBLEM) if PROBLEM in df.columns else F.lit(None).cast("string")
    keyed = F.lit(True)
    for name in keys:
        keyed = keyed & F.col(f"`{name}`").isNotNull()
    told = [F.when(keyed & part.isNull(), F.lit(no_version(name))) for name, part in version.items()]
    return F.coalesce(before, *told)


def _failing(problem: Column, name: str, raw: Column, parts: Sequence[str]) -> Column:
    """A problem that stops the query, and says where."""
    where = [F.substring(raw[part].cast("string"), 1, 200) for part in parts]
    said = F.concat(F.concat_ws(": ", F.lit(f"table {name}"), *where, problem), F.lit(SET_ASIDE))
    return F.when(problem.isNotNull(), F.raise_error(said).cast("string"))


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


def _timestamp(df: DataFrame, given: Expression | None, columns: Sequence[str], label: str) -> tuple[Column, str | None]:
    """The timestamp as int64, and its type."""
    if given is None:
        return F.lit(None).cast("bigint"), None
    column = resolve_column("timestamp", given, df, columns, label)
    kind = _type(df, column)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return F.unix_micros(column.cast("timestamp")), "timestamp"
    if isinstance(kind, LongType | IntegerType):
        return column.cast("bigint"), "bigint"
    raise TopologyError(
        f"timestamp: {text(given)} is {kind.simpleString()}, a timestamp or bigint is needed; cast it with to_timestamp(…)"
    )
