"""Tables over streams of changes, and the foreign-key join of two of them: the library's front door."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.change_columns import ChangeColumns
from fkjoin.analysis.sources import read_stream, with_lines
from fkjoin.analysis.topics import read_topic
from fkjoin.analysis.views import completed
from fkjoin.analysis.written import read_written, schema_of
from fkjoin.files.source import open_files
from fkjoin.inspection import Inspection
from fkjoin.kafka.connection import OnNewTopic
from fkjoin.kafka.formats import Format as KafkaFormat
from fkjoin.kafka.internal import StageQuery
from fkjoin.lowering.recipes import Recipe
from fkjoin.outputs import Outputs
from fkjoin.sessions.settings import prepare
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.schemas import Expression, Expressions, listed


class Table(Inspection, Outputs):
    """A stream of upserts and tombstones by key; immutable, and nothing runs until a query on ``changes`` starts.

    Make one with ``from_stream``, ``from_files``, ``from_kafka`` or ``from_fkjoin``, or as the result of ``fk_join``.
    """

    def __init__(self) -> None:
        raise TypeError("make a Table with Table.from_files, from_kafka, from_stream or from_fkjoin, or with fk_join")

    @property
    def stages(self) -> tuple[StageQuery, ...]:
        """Of operators in the staged deployment: the queries that must run besides the one on ``changes``."""
        return self._lowered.stages

    @property
    def changes(self) -> DataFrame:
        """A streaming DataFrame of the table's changes, for any sink (output mode ``append``).

        Columns: the key's, the row's (null in a delete), then ``_operation`` (``insert``, ``update`` or ``delete``; a
        source says ``upsert``), the versions as arrays of bigint (a source has ``_version``, a join ``_left_version`` and
        ``_right_version``, null without a right row), and ``_timestamp`` (null without one).
        """
        return self._lowered.changes

    @property
    def dead_letters(self) -> DataFrame | None:
        """A streaming DataFrame of the records that cannot be used, for a query of its own; None where there can be none.

        Columns: ``table`` (its name), what is known of the record as it was read, and ``reason``.  Of topics that is ``topic,
        partition, offset, timestamp, key, value, headers``; of files ``file`` and ``value``, the line; of other streams, and of
        rows on which an expression or a function threw, ``key`` and ``value`` as JSON.  With ``on_error="dead-letter"`` records
        are in it: those of this table, or of all that a join reads.
        """
        return self._lowered.dead_letters

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
        return cls._of(read_stream(df, key, version, deleted, timestamp, name, log, on_error))

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
        planned = read_stream(files.frame, name=name or files.name, **about)
        about |= {"name": name, "schema": schema, "format": format, "options": options}
        recipe = Recipe(cls.from_files, (spark, path), about, files.schema if files.learned else None)
        return cls._of(with_lines(planned, files, (key, version, deleted, timestamp)))._with_recipe(recipe)

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
        found = schema_of(spark, str(path)) if schema is None else schema
        about: dict[str, Any] = {"key": key, "name": name, "on_error": on_error, "schema": schema, "options": options}
        learned, folder = found if schema is None else None, str(path).rstrip("/")
        recipe = Recipe(cls.from_fkjoin, (spark, path), about, learned, folder=folder)
        return cls._of(read_written(spark, str(path), key, name, on_error, found, options))._with_recipe(recipe)

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
        planned = read_topic(spark, topic, bootstrap_servers, key, value, columns, **about)
        given = {name: given for name, given in about.items() if name != "again"}
        arguments = spark, topic, bootstrap_servers, key, value, columns
        recipe = Recipe(cls._of_topic, arguments, given, connection=planned.connection)
        return cls._of(completed(planned))._with_recipe(recipe)
