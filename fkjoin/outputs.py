"""Targets of a table's changes; ``Table`` has these methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import sinks
from fkjoin.checkpoint.claim import start_claimed
from fkjoin.checkpoint.query import Query
from fkjoin.kafka import writing
from fkjoin.kafka.formats import Format as KafkaFormat
from fkjoin.lowering.handle import Handle
from fkjoin.plan.base import unkept
from fkjoin.sinks import RETRY_S, Kafka, Parquet, batches
from fkjoin.sinks.table_sink import require_table_sink
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.schemas import Expression
from fkjoin.spark.trigger import Trigger


class Outputs(Handle):
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
        """Start writing the table's changes to a topic, one record for each change.

        A delete has a null value. Delivery is at least once. The topic may be compacted. A key goes
        to the partition that Java's producer would choose.

        Parameters
        ----------
        topic : str
            The name of the topic.
        bootstrap_servers : str
            Brokers as ``HOST:PORT``, separated by commas.
        checkpoint : str or pathlib.Path
            The folder for the query's progress and state. Each query needs a folder of its own.
        key : fkjoin.kafka.Format or str, optional
            The format of the records' keys; ``"string"`` and ``"bytes"`` are formats of one column.
            By default one column of text or bytes is written unchanged, and other keys as a JSON
            object.
        value : fkjoin.kafka.Format, str, or Column, optional
            The format of the records' values, or an expression over ``changes``. By default the
            row's columns as a JSON object, including nulls.
        headers : str or Column, optional
            An expression for the records' headers, of type
            ``array<struct<key: string, value: binary>>``.
        positions : bool, default False
            Whether to add the header ``fkjoin-positions`` with the source positions of the row,
            which ``from_kafka(…, roots=…)`` reads. Sources, joins and merges of topics have
            positions, and so have views of sources and joins.
        trigger : str or mapping, optional
            When batches begin. ``"available-now"`` reads all existing input and ends.
            ``"10 seconds"`` begins a batch every 10 seconds. A mapping contains arguments of
            Spark's ``DataStreamWriter.trigger``. By default a batch begins when the one before it
            is done.
        options : mapping of str to value, optional
            Settings of the producer, ``kafka.…``.
        query_name : str, optional
            The name of the query. By default the name of the table.

        Returns
        -------
        fkjoin.Query
            A running query, whose failure is a ``QueryError``. In a session of Spark Connect the
            failure is Spark's own error.

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
            more |= {"checkpoint": folder, "begun": begun, "tables": unkept(table.planned.node)}
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

        The files have the columns of ``changes``. They lie in folders ``batch=…``, which readers
        see as a column ``batch``. This is faster than ``changes.writeStream.format("parquet")``,
        since no row passes through the JVM.

        Parameters
        ----------
        path : str or pathlib.Path
            A folder that all workers reach, local or on HDFS, or a folder of an object store, for
            example ``s3a://bucket/joined``.
        checkpoint : str or pathlib.Path
            The folder for the query's progress and state. Each query needs a folder of its own.
        options : mapping of str to str, optional
            Options of an object store: arguments of ``pyarrow.fs.S3FileSystem``, ``GcsFileSystem``
            or ``AzureFileSystem``.
        retry_s : float, default 60.0
            How many seconds fkjoin tries an unreachable object store again before the query stops.
        trigger : str or mapping, optional
            When batches begin. ``"available-now"`` reads all existing input and ends.
            ``"10 seconds"`` begins a batch every 10 seconds. A mapping contains arguments of
            Spark's ``DataStreamWriter.trigger``. By default a batch begins when the one before it
            is done.
        query_name : str, optional
            The name of the query. By default the name of the table.

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
        >>> settings = {"checkpoint": "ck/joined", "trigger": "available-now"}
        >>> joined.to_parquet("lake/joined", **settings).awaitTermination()
        """
        return self._start(Parquet(path, options or {}, retry_s), checkpoint, trigger, query_name)

    def to_postgres(
        self,
        into: str,
        dsn: str,
        *,
        checkpoint: str | Path,
        on_error: OnError = "fail",
        retry_s: float = RETRY_S,
        trigger: Trigger = None,
        query_name: str | None = None,
    ) -> Query:
        """Start keeping a PostgreSQL table up to date; each batch takes effect exactly once.

        A batch is one transaction. fkjoin creates a missing table, with the key as primary key. An
        existing table needs the columns of the key and of the row, and a unique constraint on the
        key. Its types must hold every value; structs, lists and maps are ``jsonb``. The table
        ``fkjoin_batches`` in the same schema contains the last batch of each query. The changes of
        a batch pass through the driver.

        A query with a new checkpoint writes all rows again. It does not delete rows that
        disappeared meanwhile, so empty the table first. For a source, call ``materialize`` first.

        Parameters
        ----------
        into : str
            The table, optionally with its schema.
        dsn : str
            The database as libpq takes it, for example ``postgresql://shop@db/orders``. Put a
            password into ``PGPASSWORD`` or ``~/.pgpass``.
        checkpoint : str or pathlib.Path
            The folder for the query's progress and state. Each query needs a folder of its own.
        on_error : {"fail", "dead-letter", "skip"}, default "fail"
            What happens to a row that the table cannot store, for example one with U+0000 in a
            text. ``"fail"`` stops the query and names key, column and value. ``"dead-letter"``
            writes the row to ``fkjoin_dead_letters`` beside the table, in the same transaction.
            ``"skip"`` leaves it out. The last two count the row, and the last good row of the key
            stays.
        retry_s : float, default 60.0
            How many seconds fkjoin repeats a batch after an outage, a deadlock or a serialization
            failure before the query stops.
        trigger : str or mapping, optional
            When batches begin. ``"available-now"`` reads all existing input and ends.
            ``"10 seconds"`` begins a batch every 10 seconds. A mapping contains arguments of
            Spark's ``DataStreamWriter.trigger``. By default a batch begins when the one before it
            is done.
        query_name : str, optional
            The name of the query. By default the name of the table.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If the table cannot be reached or written to, or the checkpoint is in use or at another
            batch than the target (see ``restore``).

        Examples
        --------
        >>> dsn = "postgresql://shop@db/orders"
        >>> query = joined.to_postgres("public.joined", dsn, checkpoint="ck/joined")
        """
        sink = sinks.Postgres(into, dsn, on_error, retry_s)
        return self._start(sink, checkpoint, trigger, query_name)

    def to_delta(
        self,
        path: str | Path,
        *,
        checkpoint: str | Path,
        options: Mapping[str, str] | None = None,
        evolve: bool = False,
        partition_by: str | Sequence[str] = (),
        optimize_every: int | None = None,
        vacuum_every: int | None = None,
        retry_s: float = RETRY_S,
        trigger: Trigger = None,
        query_name: str | None = None,
    ) -> Query:
        """Start keeping a Delta table up to date; each batch takes effect exactly once.

        A batch is a MERGE with a transaction id. fkjoin creates a missing table; an existing table
        needs columns that can hold every value. The package deltalake writes the table in the
        driver. So the changes of a batch pass through the driver, and Delta's jars are not needed.
        For a source, call ``materialize`` first.

        Parameters
        ----------
        path : str or pathlib.Path
            A folder, or a URI of the storage that ``options`` are for.
        checkpoint : str or pathlib.Path
            The folder for the query's progress and state. Each query needs a folder of its own.
        options : mapping of str to str, optional
            Options of the storage, as the package deltalake takes them.
        evolve : bool, default False
            Whether an existing table gets the columns that it lacks when the query starts. fkjoin
            drops no column.
        partition_by : str or sequence of str, default ()
            Columns by whose values a new table has its files in folders.
        optimize_every : int, optional
            The number of batches after which small files are compacted (OPTIMIZE). By default
            never.
        vacuum_every : int, optional
            The number of batches after which files are deleted that no version of the last week
            needs (VACUUM). By default never.
        retry_s : float, default 60.0
            How many seconds fkjoin repeats a batch after another writer changed the same rows, or
            while the storage does not answer.
        trigger : str or mapping, optional
            When batches begin. ``"available-now"`` reads all existing input and ends.
            ``"10 seconds"`` begins a batch every 10 seconds. A mapping contains arguments of
            Spark's ``DataStreamWriter.trigger``. By default a batch begins when the one before it
            is done.
        query_name : str, optional
            The name of the query. By default the name of the table.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If the table cannot be written to, or the checkpoint is in use or at another batch than
            the target (see ``restore``).

        Examples
        --------
        >>> query = joined.to_delta("lake/joined", checkpoint="ck/joined")
        """
        sink = sinks.Delta(
            path, options or {}, retry_s, evolve, partition_by, optimize_every, vacuum_every
        )
        return self._start(sink, checkpoint, trigger, query_name)

    def to_iceberg(
        self,
        table: str,
        *,
        checkpoint: str | Path,
        catalog: str = "default",
        options: Mapping[str, str] | None = None,
        evolve: bool = False,
        retry_s: float = RETRY_S,
        trigger: Trigger = None,
        query_name: str | None = None,
    ) -> Query:
        """Start keeping an Iceberg table up to date; each batch takes effect exactly once.

        A batch is one commit, which contains the batch's number. fkjoin creates a missing table and
        its namespace; an existing table needs columns that can hold every value. The package
        pyiceberg writes the table in the driver, so the changes of a batch pass through the driver.
        It rewrites the files that contain changed rows. For a source, call ``materialize`` first.

        Parameters
        ----------
        table : str
            The table with its namespace, for example ``shop.joined``.
        checkpoint : str or pathlib.Path
            The folder for the query's progress and state. Each query needs a folder of its own.
        catalog : str, default "default"
            The name of the catalog, by which pyiceberg finds properties in its configuration.
        options : mapping of str to str, optional
            Properties of the catalog and its storage, as pyiceberg takes them. They override
            properties of the configuration.
        evolve : bool, default False
            Whether an existing table gets the columns that it lacks, and wider types, when the
            query starts. fkjoin drops no column.
        retry_s : float, default 60.0
            How many seconds fkjoin repeats a batch after another writer's commit, or while the
            catalog or the storage does not answer.
        trigger : str or mapping, optional
            When batches begin. ``"available-now"`` reads all existing input and ends.
            ``"10 seconds"`` begins a batch every 10 seconds. A mapping contains arguments of
            Spark's ``DataStreamWriter.trigger``. By default a batch begins when the one before it
            is done.
        query_name : str, optional
            The name of the query. By default the name of the table.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If the table cannot be written to, or the checkpoint is in use or at another batch than
            the target (see ``restore``).

        Examples
        --------
        >>> catalog = {"type": "sql", "uri": "sqlite:///lake.db"}
        >>> catalog["warehouse"] = "file:///lake"
        >>> settings = {"options": catalog, "checkpoint": "ck/joined"}
        >>> query = joined.to_iceberg("shop.joined", **settings)
        """
        sink = sinks.Iceberg(table, catalog, options or {}, evolve, retry_s)
        return self._start(sink, checkpoint, trigger, query_name)

    def to_sink(
        self,
        sink: sinks.TableSink,
        *,
        checkpoint: str | Path,
        trigger: Trigger = None,
        query_name: str | None = None,
    ) -> Query:
        """Start keeping a table up to date with a sink of your own.

        ``TableSink`` says how to write one. For a source, call ``materialize`` first.

        Parameters
        ----------
        sink : fkjoin.sinks.TableSink
            Your sink.
        checkpoint : str or pathlib.Path
            The folder for the query's progress and state. Each query needs a folder of its own.
        trigger : str or mapping, optional
            When batches begin. ``"available-now"`` reads all existing input and ends.
            ``"10 seconds"`` begins a batch every 10 seconds. A mapping contains arguments of
            Spark's ``DataStreamWriter.trigger``. By default a batch begins when the one before it
            is done.
        query_name : str, optional
            The name of the query. By default the name of the table.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If the sink cannot be written to, or the checkpoint is in use or at another batch than
            the target (see ``restore``).

        Examples
        --------
        >>> query = joined.to_sink(Sqlite("shop.db", "joined"), checkpoint="ck/joined")
        """
        return self._start(require_table_sink(sink), checkpoint, trigger, query_name)

    def to(
        self,
        *places: sinks.Sink,
        checkpoint: str | Path,
        trigger: Trigger = None,
        query_name: str | None = None,
    ) -> Query:
        """Start writing the table's changes to several places in one query, with one state.

        The query writes a batch to one place after the other. Each place has the delivery guarantee
        that it has alone. If a place fails, the query fails; after a restart it repeats the batch.
        You may remove a place later. fkjoin refuses a place that you add later, since it would lack
        the older rows.

        Parameters
        ----------
        *places : fkjoin.sinks.Sink
            Sinks of ``fkjoin.sinks``, which take the arguments of ``to_kafka``, ``to_parquet``,
            ``to_postgres``, ``to_delta`` and ``to_iceberg``; or sinks of your own.
        checkpoint : str or pathlib.Path
            The folder for the query's progress and state. Each query needs a folder of its own.
        trigger : str or mapping, optional
            When batches begin. ``"available-now"`` reads all existing input and ends.
            ``"10 seconds"`` begins a batch every 10 seconds. A mapping contains arguments of
            Spark's ``DataStreamWriter.trigger``. By default a batch begins when the one before it
            is done.
        query_name : str, optional
            The name of the query. By default the name of the table.

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
        """Make targets agree with a stopped query's checkpoint that you restored from a backup.

        A query does not start if a target is ahead of its checkpoint or behind it, or has other
        batches. This call compares targets and checkpoint, and rewrites targets that differ:
        Parquet, Delta, Iceberg, PostgreSQL and sinks of your own. A topic stays unchanged.

        The rows come from the state, which contains the rows of aggregates and of tables with
        ``materialize``. Delta and Parquet targets that are ahead return to their older batch, for
        any table.

        Parameters
        ----------
        *places : fkjoin.sinks.Sink
            The sinks of the query.
        checkpoint : str or pathlib.Path
            The checkpoint folder of the stopped query.

        Returns
        -------
        list of str
            The places that were rewritten. The list is empty if all places are at the checkpoint's
            batch.

        Raises
        ------
        TopologyError
            If the query has other sinks.
        FkJoinError
            If the checkpoint is in use, or does not belong to a query of this table, or if the
            state does not contain the rows.

        Examples
        --------
        >>> from fkjoin.sinks import Delta
        >>> joined.restore(Delta("lake/joined"), checkpoint="ck/joined")
        ['delta lake/joined']
        """
        folder = str(checkpoint).rstrip("/")
        return batches.restore_places(self._planned.spark, self._as_begun, places, folder)

    def _start(
        self,
        sink: sinks.Sink,
        checkpoint: str | Path,
        trigger: Trigger,
        query_name: str | None,
    ) -> Query:
        more: Any = {"checkpoint": str(checkpoint), "trigger": self._when(trigger)}
        more["query_name"] = query_name
        return batches.start(self._planned.spark, self._as_begun, sink, **more)
