"""Targets of a table's changes; ``Table`` has these methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import sinks
from fkjoin.checkpoint.claim import start_claimed
from fkjoin.checkpoint.query import Query
from fkjoin.kafka import writing
from fkjoin.kafka.formats import Format as KafkaFormat
from fkjoin.sinks import RETRY_S, Kafka, Parquet, batches
from fkjoin.spark.schemas import Expression
from fkjoin.spark.trigger import Trigger
from fkjoin.table_outputs import TableOutputs


class Outputs(TableOutputs):
    """Each starts a query, whose failure is a ``QueryError``; others take ``table.changes``."""

    def to_kafka(
        self,
        topic: str,
        bootstrap_servers: str,
        *,
        checkpoint: str | Path,
        key: KafkaFormat | str | None = None,
        value: KafkaFormat | str | Column | None = None,
        headers: Expression | None = None,
        positions: bool = False,
        trigger: Trigger = None,
        options: Mapping[str, Any] | None = None,
        query_name: str | None = None,
    ) -> Query:
        """Start writing the table's changes to a topic: a record each, a delete with a null value.

        Delivery is at least once.  The topic may be compacted.  Keys go to the partitions that
        Java's producer chooses.

        Parameters
        ----------
        topic : str
            The topic's name.
        bootstrap_servers : str
            Brokers as ``HOST:PORT``, separated by commas.
        checkpoint : str or pathlib.Path
            The folder for the query's progress and state.  Each query needs its own.
        key : fkjoin.kafka.Format, "string" or "bytes", optional
            A format.  By default one column of text or bytes is written unchanged, and other keys
            as a JSON object.
        value : fkjoin.kafka.Format, str or Column, optional
            A format, as for ``key``, or an expression over ``changes``.  By default the row's
            columns as a JSON object, nulls included.
        headers : str or Column, optional
            An expression for the records' headers (``array<struct<key: string, value: binary>>``).
        positions : bool, default False
            Whether to add the header ``fkjoin-positions`` with the rows' source positions, which
            ``from_kafka(…, roots=…)`` reads.  Sources, joins and merges of topics have positions,
            and so have views of sources and joins.
        trigger : str or mapping, optional
            When batches begin.  ``"available-now"`` reads all existing input, and ends; ``"10
            seconds"`` begins a batch every 10 seconds.  A mapping has arguments of Spark's
            ``DataStreamWriter.trigger``.  By default a batch begins when the one before is done.
        options : mapping of str to value, optional
            Settings of the producer, ``kafka.…``.
        query_name : str, optional
            The query's name; by default the table's.

        Returns
        -------
        fkjoin.Query
            A running query, whose failure is a ``QueryError``; in a session of Spark Connect,
            Spark's own.

        Raises
        ------
        TopologyError
            If an argument is wrong, or the topic does not exist.
        FkJoinError
            If the checkpoint is in use.

        Examples
        --------
        >>> query = joined.to_kafka("joined", "localhost:9092", checkpoint="ck/joined")
        """
        spark, folder, when = self._planned.spark, str(checkpoint), self._when(trigger)
        batches.require_one(spark, folder)

        def begin() -> StreamingQuery:
            table, begun = self._as_begun(folder)
            batches.make_topics(table, folder)
            records = Kafka(topic, bootstrap_servers, key, value, headers, positions).records(table)
            more: Any = {"options": options, "trigger": when, "name": query_name or table.name}
            more |= {"checkpoint": folder, "begun": begun}
            return writing.start(spark, records, topic, bootstrap_servers, **more)

        return start_claimed(spark, folder, begin)

    def to_parquet(
        self,
        path: str | Path,
        *,
        checkpoint: str | Path,
        options: Mapping[str, str] | None = None,
        retry_s: float = RETRY_S,
        trigger: Trigger = None,
        query_name: str | None = None,
    ) -> Query:
        """Start writing the table's changes as Parquet files, each batch exactly once.

        The columns are those of ``changes``, and ``batch``, by the folders ``batch=…`` that the
        files are in.  It is faster than ``changes.writeStream.format("parquet")``, since no row
        passes through the JVM.

        Parameters
        ----------
        path : str or pathlib.Path
            A folder, local or on HDFS, that all workers reach, or one of an object store, such as
            ``s3a://bucket/joined``.
        checkpoint
            See ``to_kafka``.
        options : mapping of str to str, optional
            Options of an object store: arguments of ``pyarrow.fs.S3FileSystem``, ``GcsFileSystem``
            or ``AzureFileSystem``.
        retry_s : float, default 60.0
            How many seconds fkjoin tries an unreachable object store again before the query stops.
        trigger, query_name
            See ``to_kafka``.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If the path cannot be written to, or the checkpoint is in use or at another batch than
            the target (see ``restore``).

        Examples
        --------
        >>> query = joined.to_parquet("lake", checkpoint="ck/joined", trigger="available-now")
        >>> query.awaitTermination()
        """
        return self._start(Parquet(path, options or {}, retry_s), checkpoint, trigger, query_name)

    def to(
        self,
        *places: sinks.Sink,
        checkpoint: str | Path,
        trigger: Trigger = None,
        query_name: str | None = None,
    ) -> Query:
        """Start writing the table's changes to several places in one query, with one state.

        The query writes a batch to one place after the other; each place delivers as it does alone.
        If one fails, the query fails, and repeats the batch.  You may remove a place later.  A
        place that is added later would lack the older rows, so fkjoin refuses it.

        Parameters
        ----------
        *places : fkjoin.sinks.Sink
            Sinks, with the arguments of ``to_kafka``, ``to_parquet``, ``to_postgres``, ``to_delta``
            and ``to_iceberg``, or of your own.
        checkpoint, trigger, query_name
            See ``to_kafka``.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If a place cannot be written to, or the checkpoint is in use or at another batch than
            the target (see ``restore``).

        Examples
        --------
        >>> from fkjoin.sinks import Kafka, Parquet
        >>> places = Kafka("joined", "localhost:9092"), Parquet("lake/joined")
        >>> query = joined.to(*places, checkpoint="ck/joined")
        """
        more: Any = {"checkpoint": str(checkpoint).rstrip("/"), "trigger": self._when(trigger)}
        return batches.start_several(
            self._planned.spark, self._as_begun, places, query_name=query_name, **more
        )

    def restore(self, *places: sinks.Sink, checkpoint: str | Path) -> list[str]:
        """Make targets what a stopped query's checkpoint is, after a restore of one from a backup.

        A query does not start when a target is ahead of its checkpoint, behind it, or has other
        batches.  This call compares them, and rewrites such targets: Parquet, Delta, Iceberg,
        PostgreSQL and sinks of your own.  A topic stays as it is. The state has the rows of
        aggregates and of tables with ``materialize``.  Delta and Parquet that are ahead go back to
        their batch, whatever the table.

        Parameters
        ----------
        *places : fkjoin.sinks.Sink
            The sinks of the query.
        checkpoint : str or pathlib.Path
            The folder for the query's progress and state.

        Returns
        -------
        list of str
            The places that were rewritten; none where all are at the checkpoint's batch.

        Raises
        ------
        TopologyError
            If the query has other sinks.
        FkJoinError
            If the checkpoint is in use or has no query, or the state does not have the rows.

        Examples
        --------
        >>> from fkjoin.sinks import Delta
        >>> joined.restore(Delta("lake/joined"), checkpoint="ck/joined")
        ['delta lake/joined']
        """
        folder = str(checkpoint).rstrip("/")
        return batches.restore_places(self._planned.spark, self._as_begun, places, folder)
