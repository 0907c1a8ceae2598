"""Tables over streams of changes, and the foreign-key join of two of them: the library's front door."""

from __future__ import annotations

import functools
import glob
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
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
from fkjoin.columns import Expression, Expressions, listed, require_names, resolve_column, text
from fkjoin.errors import TopologyError
from fkjoin.frame import DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.kafka import sink
from fkjoin.kafka.formats import Format
from fkjoin.kafka.source import Connection, OnError, read_topic
from fkjoin.kafka.staged import StageQuery
from fkjoin.spark.settings import prepare
from fkjoin.topology import Node, Source, describe, generated_name

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_FORMATS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}


@dataclass(frozen=True, eq=False)
class Table:
    """A stream of upserts and tombstones by key; immutable, and nothing runs until a query on ``changes`` starts.

    Make one with ``from_stream`` or ``from_files``, or as the result of ``fk_join``.
    """

    node: Node
    frame: DataFrame
    """Internal: what the engine reads."""
    key: tuple[str, ...]
    timestamps: str | None
    """``"timestamp"`` or ``"bigint"``: the type of the table's timestamps; None without."""
    on_error: OnError = "fail"
    """What happens to changes that cannot be used; other than ``"fail"`` only for tables read from topics."""
    dead: tuple[DataFrame, ...] = ()
    """Internal: frames, with ``RAW`` and ``PROBLEM``, that dead letters come from."""
    connection: Connection | None = None
    """Internal: the topic that the table is read from."""
    stages: tuple[StageQuery, ...] = ()
    """Of a join in the staged deployment: the queries that must run besides the one on ``changes``."""
    materialized_as: Callable[[str], Table] | None = field(default=None, repr=False)
    """Internal: makes the same table with its rows kept in state."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def key_type(self) -> StructType:
        return _struct(self.frame, KEY)

    @property
    def row_type(self) -> StructType:
        return _struct(self.frame, ROW)

    @property
    def changes(self) -> DataFrame:
        """A streaming DataFrame of the table's changes, for any sink (output mode ``append``).

        Columns: the key's, the row's (null in a delete), then ``_operation`` (``insert``, ``update`` or ``delete``; a
        source says ``upsert``), the versions as arrays of bigint (a source has ``_version``, a join ``_left_version`` and
        ``_right_version``, null without a right row), and ``_timestamp`` (null without one).
        """
        own = set(self.key)
        row = [F.col(f"{ROW}.`{name}`").alias(name) for name in self.row_type.names if name not in own]
        key = [F.col(f"{KEY}.`{name}`").alias(name) for name in self.key]
        if isinstance(self.node, Source):
            operation = F.when(F.col(DELETED), F.lit("delete")).otherwise(F.lit("upsert"))
            fields = [F.col(f"{VERSION}.`{name}`").cast("bigint") for name in _struct(self.frame, VERSION).names]
            about = [operation.alias("_operation"), F.array(*fields).alias("_version")]
        else:
            about = [F.col(name) for name in ("_operation", "_left_version", "_right_version")]
        time = F.timestamp_micros(F.col(TS)) if self.timestamps != "bigint" else F.col(TS)
        usable = self.frame.where(F.col(PROBLEM).isNull())
        return usable.select(*key, *row, *about, time.alias("_timestamp"))

    @property
    def dead_letters(self) -> DataFrame | None:
        """A streaming DataFrame of the records that cannot be used, for a query of its own; None where there can be none.

        Columns: ``topic, partition, offset, timestamp, key, value, headers`` as they were read, and ``reason``.  Records of
        tables with ``on_error="dead-letter"`` are in it: those of this table, or of all tables that a join reads.
        """
        found = [frame.where(F.col(PROBLEM).isNotNull()) for frame in self.dead]
        letters = [frame.select(f"{RAW}.*", F.col(PROBLEM).alias("reason")) for frame in found]
        return functools.reduce(DataFrame.unionAll, letters) if letters else None

    def materialize(self, name: str) -> Table:
        """The same table, its rows kept in state under ``name`` for ``fkjoin.read_state``; not for a source.

        A checkpoint that was begun without it, or under another name, is refused.
        """
        if self.materialized_as is None:
            raise TopologyError(f"materialize: {self.name} is a source, and its rows are where it is read from; join it first")
        return self.materialized_as(name)

    def to_kafka(
        self,
        topic: str,
        bootstrap_servers: str,
        *,
        checkpoint: str | Path,
        key: Format | str | None = None,
        value: Format | str | Column | None = None,
        headers: Expression | None = None,
        trigger: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Start writing the table's changes to a topic that can be compacted: a record per change, a null value per delete.

        ``key``: a format; by default one column of text or bytes as it is, and anything else as a JSON object.  ``value``: a
        format, or an expression over ``changes``; by default the row's columns as a JSON object, nulls included.  ``headers``:
        an expression for the records' headers (``array<struct<key: string, value: binary>>``).  ``trigger``: as for Spark's
        ``DataStreamWriter.trigger``.  ``options``: settings of the producer, ``kafka.…``.  ``query_name``: the table's if left
        out.  Delivery is at least once; Spark's producer partitions as Java's does.
        """
        for stage in self.stages:
            stage.topics.create()
        row = tuple(name for name in self.row_type.names if name not in self.key)
        frame = sink.records(self.changes, self.key, row, key, value, headers)
        return sink.start(frame, topic, bootstrap_servers, str(checkpoint), options, trigger, query_name or self.name)

    def describe(self) -> str:
        """The topology that makes this table, as text."""
        return describe(self.node)

    def __repr__(self) -> str:
        return f"Table({self.name}, key={list(self.key)})"

    @classmethod
    def from_stream(
        cls,
        df: DataFrame,
        *,
        key: Expressions,
        version: Expressions,
        deleted: Expression | None = None,
        timestamp: Expression | None = None,
        name: str | None = None,
        log: str | None = None,
    ) -> Table:
        """A table from a streaming DataFrame with one change a row.

        ``key``: name of the key's column, or names.  A row with a null in its key is dropped and counted.
        ``version``: whole-number columns or expressions that order the changes of a key, greater is newer (an LSN, a
        commit number, a sequence); compared from the left.  A change that is not newer than the last is dropped and counted.
        ``deleted``: a boolean column or SQL text; true (not null) makes the row a tombstone.
        ``timestamp``: a timestamp or bigint column that results carry on.
        ``name``: names state and metrics; give one when two tables look alike.  ``log``: tables cut from one log, whose
        versions order changes across them too, name it.

        Columns used as version, deleted or timestamp by their plain name are not part of the row.
        Raises ``TopologyError``.
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
        keys = require_names("key", key, df.columns, label)
        ordering = listed(version)
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
        control = {item for item in [*ordering, deleted, timestamp] if isinstance(item, str)} - set(keys)
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
            F.struct(*[F.col(f"`{column}`") for column in keys]).alias(KEY),
            F.when(~gone, F.struct(*[F.col(f"`{column}`") for column in row])).alias(ROW),
            gone.alias(DELETED),
            F.struct(*[place.cast("bigint").alias(f"v{at}") for at, place in enumerate(places)]).alias(VERSION),
            F.lit(bytearray(versions.identity(log or node.name))).alias(SOURCE),
            time.alias(TS),
            F.lit(None).cast("string").alias(PROBLEM),
        )
        return cls(node, frame, keys, kind_of_time)

    @classmethod
    def from_files(
        cls,
        spark: SparkSession,
        path: str | Path,
        *,
        key: Expressions,
        version: Expressions,
        deleted: Expression | None = None,
        timestamp: Expression | None = None,
        name: str | None = None,
        log: str | None = None,
        schema: StructType | str | None = None,
        format: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Table:
        """A table from a directory (or glob) of change-log files, JSON lines or Parquet, that may go on growing.

        ``schema``: of the files; read from those that are there if left out.  ``format``: ``json`` or ``parquet``, told
        from the files' endings if left out.  ``options``: of Spark's file source, such as ``maxFilesPerTrigger``.  The
        rest as in ``from_stream``.
        """
        pattern = str(path)
        chosen = format or _format_of(pattern)
        if chosen not in ("json", "parquet"):
            raise TopologyError(f"format: {chosen!r} is not one of json, parquet")
        if schema is None:
            try:
                schema = spark.read.format(chosen).load(pattern).schema
            except Exception as error:
                raise TopologyError(
                    f"path: {pattern} cannot be read to learn its columns; is it there, and not empty? "
                    f"Else give schema=. ({str(error).splitlines()[0]})"
                ) from error
        prepare(spark)
        reader = spark.readStream.format(chosen).schema(schema)
        for option, value in (options or {}).items():
            reader = reader.option(option, value)
        stem = Path(pattern.rstrip("/*")).name or "files"
        return cls.from_stream(
            reader.load(pattern),
            key=key,
            version=version,
            deleted=deleted,
            timestamp=timestamp,
            name=name or stem.split(".")[0],
            log=log,
        )

    @classmethod
    def from_kafka(
        cls,
        spark: SparkSession,
        topic: str,
        bootstrap_servers: str,
        *,
        key: Format | str,
        value: Format | str,
        name: str | None = None,
        on_error: OnError = "dead-letter",
        headers: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Table:
        """A table from a topic: a record is an upsert of its key, a null value a tombstone; its offset is its version.

        ``key``, ``value``: formats of ``fkjoin.kafka``, or ``"string"`` or ``"bytes"`` for one column called ``key`` or
        ``value``.  ``on_error``: what happens to a record that does not parse, has no key, or on which a Python extractor
        throws: ``"dead-letter"`` leaves it out, counts it, and has it in ``dead_letters``; ``"skip"`` leaves it out and counts
        it; ``"fail"`` stops the query.  In any case the key's last good row stays.  ``headers``: keep the record's headers as
        a column.  ``options``: of Spark's Kafka source, such as ``maxOffsetsPerTrigger``, and of its consumer (``kafka.…``);
        secrets among them are not shown anywhere.

        When partitions are added to the topic, keys may change theirs: what comes from the new partition then counts as newer.
        Raises ``TopologyError``, also when the topic is not there.
        """
        prepare(spark)
        node, frame, place = read_topic(spark, topic, bootstrap_servers, key, value, name, on_error, headers, options)
        dead = (frame,) if on_error == "dead-letter" else ()
        return cls(node, frame, node.key, "timestamp", on_error, dead, connection=place)


Extractor = Expressions | Callable[[Any, Any], Any]
Joiner = Expressions | Callable[[Any, Any], Any]


def _struct(frame: DataFrame, column: str) -> StructType:
    kind = frame.schema[column].dataType
    assert isinstance(kind, StructType)
    return kind


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
    """json or parquet, from the endings of the files that ``pattern`` means."""
    places = glob.glob(pattern) or [pattern]
    names = [Path(name) for place in places for name in ([place] if Path(place).is_file() else glob.glob(f"{place}/*"))]
    endings = {_FORMATS[name.suffix] for name in [*names, Path(pattern)] if name.suffix in _FORMATS}
    if len(endings) == 1:
        return endings.pop()
    found = "files of both kinds" if endings else "no .json, .jsonl, .ndjson or .parquet file"
    raise TopologyError(f'path: {pattern} has {found}: give format="json" or format="parquet"')
