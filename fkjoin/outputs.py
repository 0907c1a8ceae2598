"""Where a table's changes can go; ``Table`` has these methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import sinks
from fkjoin.checkpoint.claim import start_claimed
from fkjoin.kafka import writing
from fkjoin.kafka.formats import Format as KafkaFormat
from fkjoin.lowering.handle import Handle
from fkjoin.sinks import RETRY_S, Kafka, Parquet, batches
from fkjoin.sinks.restored import OnRestore
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.schemas import Expression
from fkjoin.spark.trigger import Trigger, arguments_of


class Outputs(Handle):
    """Each starts a query, whose failure is a ``QueryError``; ``table.changes`` is for any other sink of Spark's."""

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
    ) -> StreamingQuery:
        """Start writing the table's changes to a topic that can be compacted: a record per change, a null value per delete.

        ``key``: a format; by default one column of text or bytes as it is, and anything else as a JSON object.  ``value``: a
        format, or an expression over ``changes``; by default the row's columns as a JSON object, nulls included.  ``headers``:
        an expression for the records' headers (``array<struct<key: string, value: binary>>``).  ``positions``: add the header
        ``fkjoin-positions``, which says where the rows came from; ``from_kafka(…, roots=…)`` reads it.  ``trigger``:
        ``"available-now"`` reads all that is there, and ends; ``"10 seconds"`` begins a batch once in that time; a mapping has
        arguments of Spark's ``DataStreamWriter.trigger``.  ``options``: settings of the producer, ``kafka.…``.  ``query_name``:
        the table's if left out.  Delivery is at least once; Spark's producer partitions as Java's does.
        """
        spark, place, when = self._planned.spark, str(checkpoint), arguments_of(trigger)
        batches.require_one(spark, place)

        def begin() -> StreamingQuery:
            table = self._as_begun(place)
            batches.make_topics(table)
            records = Kafka(topic, bootstrap_servers, key, value, headers, positions).records(table)
            return writing.start(records, topic, bootstrap_servers, place, options, when, query_name or table.name)

        return start_claimed(spark, place, begin)

    def to_parquet(
        self,
        path: str | Path,
        *,
        checkpoint: str | Path,
        trigger: Trigger = None,
        query_name: str | None = None,
        on_restore: OnRestore = "fail",
    ) -> StreamingQuery:
        """Start writing the table's changes as Parquet files under ``path``, each batch exactly once.

        The columns are those of ``changes``, and ``batch``, by the folders ``batch=…`` that the files are in.  Faster than
        ``changes.writeStream.format("parquet")``, since no row passes through the JVM.  ``path``: local or on HDFS, reachable
        from all workers.  ``trigger``, ``query_name``: as for ``to_kafka``.  ``on_restore``: what happens when the checkpoint
        was set back to a backup, and ``path`` has later batches: ``"fail"`` refuses to start; ``"set-back"`` moves these
        batches to ``_set-aside``, where no reader looks.

        Raises ``TopologyError``; ``FkJoinError`` when the checkpoint is in use, or was set back.
        """
        return self._start(Parquet(path), checkpoint, trigger, query_name, on_restore)

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
        on_restore: OnRestore = "fail",
    ) -> StreamingQuery:
        """Start keeping a PostgreSQL table as this table is; each batch takes effect exactly once, in one transaction.

        ``into``: the table, perhaps with its schema; it is made if it is not there, with the key as primary key.  One that is
        there needs the key's and the row's columns, of types that can hold every value (``docs/sinks.md``; structs, lists and
        maps are ``jsonb``), and a unique constraint of the key.
        Beside it stands ``fkjoin_batches``, with the last batch of each query.  ``dsn``: as libpq takes it, such as
        ``postgresql://shop@db/orders``; a password better comes from ``PGPASSWORD`` or ``~/.pgpass``.  A new checkpoint writes
        all rows again, and deletes none that went meanwhile: empty the table first.  A batch's changes pass through the driver.

        ``on_error``: what happens to a row that the table cannot have, such as one with U+0000 in a text.  ``"fail"`` stops the
        query and names key, column and value; ``"dead-letter"`` puts the row into ``fkjoin_dead_letters`` beside the table, in
        the same transaction, and ``"skip"`` leaves it out; both count it.  The key's last good row stays.  ``retry_s``: for so
        many seconds an outage, a deadlock or a serialization failure is waited for before the query stops.

        ``trigger``, ``query_name``: as for ``to_kafka``.  Of a source, write ``materialize`` first.  ``on_restore``: as for
        ``to_parquet``; ``"set-back"`` makes the target what the state has, of a table that is materialized, an aggregate,
        ``with_children``, a cogroup or ``merge``; other rows are deleted.

        Raises ``TopologyError``; ``FkJoinError`` when the table cannot be reached or written to, or as of ``to_parquet``.
        """
        sink = sinks.Postgres(into, dsn, on_error, retry_s)
        return self._start(sink, checkpoint, trigger, query_name, on_restore)

    def to_delta(
        self,
        path: str | Path,
        *,
        checkpoint: str | Path,
        options: Mapping[str, str] | None = None,
        retry_s: float = RETRY_S,
        trigger: Trigger = None,
        query_name: str | None = None,
        on_restore: OnRestore = "fail",
    ) -> StreamingQuery:
        """Start keeping a Delta table as this table is; each batch takes effect exactly once: a MERGE with a transaction id.

        ``path``: a folder, or a URI of the storage that ``options`` (of the package deltalake) are for; the table is made if it
        is not there, and one that is there needs columns that can hold every value.  The package deltalake writes it, in the
        driver, through which a batch's changes pass; Delta's jars are not needed.  ``retry_s``: for so many seconds a batch is
        tried again after another writer's change of the same rows, or while the storage is away.  ``trigger``, ``query_name``:
        as for ``to_kafka``.  Of a source, write ``materialize`` first.  ``on_restore``: as for ``to_parquet``; ``"set-back"``
        restores the version of the checkpoint's batch, if nobody else has written since and its files are there.

        Raises ``TopologyError``; ``FkJoinError`` when the table cannot be written to, or as of ``to_parquet``.
        """
        sink = sinks.Delta(path, options or {}, retry_s)
        return self._start(sink, checkpoint, trigger, query_name, on_restore)

    def to(
        self,
        *places: sinks.Sink,
        checkpoint: str | Path,
        trigger: Trigger = None,
        query_name: str | None = None,
        on_restore: OnRestore = "fail",
    ) -> StreamingQuery:
        """Start writing the table's changes to several places, in one query: what is read and kept in state is there once.

        ``places``: sinks of ``fkjoin.sinks``, such as ``Kafka("joined", "broker:9092")`` and ``Parquet("/lake/joined")``, with
        the arguments of ``to_kafka``, ``to_parquet``, ``to_postgres`` and ``to_delta``.  Each has a batch before the next one
        begins with it, and delivers as it does alone; when one fails, the query does, and the batch is written to all again.
        A place may be left out later; one that is added would lack the rows from before and is refused.  ``trigger``,
        ``query_name``: as for ``to_kafka``.  ``on_restore``: as for each place alone; a topic is never set back.

        Raises ``TopologyError``; ``FkJoinError`` when a place cannot be written to, or as of ``to_parquet``.
        """
        where, start = str(checkpoint).rstrip("/"), batches.start_several
        return start(self._planned.spark, self._as_begun, places, where, arguments_of(trigger), query_name, on_restore)

    def _start(
        self,
        sink: sinks.Sink,
        checkpoint: str | Path,
        trigger: Trigger,
        query_name: str | None,
        on_restore: OnRestore,
    ) -> StreamingQuery:
        spark, begun, when = self._planned.spark, self._as_begun, arguments_of(trigger)
        return batches.start(spark, begun, sink, str(checkpoint), when, query_name, on_restore)
