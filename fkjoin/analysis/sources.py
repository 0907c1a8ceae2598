"""A streaming DataFrame, or change-log files, as a table's node and rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.attempt import as_json, attempt
from fkjoin.analysis.bound import Bound, Scope, bind, bound_columns
from fkjoin.analysis.columns import require_names, resolve_column
from fkjoin.analysis.planned import Planned, Settings, SourceBound, Undecoded, learned_otherwise
from fkjoin.codec import versions
from fkjoin.codec.expressions import Part
from fkjoin.codec.json_values import UTC
from fkjoin.errors import ColumnTypeError, TopologyError, set_aside
from fkjoin.files.source import FilesRead, as_session, columns_text, open_files
from fkjoin.kafka.connection import Connection
from fkjoin.plan.nodes import Source, generated_name
from fkjoin.plan.optimizer import Off
from fkjoin.plan.physical import Given, Physical, by_spark
from fkjoin.plan.rules import WORKERS_EVALUATE_STEPS
from fkjoin.sessions.settings import prepare
from fkjoin.spark.copies import copy_fields
from fkjoin.spark.dead_letters import OnError, require_on_error
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.spark.json_lines import JsonLines, kind_at, no_version, plain_path, plain_paths
from fkjoin.spark.line_places import local_pattern
from fkjoin.spark.names import named, quoted, require_apart
from fkjoin.spark.on_spark import columns_of, on_spark
from fkjoin.spark.schemas import (
    Expression,
    Expressions,
    arrow_schema,
    fields_of,
    listed,
    require_plain_keys,
    struct_column,
    text,
    type_of,
)

_INTEGERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class ChangeColumns:
    """Expressions over the columns of changes; None leaves the source's own."""

    version: Expressions | None = None
    deleted: Expression | None = None
    timestamp: Expression | None = None

    def __post_init__(self) -> None:
        copy_fields(self)

    @property
    def given(self) -> bool:
        return any(
            expression is not None for expression in (self.version, self.deleted, self.timestamp)
        )

    @property
    def ordering(self) -> list[Expression]:
        """The expressions of the version."""
        return [] if self.version is None else listed(self.version)

    def bound(
        self, frame: DataFrame, names: list[str], label: str
    ) -> tuple[tuple[Bound, ...], str | None]:
        """The version's numbers, then what deletes and what dates; and the type of the timestamp.

        ``TopologyError`` where one of them has another type than these need.
        """
        columns = [*self.numbers(frame, names, label), self.gone(frame, names, label)]
        time, kind_of_time = self.time(frame, names, label)
        # An empty text stands for an expression that is not given.
        deleted = "" if self.deleted is None else self.deleted
        timestamp = "" if self.timestamp is None else self.timestamp
        scope = Scope(frame, tuple(names), label, pa.schema([]))
        expressions = [*self.ordering, deleted, timestamp]
        return bound_columns(expressions, [*columns, time], scope), kind_of_time

    def numbers(self, frame: DataFrame, names: list[str], label: str) -> list[Column]:
        """The version's numbers; ``TopologyError`` where they are not whole."""
        numbers = []
        for item in self.ordering:
            column = resolve_column("version", item, frame, names, label)
            kind = type_of(frame, column).simpleString()
            if kind not in _INTEGERS:
                raise ColumnTypeError(
                    f"version: {text(item)} is {kind}, whole numbers are needed; "
                    "cast it, for a timestamp with unix_micros(…)"
                )
            numbers.append(column.cast("bigint"))
        return numbers

    def gone(self, frame: DataFrame, names: list[str], label: str) -> Column:
        """A boolean column, true where a change deletes.

        ``TopologyError`` where the expression is not a boolean.
        """
        if self.deleted is None:
            return F.lit(False)
        column = resolve_column("deleted", self.deleted, frame, names, label)
        if (kind := type_of(frame, column).simpleString()) != "boolean":
            raise ColumnTypeError(
                f"deleted: {text(self.deleted)} is {kind}, a boolean is needed: "
                "write a condition, such as \"op = 'd'\""
            )
        return F.coalesce(column, F.lit(False))

    def time(self, frame: DataFrame, names: list[str], label: str) -> tuple[Column, str | None]:
        """The timestamp as int64, and its type.

        ``TopologyError`` where it is neither a timestamp nor a number.
        """
        if self.timestamp is None:
            return F.lit(None).cast("bigint"), None
        column = resolve_column("timestamp", self.timestamp, frame, names, label)
        kind = type_of(frame, column).simpleString()
        if kind in ("timestamp", "timestamp_ntz"):
            return F.unix_micros(column.cast("timestamp")), "timestamp"
        if kind in ("int", "bigint"):
            return column.cast("bigint"), "bigint"
        raise ColumnTypeError(
            f"timestamp: {text(self.timestamp)} is {kind}, a timestamp or bigint is "
            "needed; cast it with to_timestamp(…)"
        )


def given_stream(df: Any) -> Given:
    """The rows of a stream that a user gives; ``TopologyError`` if it is none."""
    if not isinstance(df, DataFrame):
        raise TopologyError(f"df: a streaming DataFrame is needed, this is a {type(df).__name__}")
    if not df.isStreaming:
        raise TopologyError(
            "df: a batch DataFrame has no changes to follow; read it as a stream "
            "(spark.readStream…), or use Table.from_files for change logs in files"
        )
    return Given(df)


def read_stream(
    spark: SparkSession,
    stream: Physical,
    key: Expressions,
    version: Expressions,
    *,
    deleted: Expression | None = None,
    timestamp: Expression | None = None,
    name: str | None,
    log: str | None = None,
    on_error: OnError,
    beside: Collection[str] = (),
    places_of: Sequence[str] = (),
) -> Planned:
    """A table of rows that are read as a stream; see ``Table.from_stream``.

    ``stream`` may have ``RAW`` and ``PROBLEM``, which are not columns of the table.  ``beside``:
    columns that are not the row's, whatever expressions read them.  ``places_of``: names for the
    last numbers of versions, of records in a topic.
    """
    require_on_error(on_error)
    prepare(spark)
    df = on_spark(spark, stream)
    label = name or "the table"
    columns = [column for column in df.columns if column not in (RAW, PROBLEM)]
    require_apart(
        "df", columns, "rename one of them: df.withColumnRenamed(…), or in the files' schema="
    )
    keys = require_names("key", key, columns, label)
    require_plain_keys("key", StructType([df.schema[column] for column in keys]))
    deleted, timestamp = (named(item, columns) or item for item in (deleted, timestamp))
    ordering = [named(item, columns) or item for item in listed(version)]
    if not ordering:
        raise TopologyError(
            "version: name the columns that order the changes of a key, such as an LSN"
        )
    changes = ChangeColumns(ordering, deleted, timestamp)
    bound, kind_of_time = changes.bound(df, columns, label)
    of_changes = [item for item in (*ordering, deleted, timestamp) if isinstance(item, str)]
    control = {*beside, *of_changes} - set(keys)
    row = [column for column in columns if column not in control]
    origin = f"stream of {', '.join(columns)}"
    kind = StructType([df.schema[column] for column in columns])
    of_version = [text(item) for item in ordering]
    of_delete = None if deleted is None else text(deleted)
    node = Source(
        name or f"{'-'.join(keys)}-{generated_name(kind.json(), keys, of_version, of_delete)}",
        keys,
        tuple(of_version),
        of_delete,
        None if timestamp is None else text(timestamp),
        tuple(row),
        origin,
        log,
    )
    struct = F.struct(*[F.col(quoted(column)) for column in keys])
    before = F.col(PROBLEM) if PROBLEM in df.columns else F.lit(None).cast("string")
    tried = attempt("source", node.name, bound, on_error, usable=before.isNull(), key=struct)
    *numbers, gone, time = tried.columns
    raw = _raw(df, node.name, keys, row)
    missing = _without_version(keys, dict(zip(node.version, numbers, strict=True)))
    stops = _failing(node.name, raw, fields_of(df, raw)) if on_error == "fail" else _as_it_is
    titles = [*(f"v{index}" for index in range(len(numbers) - len(places_of))), *places_of]
    titled = [number.alias(title) for title, number in zip(titles, numbers, strict=True)]
    chosen = (
        struct.alias(KEY),
        F.when(~gone, F.struct(*[F.col(quoted(column)) for column in row])).alias(ROW),
        gone.alias(DELETED),
        F.struct(*titled).alias(VERSION),
        F.lit(bytearray(versions.identity(log or node.name))).alias(SOURCE),
        time.alias(TS),
        F.coalesce(stops(before), _or_null(tried.problem), stops(missing)).alias(PROBLEM),
        raw.alias(RAW),
    )
    why = F.coalesce(before, _or_null(tried.reason), missing).alias(PROBLEM)
    rows = by_spark(lambda frame: tried.on(frame).select(*chosen), stream)
    letters = by_spark(lambda frame: tried.on(frame).select(why, raw.alias(RAW)), stream)
    return planned_source(
        spark, node, rows, kind_of_time, on_error=on_error, letters=letters, deleted=deleted
    )


def planned_source(
    spark: SparkSession,
    node: Source,
    rows: Physical,
    timestamps: str | None,
    *,
    on_error: OnError,
    letters: Physical,
    connection: Connection | None = None,
    **source: Any,
) -> Planned:
    """The table that a source is; ``letters``: the rows that its dead letters come from.

    ``source``: more that ``SourceBound`` says of it.
    """
    columns = columns_of(spark, rows)
    dead = (letters,) if on_error == "dead-letter" else ()
    return Planned(
        node,
        struct_column(columns, KEY),
        struct_column(columns, ROW),
        spark,
        SourceBound(rows, dead, **source),
        timestamps=timestamps,
        on_error=on_error,
        connection=connection,
    )


def read_files(
    *,
    spark: SparkSession,
    path: str,
    key: Expressions,
    version: Expressions,
    deleted: Expression | None,
    timestamp: Expression | None,
    name: str | None,
    log: str | None,
    on_error: OnError,
    schema: StructType | str | None,
    format: str | None,
    options: Mapping[str, Any] | None,
    settings: Settings,
    begun_folders: Sequence[str] = (),
) -> Planned:
    """See ``Table.from_files``; ``begun_folders``: see ``open_files``."""
    files = open_files(
        spark, path, key, schema=schema, format=format, options=options, begun_folders=begun_folders
    )
    label = name or files.name
    try:
        table = read_stream(
            spark,
            files.rows,
            key,
            version,
            deleted=deleted,
            timestamp=timestamp,
            name=label,
            log=log,
            on_error=on_error,
        )
    except ColumnTypeError as error:
        if not files.learned:
            raise
        raise learned_otherwise(error, {label: path}) from error
    assert isinstance(table.node, Source)
    columns = version, deleted, timestamp
    lines = plain_lines(
        spark,
        files,
        table.node,
        columns,
        on_error=on_error,
        pattern=local_pattern(path),
        off=settings.off,
    )
    bound = replace(
        table.bound,
        undecoded=lines,
        files=(path,),
        learned=files.schema if files.learned else None,
        folders=files.folders,
    )
    return replace(table, bound=bound)


def plain_lines(
    spark: SparkSession,
    files: FilesRead,
    node: Source,
    columns: tuple[Expressions, Expression | None, Expression | None],
    *,
    on_error: OnError,
    pattern: str | None,
    off: Off,
) -> Undecoded | None:
    """The files' lines and what is in them, told without Spark's expressions and JSON reader.

    None where that cannot be.  ``columns``: what the user gave for version, deleted and timestamp;
    ``pattern``: see ``JsonLines.files``.
    """
    if files.lines is None:
        return None
    arrow = arrow_schema("schema", files.schema)
    version, deleted, timestamp = columns
    places = plain_paths([named(item, arrow.names) or item for item in listed(version)], arrow)
    gone = None
    if deleted is not None:
        rows = spark.createDataFrame([], files.schema)
        (bound,) = bind("deleted", [deleted], Scope(rows, tuple(rows.columns), node.name, arrow))
        gone = bound.vector
        if gone is None or gone.can_raise:
            return None
        if not _is_test(gone) and WORKERS_EVALUATE_STEPS in off:
            return None
    time = None
    if timestamp is not None:
        time = plain_path(named(timestamp, arrow.names) or timestamp, arrow)
        if time is None:
            return None
    if places is None:
        return None
    source = versions.identity(node.log or node.name)
    fails = node.name if on_error == "fail" else None
    how = as_session(spark)
    if time is not None and kind_at(arrow, time) == pa.timestamp("us") and how.zone not in UTC:
        return None  # which instant a clock shows depends on the session
    about = source, node.version, columns_text(files.schema), how, fails, pattern
    return Undecoded(
        files.lines, JsonLines(arrow, node.key, places, gone, time, node.columns, *about)
    )


def _raw(df: DataFrame, name: str, keys: Sequence[str], row: Sequence[str]) -> Column:
    """Make the content of a dead letter: the table's name, and where the change was read.

    Where that is not known, it has the key and row as JSON.
    """
    table = F.lit(name).alias("table")
    if RAW in df.columns:
        source = F.col(RAW)
        return F.struct(table, *(source[part].alias(part) for part in fields_of(df, source)))
    return F.struct(table, _as_json(keys).alias("key"), _as_json(row).alias("value"))


def _as_json(names: Sequence[str]) -> Column:
    return as_json(F.struct(*[F.col(quoted(name)) for name in names]))


def _without_version(keys: Sequence[str], version: Mapping[str, Column]) -> Column:
    """Say what is wrong with a row that has a key and no version."""
    keyed = F.lit(True)
    for name in keys:
        keyed = keyed & F.col(quoted(name)).isNotNull()
    return F.coalesce(
        *[F.when(keyed & part.isNull(), F.lit(no_version(name))) for name, part in version.items()]
    )


def _failing(name: str, raw: Column, fields: Sequence[str]) -> Callable[[Column], Column]:
    """Turn a problem into one that stops the query, and says where."""
    shown = {
        part: F.substring(raw[part].cast("string"), 1, 200)
        for part in ("file", "key", "value")
        if part in fields
    }
    file = [shown.pop("file")] if "file" in shown else []

    def failing(problem: Column) -> Column:
        message = F.concat(
            F.concat_ws(": ", F.lit(f"table {name}"), *file, problem, *shown.values()),
            F.lit(set_aside("lines")),
        )
        return F.when(problem.isNotNull(), F.raise_error(message).cast("string"))

    return failing


def _as_it_is(problem: Column) -> Column:
    return problem


def _or_null(text: Column | None) -> Column:
    return F.lit(None).cast("string") if text is None else text


def _is_test(condition: Part) -> bool:
    """Tell whether it is the name of a truth, a test for null, or a comparison with a text.

    Workers evaluate these.
    """
    operand, *others = condition.children or (condition,)
    while operand.kind == "GetStructField":
        (operand,) = operand.children
    texts = all(isinstance(other.argument, str) and other.kind == "Literal" for other in others)
    kinds = "AttributeReference", "GetStructField", "IsNull", "IsNotNull", "EqualTo"
    return condition.kind in kinds and operand.kind == "AttributeReference" and texts
