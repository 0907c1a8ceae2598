"""Tables over streams, files, topics and other tables; ``Table`` has these methods."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.delta_feed import read_delta
from fkjoin.analysis.planned import Settings
from fkjoin.analysis.snapshots import with_snapshot
from fkjoin.analysis.sources import ChangeColumns, given_stream, read_files, read_stream
from fkjoin.analysis.topics import from_topic
from fkjoin.analysis.written import read_written
from fkjoin.kafka.connection import OnNewTopic
from fkjoin.kafka.formats import Format as KafkaFormat
from fkjoin.lowering.handle import Handle
from fkjoin.sessions.plan_sources import explodes
from fkjoin.sessions.settings import prepare
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.schemas import Expression, Expressions

if TYPE_CHECKING:
    from typing_extensions import Self

_EXPLODED = (
    "table %s: its stream makes several rows of one, by explode or the like. Rows that are no "
    "longer made are not deleted: make a table of the stream before that, and use its flat_map. "
    "If each item is a change of its own, this is not a problem"
)


class Sources(Handle):
    """Each makes a table of what is read; nothing runs."""

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
    ) -> Self:
        """Make a table from a streaming DataFrame with one change in each row.

        Columns that ``version``, ``deleted`` or ``timestamp`` name plainly are not part of the row.
        If the stream explodes rows, fkjoin logs a warning under ``fkjoin``: rows that the stream no
        longer makes are not deleted. Use ``flat_map`` for that.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            The stream of changes.
        key : str, Column, or list of them
            The column or columns of the primary key. A row with a null in its key is dropped and
            counted.
        version : str, Column, or list of them
            Whole-number columns or expressions that order the changes of a key, for example an LSN
            or a sequence number. Greater is newer; several columns are compared from left to right.
            A change that is not newer than the last one of its key is dropped and counted.
        deleted : str or Column, optional
            A boolean column or SQL expression. Where it is true, the row is a tombstone, which
            deletes its key.
        timestamp : str or Column, optional
            A column of type timestamp or bigint. It becomes the timestamp of results.
        name : str, optional
            The name of the table in state and metrics. By default the name of the folder or topic;
            for a stream fkjoin generates one. Tables that would get the same name need names of
            their own.
        log : str, optional
            The name of the change log that several tables come from, if its versions order the
            changes across these tables.
        on_error : {"dead-letter", "fail", "skip"}, default "dead-letter"
            What happens to a record or row that fkjoin cannot use. Causes: it does not parse, it
            has no version, or one of your expressions or functions throws. ``"dead-letter"`` leaves
            it out, counts it and shows it in ``dead_letters``. ``"skip"`` leaves it out and counts
            it. ``"fail"`` stops the query. In all cases the last good row of the key stays.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> schema = "order_id string, customer_id string, lsn bigint, gone boolean"
        >>> stream = spark.readStream.schema(schema).json("orders")
        >>> roles = {"key": "order_id", "version": "lsn", "deleted": "gone"}
        >>> orders = Table.from_stream(stream, name="orders", **roles)
        """
        stream = given_stream(df)
        planned = read_stream(
            df.sparkSession,
            stream,
            key,
            version,
            deleted=deleted,
            timestamp=timestamp,
            name=name,
            log=log,
            on_error=on_error,
        )
        if explodes(df):
            logging.getLogger("fkjoin").warning(_EXPLODED, planned.name)
        return cls._of(planned)

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
    ) -> Self:
        """Make a table from change-log files in a folder: JSON lines, Parquet or CSV.

        A query also reads the files that come later.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            The session that reads the files.
        path : str or pathlib.Path
            The folder, or a glob.
        key : str, Column, or list of them
            The column or columns of the primary key. A row with a null in its key is dropped and
            counted.
        version : str, Column, or list of them
            Whole-number columns or expressions that order the changes of a key, for example an LSN
            or a sequence number. Greater is newer; several columns are compared from left to right.
            A change that is not newer than the last one of its key is dropped and counted.
        deleted : str or Column, optional
            A boolean column or SQL expression. Where it is true, the row is a tombstone, which
            deletes its key.
        timestamp : str or Column, optional
            A column of type timestamp or bigint. It becomes the timestamp of results.
        name : str, optional
            The name of the table in state and metrics. By default the name of the folder or topic;
            for a stream fkjoin generates one. Tables that would get the same name need names of
            their own.
        log : str, optional
            The name of the change log that several tables come from, if its versions order the
            changes across these tables.
        on_error : {"dead-letter", "fail", "skip"}, default "dead-letter"
            What happens to a record or row that fkjoin cannot use. Causes: it does not parse, it
            has no version, or one of your expressions or functions throws. ``"dead-letter"`` leaves
            it out, counts it and shows it in ``dead_letters``. ``"skip"`` leaves it out and counts
            it. ``"fail"`` stops the query. In all cases the last good row of the key stays.
        schema : pyspark.sql.types.StructType or str, optional
            The schema of the files. By default fkjoin learns it from the existing files, and the
            checkpoint keeps it. Keys that CSV files or names of folders contain are then text.
        format : str, optional
            ``"json"``, ``"parquet"`` or ``"csv"``; CSV files need a header line. By default the
            endings of the files tell it.
        options : mapping of str to value, optional
            Options of Spark's file source, for example ``maxFilesPerTrigger``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> roles = {"key": "order_id", "version": "lsn", "deleted": "gone"}
        >>> orders = Table.from_files(spark, "data/orders", **roles)
        """
        prepare(spark)
        return cls._read(
            read_files,
            spark=spark,
            path=str(path),
            key=key,
            version=version,
            deleted=deleted,
            timestamp=timestamp,
            name=name,
            log=log,
            on_error=on_error,
            schema=schema,
            format=format,
            options=options,
            settings=Settings.of(spark),
        )

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
        positions: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make a table from a topic: a record is an upsert of its key, a null value a tombstone.

        In one partition, the record of a key with the greater offset is newer. If partitions were
        added, a key may be in several of them. Then the record with the later timestamp is newer,
        and with equal timestamps the one in the greater partition. See the page "Order".

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            A session with Spark's Kafka connector: ``fkjoin.session(kafka=True)``.
        topic : str
            The name of the topic.
        bootstrap_servers : str
            Brokers as ``HOST:PORT``, separated by commas.
        key : fkjoin.kafka.Format or str
            The format of the records' keys. ``"string"`` and ``"bytes"`` are one column with the
            name ``key``.
        value : fkjoin.kafka.Format or str
            The format of the records' values. ``"string"`` and ``"bytes"`` are one column with the
            name ``value``.
        version : str, Column, or list of them, optional
            Whole-number columns or expressions over the value's columns, for example
            ``"source.lsn"`` of Debezium. They order the changes of a key; where they are equal, the
            record's position decides. A record without a version is a dead letter. By default the
            position decides alone.
        deleted : str or Column, optional
            A condition that makes the record a tombstone, for example ``"__deleted = 'true'"``.
        timestamp : str or Column, optional
            A column of type timestamp or bigint. It becomes the timestamp of results, in place of
            the record's timestamp.
        name : str, optional
            The name of the table in state and metrics. By default the name of the folder or topic;
            for a stream fkjoin generates one. Tables that would get the same name need names of
            their own.
        on_error : {"dead-letter", "fail", "skip"}, default "dead-letter"
            What happens to a record or row that fkjoin cannot use. Causes: it does not parse, it
            has no version, or one of your expressions or functions throws. ``"dead-letter"`` leaves
            it out, counts it and shows it in ``dead_letters``. ``"skip"`` leaves it out and counts
            it. ``"fail"`` stops the query. In all cases the last good row of the key stays.
        on_new_topic : "fail" or "start-over", optional
            What happens when the topic was deleted and created again after the query's checkpoint
            began. ``"fail"`` refuses to start. ``"start-over"`` reads the new topic from its
            beginning, and takes its changes as newer. It deletes rows that the new topic does not
            contain, once it has read to the end that the topic had at the start. The default is
            ``"fail"``, and ``"start-over"`` with Spark's option ``failOnDataLoss=false``.
        headers : bool, default False
            Whether to keep the record's headers as a column.
        roots : int, optional
            The number of topics from which another job writes this topic, with
            ``to_kafka(…, positions=True)``. The header of a record contains its row's positions in
            these topics. They are the row's version, in place of the offset, so a record that the
            job publishes twice counts once. A row whose root topic changes starts over, counted as
            ``source-restarts``.
        positions : bool, default False
            Whether rows get a column ``_position`` with the record's ``topic``, ``partition`` and
            ``offset``. With ``roots`` it also contains the ``chains`` of the header. The column is
            part of the row, so every record counts as a change.
        options : mapping of str to value, optional
            Options of Spark's Kafka source, for example ``maxOffsetsPerTrigger``, and of its
            consumer (``kafka.…``). fkjoin does not show secrets among them.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong, or the topic does not exist.

        Examples
        --------
        >>> from fkjoin.kafka import Json, String
        >>> value = Json("customer_id string, amount double")
        >>> formats = {"key": String("order_id"), "value": value}
        >>> orders = Table.from_kafka(spark, "orders", "localhost:9092", **formats)
        """
        prepare(spark)
        return cls._read(
            from_topic,
            spark=spark,
            topic=topic,
            bootstrap_servers=bootstrap_servers,
            key=key,
            value=value,
            columns=ChangeColumns(version, deleted, timestamp),
            name=name,
            on_error=on_error,
            on_new_topic=on_new_topic,
            headers=headers,
            roots=roots,
            positions=positions,
            options=options,
            settings=Settings.of(spark),
        )

    @classmethod
    def from_fkjoin(
        cls,
        spark: SparkSession,
        path: str | Path,
        *,
        name: str | None = None,
        on_error: OnError = "dead-letter",
        schema: StructType | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make the table that ``to_parquet`` writes to a folder: its rows, deletes and timestamps.

        The change of the later batch is newer. If the written table is a source, its own versions
        order the changes. Columns that results add, such as ``_operation`` and ``batch``, are not
        part of the row. fkjoin refuses a folder with batches of several checkpoints, since nothing
        orders these.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            The session that reads the files.
        path : str or pathlib.Path
            The folder that ``to_parquet`` writes to.
        name : str, optional
            The name of the table in state and metrics. By default the name of the folder or topic;
            for a stream fkjoin generates one. Tables that would get the same name need names of
            their own.
        on_error : {"dead-letter", "fail", "skip"}, default "dead-letter"
            What happens to a record or row that fkjoin cannot use. Causes: it does not parse, it
            has no version, or one of your expressions or functions throws. ``"dead-letter"`` leaves
            it out, counts it and shows it in ``dead_letters``. ``"skip"`` leaves it out and counts
            it. ``"fail"`` stops the query. In all cases the last good row of the key stays.
        schema : pyspark.sql.types.StructType, optional
            The schema of the files, with all columns. By default the schema of the newest batch,
            which the checkpoint keeps.
        options : mapping of str to value, optional
            Options of Spark's file source, for example ``maxFilesPerTrigger``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong, or the folder is refused or contains no batch yet.

        Examples
        --------
        >>> joined = Table.from_fkjoin(spark, "lake/joined")
        """
        return cls._read(
            read_written,
            spark=spark,
            path=str(path),
            name=name,
            on_error=on_error,
            schema=schema,
            options=options,
        )

    @classmethod
    def from_delta(
        cls,
        spark: SparkSession,
        path: str | Path,
        *,
        key: Expressions,
        timestamp: Expression | None = None,
        name: str | None = None,
        on_error: OnError = "dead-letter",
        schema: StructType | str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make a table from a Delta table: its rows at the first start, then its change data feed.

        The change of the later commit is newer. Within a commit, an upsert is newer than a delete.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            A session with Delta's connector for its Spark, and the two settings that Delta asks
            for.
        path : str or pathlib.Path
            The folder of the Delta table. Its property ``delta.enableChangeDataFeed`` must be true.
        key : str, Column, or list of them
            The columns that identify a row: no two rows of the Delta table have equal values in
            them.
        timestamp : str or Column, optional
            A column of type timestamp or bigint. It becomes the timestamp of results, in place of
            the commit's time. Windows that close need it.
        name : str, optional
            The name of the table in state and metrics. By default the name of the folder or topic;
            for a stream fkjoin generates one. Tables that would get the same name need names of
            their own.
        on_error : {"dead-letter", "fail", "skip"}, default "dead-letter"
            What happens to a record or row that fkjoin cannot use. Causes: it does not parse, it
            has no version, or one of your expressions or functions throws. ``"dead-letter"`` leaves
            it out, counts it and shows it in ``dead_letters``. ``"skip"`` leaves it out and counts
            it. ``"fail"`` stops the query. In all cases the last good row of the key stays.
        schema : pyspark.sql.types.StructType or str, optional
            The columns to read. By default the columns that the Delta table has at the first start;
            the checkpoint keeps them.
        options : mapping of str to value, optional
            Options of Delta's source, for example ``maxFilesPerTrigger``.

        Returns
        -------
        Table

        Raises
        ------
        SessionError
            If the session lacks a connector that works.
        TopologyError
            If an argument is wrong, or the Delta table does not exist or does not record its
            changes.

        Examples
        --------
        >>> orders = Table.from_delta(spark, "lake/orders", key="order_id")
        """
        return cls._read(
            read_delta,
            spark=spark,
            path=str(path),
            key=key,
            timestamp=timestamp,
            name=name,
            on_error=on_error,
            schema=schema,
            options=options,
        )

    def with_snapshot(self, path: str | Path) -> Self:
        """Begin this table with the rows of a snapshot, which are older than all changes.

        Parameters
        ----------
        path : str or pathlib.Path
            A folder of Parquet files with the table's columns, in the same types. Only the first
            batch reads them.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If the table is not a source, or the folder contains no Parquet files. If the columns of
            the files do not fit, the start of the query raises it.

        Examples
        --------
        >>> begun = orders.with_snapshot("lake/orders")
        """
        return self._called(with_snapshot, path=path)
