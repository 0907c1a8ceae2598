"""Tables over streams, files and topics; ``Table`` has these methods."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.change_columns import ChangeColumns
from fkjoin.analysis.planned import Settings
from fkjoin.analysis.snapshots import with_snapshot
from fkjoin.analysis.sources import given_stream, read_files, read_stream
from fkjoin.analysis.topics import from_topic
from fkjoin.kafka.connection import OnNewTopic
from fkjoin.kafka.formats import Format as KafkaFormat
from fkjoin.sessions.plan_sources import explodes
from fkjoin.sessions.settings import prepare
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.schemas import Expression, Expressions
from fkjoin.table_sources import TableSources

if TYPE_CHECKING:
    from typing_extensions import Self

_EXPLODED = (
    "table %s: its stream makes several rows of one, by explode or the like. Rows that are no "
    "longer made are not deleted: make a table of the stream before that, and use its flat_map. "
    "If each item is a change of its own, this is not a problem"
)


class Sources(TableSources):
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
        """Make a table from a streaming DataFrame with one change a row.

        Columns used as version, deleted or timestamp by their plain name are not part of the row.
        A stream that explodes rows gets a warning in the log ``fkjoin``: rows that are no longer
        made are not deleted; use ``flat_map``.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            The stream of changes.
        key : str, Column, or list of them
            The key's column, or columns.  A row with a null in its key is dropped and counted.
        version : str, Column, or list of them
            Whole-number columns or expressions that order the changes of a key: an LSN, a commit
            number, a sequence.  Greater is newer, compared from the left.  A change that is not
            newer than the last is dropped and counted.
        deleted : str or Column, optional
            A boolean column or SQL text; true (not null) makes the row a tombstone.
        timestamp : str or Column, optional
            A timestamp or bigint column, which becomes the timestamp of results.
        name : str, optional
            The name of state and metrics.  Two tables that look alike need names.
        log : str, optional
            The name of the log, if several tables come from one and its versions order changes
            across them.
        on_error : {"dead-letter", "skip", "fail"}, default "dead-letter"
            What happens to a change without a version, and to a row on which an expression or a
            function of yours throws. ``"dead-letter"`` leaves the change out, counts it, and shows
            it in ``dead_letters``.  ``"skip"`` leaves it out and counts it.  ``"fail"`` stops the
            query.  In any case the key's last good row stays.

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
        """Make a table from change-log files: JSON lines, Parquet or CSV, also later ones.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            The session that reads the files.
        path : str or pathlib.Path
            The directory or glob.
        key, version, deleted, timestamp, name, log
            See ``from_stream``.
        on_error : {"dead-letter", "skip", "fail"}, default "dead-letter"
            What happens to lines that do not fit, and to changes without a version; see
            ``from_stream``.
        schema : pyspark.sql.types.StructType or str, optional
            The schema of the files.  By default fkjoin learns it from the existing files, and the
            checkpoint keeps it; keys of CSV and in names of folders are then text.
        format : {"json", "parquet", "csv"}, optional
            The format of the files; CSV has a header line.  By default the files' endings tell it.
        options : mapping of str to value, optional
            Options of Spark's file source, such as ``maxFilesPerTrigger``.

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

        In one partition, a key's record with the greater offset is newer.  If partitions were
        added, a key may be in several: then the later record timestamp is newer, then the greater
        partition.  The page "Order" has the whole rule.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            A session with Spark's Kafka connector: ``fkjoin.session(kafka=True)``.
        topic : str
            The topic's name.
        bootstrap_servers : str
            Brokers as ``HOST:PORT``, separated by commas.
        key, value : fkjoin.kafka.Format, "string" or "bytes"
            Formats of the record's key and value.  A text is the format of one column called
            ``key`` or ``value``.
        version : str, Column, or list of them, optional
            Whole-number columns or expressions over the value's columns, such as ``"source.lsn"``
            of Debezium.  They order the changes of a key; if they are equal, the record's place
            does.  A record without a version is a dead letter.
        deleted : str or Column, optional
            A condition that makes the record a tombstone, such as ``"__deleted = 'true'"``.
        timestamp : str or Column, optional
            A timestamp or bigint column for the timestamp of results, in place of the record's.
        name : str, optional
            See ``from_stream``.
        on_error : {"dead-letter", "skip", "fail"}, default "dead-letter"
            See ``from_stream``; also for a record that does not parse or has no key.
        on_new_topic : {"fail", "start-over"}, optional
            What happens when the topic was deleted and created again since the query's checkpoint
            was begun.  ``"fail"`` refuses to start.  ``"start-over"`` reads the new topic from its
            beginning, and takes its changes as newer.  Rows that the new topic does not have are
            deleted once it has been read to the end that it had at the start.  By default
            ``"fail"``, and with Spark's option ``failOnDataLoss=false`` ``"start-over"``.
        headers : bool, default False
            Whether to keep the record's headers as a column.
        roots : int, optional
            The number of topics from which another job writes this topic, by ``to_kafka(…,
            positions=True)``.  A header has a row's positions in them: these are its version, in
            place of its offset here.  So a record that the job publishes twice counts once.  A row
            whose root is another topic than before starts over, counted as ``source-restarts``.
        positions : bool, default False
            Whether rows have a column ``_position`` with the record's ``topic``, ``partition`` and
            ``offset``.  With ``roots``, also with the ``chains`` of its header.  It is a column
            like others, so each record changes its row.
        options : mapping of str to value, optional
            Options of Spark's Kafka source, such as ``maxOffsetsPerTrigger``, and of its consumer
            (``kafka.…``).  fkjoin shows no secrets among them.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong, or the topic does not exist.

        Examples
        --------
        >>> from fkjoin.kafka import Json
        >>> value = Json("customer_id string, amount double")
        >>> orders = Table.from_kafka(spark, "orders", "localhost:9092", key="string", value=value)
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

    def with_snapshot(self, path: str | Path) -> Self:
        """Begin this table with a snapshot: its rows are older than every change of their keys.

        Parameters
        ----------
        path : str or pathlib.Path
            A folder of Parquet files with the table's columns, in the same types.  Only the first
            batch reads them.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If the table is not a source, or there are no such files.  If their columns do not fit,
            the start of the query raises it.

        Examples
        --------
        >>> begun = orders.with_snapshot("lake/orders")
        """
        return self._called(with_snapshot, path=path)
