"""Tables over streams of changes, and the foreign-key join of two of them: the library's front door."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.bind import paths_of
from fkjoin.analysis.change_columns import ChangeColumns
from fkjoin.analysis.sources import plain_lines, read_stream
from fkjoin.analysis.topics import read_topic
from fkjoin.codec.rows import Path as FieldPath
from fkjoin.files.source import open_files
from fkjoin.kafka.connection import Connection, OnNewTopic
from fkjoin.kafka.formats import Format as KafkaFormat
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.positions import numbers
from fkjoin.lowering.completed import completed
from fkjoin.lowering.recipes import Recipe
from fkjoin.lowering.stage import Answers, Contributions, Early, Narrow
from fkjoin.lowering.workers import Unread
from fkjoin.operators import Operators
from fkjoin.outputs import Outputs
from fkjoin.plan.describe.render import Format, draw
from fkjoin.plan.nodes import Node, Source
from fkjoin.sessions.settings import prepare
from fkjoin.spark.dead_letters import OnError, union
from fkjoin.spark.frame import CHAINS, DELETED, KEY, NUMBERS, OPERATION, PROBLEM, ROW, TS, VERSION
from fkjoin.spark.names import quoted, require_results
from fkjoin.spark.schemas import Expression, Expressions, arrow_schema, listed
from fkjoin.spark.unpacking import UnpackResults

if TYPE_CHECKING:
    from fkjoin.lowering.multi_join import Joins


@dataclass(frozen=True, eq=False)
class Table(Operators, Outputs):
    """A stream of upserts and tombstones by key; immutable, and nothing runs until a query on ``changes`` starts.

    Make one with ``from_stream`` or ``from_files``, or as the result of ``fk_join``.
    """

    node: Node
    frame: DataFrame
    """Internal: what the engine reads."""
    key: tuple[str, ...]
    timestamps: str | None
    """``"timestamp"`` or ``"bigint"``: the type of the table's timestamps; None without."""
    on_error: OnError = "dead-letter"
    """What happens to changes that cannot be used, and to rows on which an expression or a function of the user's throws; what
    is made of tables has it of the first of them, a join of the left one."""
    dead: tuple[DataFrame, ...] = ()
    """Internal: frames, with ``RAW`` and ``PROBLEM``, that dead letters come from."""
    connection: Connection | None = None
    """Internal: the topic that the table is read from."""
    unread: Unread | None = field(default=None, repr=False)
    """Internal: the lines of JSON files, or a topic's records, and how they are read without ``frame``."""
    packed: tuple[DataFrame, UnpackResults] | None = field(default=None, repr=False)
    """Internal: the results of a join before they become rows, and what makes rows of them."""
    answers: Answers | None = field(default=None, repr=False)
    """Internal: of a join, for an aggregate to read it without ``frame``."""
    contributions: Contributions | None = field(default=None, repr=False)
    """Internal: of an aggregate, for a cogroup to read it without ``frame``."""
    early: Early | None = field(default=None, repr=False)
    """Internal: of a join and of views of it, its rows before resolve."""
    star: Joins | str | None = field(default=None, repr=False)
    """Internal: of a join, what one by another foreign key of the same left table needs to be one with it; or why it cannot."""
    narrow: Narrow | None = field(default=None, repr=False)
    """Internal: of joins that are one, makes ``frame`` with fewer columns."""
    settled: DataFrame | None = field(default=None, repr=False)
    """Internal: what sinks read, where that is not ``frame``."""
    stages: tuple[StageQuery, ...] = ()
    """Of a join in the staged deployment: the queries that must run besides the one on ``changes``."""
    materialized_as: Callable[[str], Table] | None = field(default=None, repr=False)
    """Internal: makes the same table with its rows kept in state."""

    recipe: Recipe | None = field(default=None, repr=False)
    """Internal: how it was made."""

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
    def rest(self) -> tuple[str, ...]:
        """The row's columns that are not the key's."""
        return tuple(name for name in self.row_type.names if name not in self.key)

    def reads(self, given: Iterable[Any]) -> list[FieldPath]:
        """Internal: the fields of ``visible`` that expressions read."""
        return paths_of(given, self.visible_schema, self.frame.sparkSession)

    @property
    def visible_schema(self) -> pa.Schema:
        """Internal: the columns of ``visible`` that are the table's."""
        row = arrow_schema("row", self.row_type)
        return pa.schema([*row, *(field for field in arrow_schema("key", self.key_type) if field.name not in row.names)])

    def visible(self, frame: DataFrame | None = None) -> DataFrame:
        """Internal: ``frame`` with the row's columns, and those of the key that the row lacks, under their names."""
        row = self.row_type.names
        key = [F.col(quoted(KEY, name)) for name in self.key if name not in row]
        return (self.frame if frame is None else frame).select("*", f"{ROW}.*", *key)

    @property
    def changes(self) -> DataFrame:
        """A streaming DataFrame of the table's changes, for any sink (output mode ``append``).

        Columns: the key's, the row's (null in a delete), then ``_operation`` (``insert``, ``update`` or ``delete``; a
        source says ``upsert``), the versions as arrays of bigint (a source has ``_version``, a join ``_left_version`` and
        ``_right_version``, null without a right row), and ``_timestamp`` (null without one).
        """
        return self.changes_with()

    def changes_with(self, *more: Column) -> DataFrame:
        """Internal: ``changes``, and columns made from the frame."""
        require_results(self.name, (*self.key, *self.rest))
        row = [F.col(quoted(ROW, name)).alias(name) for name in self.rest]
        key = [F.col(quoted(KEY, name)).alias(name) for name in self.key]
        if isinstance(self.node, Source):
            operation = F.when(F.col(DELETED), F.lit("delete")).otherwise(F.lit("upsert"))
            if CHAINS in self.frame.columns:
                version = numbers(F.col(CHAINS))
            else:
                names = _struct(self.frame, VERSION).names
                version = F.array(*[F.col(f"{VERSION}.`{name}`").cast("bigint") for name in names])
            about = [operation.alias("_operation"), version.alias("_version")]
        else:
            about = [F.col(OPERATION).alias("_operation")]
            about += [F.col(f"{NUMBERS}{name}").alias(f"_{name}") for name, _ in self.node.versions]
        time = F.timestamp_micros(F.col(TS)) if self.timestamps != "bigint" else F.col(TS)
        usable = (self.frame if self.settled is None else self.settled).where(F.col(PROBLEM).isNull())
        return usable.select(*key, *row, *about, time.alias("_timestamp"), *more)

    @property
    def dead_letters(self) -> DataFrame | None:
        """A streaming DataFrame of the records that cannot be used, for a query of its own; None where there can be none.

        Columns: ``table`` (its name), what is known of the record as it was read, and ``reason``.  Of topics that is ``topic,
        partition, offset, timestamp, key, value, headers``; of files ``file`` and ``value``, the line; of other streams, and of
        rows on which an expression or a function threw, ``key`` and ``value`` as JSON.  With ``on_error="dead-letter"`` records
        are in it: those of this table, or of all that a join reads.
        """
        return union(self.dead, self.name)

    def describe(self, format: Format = "text") -> str:
        """The topology that makes this table: ``text``, ``json``, ``mermaid`` for a flowchart, or ``svg`` for a picture."""
        return draw(self.node, format)

    def _repr_html_(self) -> str:
        """In notebooks: the topology, as a picture."""
        return self.describe("svg")

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
        on_error: OnError = "dead-letter",
    ) -> Table:
        """A table from a streaming DataFrame with one change a row.

        ``key``: name of the key's column, or names.  A row with a null in its key is dropped and counted.
        ``version``: whole-number columns or expressions that order the changes of a key, greater is newer (an LSN, a
        commit number, a sequence); compared from the left.  A change that is not newer than the last is dropped and counted.
        ``deleted``: a boolean column or SQL text; true (not null) makes the row a tombstone.
        ``timestamp``: a timestamp or bigint column that results carry on.
        ``name``: names state and metrics; give one when two tables look alike.  ``log``: tables cut from one log, whose
        versions order changes across them too, name it.
        ``on_error``: what happens to a change without a version, and to a row on which an expression or a function of the
        user's throws: ``"dead-letter"`` leaves the change out, counts it, and has it in ``dead_letters``; ``"skip"`` leaves it
        out and counts it; ``"fail"`` stops the query.  In any case the key's last good row stays.

        Columns used as version, deleted or timestamp by their plain name are not part of the row.
        Raises ``TopologyError``.
        """
        return cls(*read_stream(df, key, version, deleted, timestamp, name, log, on_error))

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
        on_error: OnError = "dead-letter",
        schema: StructType | str | None = None,
        format: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Table:
        """A table from a directory (or glob) of change-log files, JSON lines, Parquet or CSV, that may go on growing.

        ``schema``: of the files; without it, it is what those have that are there, keys of CSV and in names of folders being
        text, and a checkpoint keeps it.  ``format``: ``json``, ``parquet`` or ``csv`` (with a header line), told from the
        files' endings if left out.  ``options``: of Spark's file source, such as ``maxFilesPerTrigger``.  ``on_error``: what
        happens to lines that do not fit, and to changes without a version.  The rest as in ``from_stream``.
        """
        files = open_files(spark, str(path), key, schema, format, options, [*listed(version), timestamp])
        about: dict[str, Any] = {"key": key, "version": version, "deleted": deleted, "timestamp": timestamp, "log": log}
        about["on_error"] = on_error
        table = cls.from_stream(files.frame, name=name or files.name, **about)
        assert isinstance(table.node, Source)
        columns = (key, version, deleted, timestamp)
        about |= {"name": name, "schema": schema, "format": format, "options": options}
        recipe = Recipe(cls.from_files, (spark, path), about, files.schema if files.learned else None)
        return replace(table, unread=plain_lines(files, table.node, columns, on_error), recipe=recipe)

    @classmethod
    def from_fkjoin(
        cls,
        spark: SparkSession,
        path: str | Path,
        *,
        key: Expressions | None = None,
        name: str | None = None,
        on_error: OnError = "dead-letter",
        schema: StructType | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Table:
        """The table that ``to_parquet`` has written, and goes on writing, to ``path``: the same rows, deletes and timestamps.

        The newer change of a row is the one of the later batch; a source's changes are ordered by their own versions.  The
        columns that results add, and the folders' name, are not part of the row.  ``key``: needed only where a release that
        did not note it wrote the files.  A folder with batches of several checkpoints is refused, since nothing orders them.
        ``schema``: of the files, with all columns; without it, it is that of the newest batch, and a checkpoint keeps it.
        ``name``, ``on_error``, ``options``: as in ``from_files``.  Raises ``TopologyError``, also when no batch is there yet.
        """
        from fkjoin.analysis.written import read_written, schema_of  # it reads what sinks write

        found = schema_of(spark, str(path)) if schema is None else schema
        about: dict[str, Any] = {"key": key, "name": name, "on_error": on_error, "schema": schema, "options": options}
        recipe = Recipe(cls.from_fkjoin, (spark, path), about, found if schema is None else None)
        return cls(*read_written(spark, str(path), key, name, on_error, found, options), recipe=recipe)

    @classmethod
    def from_kafka(
        cls,
        spark: SparkSession,
        topic: str,
        bootstrap_servers: str,
        *,
        key: KafkaFormat | str,
        value: KafkaFormat | str,
        version: Expressions | None = None,
        deleted: Expression | None = None,
        timestamp: Expression | None = None,
        name: str | None = None,
        on_error: OnError = "dead-letter",
        on_new_topic: OnNewTopic | None = None,
        headers: bool = False,
        roots: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Table:
        """A table from a topic: a record is an upsert of its key, a null value a tombstone.

        Of a key's records in one partition the greater offset is newer.  Where a key is in several, because partitions were
        added, the later record timestamp is, then the greater partition; docs/order.md has the whole rule.

        ``key``, ``value``: formats of ``fkjoin.kafka``, or ``"string"`` or ``"bytes"`` for one column called ``key`` or
        ``value``.  ``on_error``: as for ``from_stream``, also for a record that does not parse or has no key.  ``headers``:
        keep the record's headers as a column.  ``options``: of Spark's Kafka source, such as ``maxOffsetsPerTrigger``, and of
        its consumer (``kafka.…``); secrets among them are not shown anywhere.

        ``version``: whole-number columns or expressions over the value's columns that order the changes of a key before all
        that, such as ``"source.lsn"`` of Debezium; a record without one cannot be used.  ``deleted``: a condition that makes
        the record a tombstone, such as ``"__deleted = 'true'"``.  ``timestamp``: a timestamp or bigint column that results
        carry on in place of the record's.

        ``roots``: the topic is written by another job, ``to_kafka(…, positions=True)``, from so many topics; where in them a
        row came from, as a header says, is its version, in place of its offset here.  So what that job publishes twice counts
        once.  A row whose root is another topic than before starts over, counted as ``source-restarts``.

        ``on_new_topic``: what happens when the topic was deleted and created again since the query's checkpoint was begun.
        ``"fail"`` refuses to start.  ``"start-over"`` reads the new topic from its beginning: what comes counts as newer, and
        rows that the new topic does not have are deleted once it has been read to the end it had at the start.  Left out, it is
        ``"start-over"`` with Spark's option ``failOnDataLoss=false``, which says that lost data stops nothing, else ``"fail"``.

        Raises ``TopologyError``, also when the topic is not there.
        """
        about: dict[str, Any] = {"name": name, "on_error": on_error, "on_new_topic": on_new_topic}
        about |= {"headers": headers, "roots": roots, "options": options}
        columns = ChangeColumns(version, deleted, timestamp)
        return cls._of_topic(spark, topic, bootstrap_servers, key, value, columns, **about)

    @classmethod
    def _of_topic(
        cls,
        spark: SparkSession,
        topic: str,
        bootstrap_servers: str,
        key: KafkaFormat | str,
        value: KafkaFormat | str,
        columns: ChangeColumns,
        **about: Any,
    ) -> Table:
        """``from_kafka``; ``again``: the checkpoint has started over with the topic."""
        prepare(spark)
        read = read_topic(spark, topic, bootstrap_servers, key, value, columns, **about)
        given = {name: given for name, given in about.items() if name != "again"}
        arguments = spark, topic, bootstrap_servers, key, value, columns
        recipe = Recipe(cls._of_topic, arguments, given, connection=read.connection)
        on_error = about["on_error"]
        dead = (read.dead,) if on_error == "dead-letter" else ()
        made = cls(read.node, read.frame, read.node.key, read.timestamps, on_error, dead)
        return completed(replace(made, connection=read.connection, unread=read.unread, recipe=recipe))


Extractor = Expressions | Callable[[Any, Any], Any]
Joiner = Expressions | Callable[[Any, Any], Any]


def _struct(frame: DataFrame, column: str) -> StructType:
    kind = frame.schema[column].dataType
    assert isinstance(kind, StructType)
    return kind
