"""Where a table's changes can go; ``Table`` has these methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from fkjoin.columns import Expression
from fkjoin.errors import TopologyError
from fkjoin.frame import CHAINS, RAW, VERSION
from fkjoin.kafka import sink
from fkjoin.kafka.formats import Format as KafkaFormat
from fkjoin.kafka.positions import RootsOf, of_roots, relayed
from fkjoin.sinks.upserts import Target, start_upserts
from fkjoin.spark.parquet import ChangesOf, start_parquet
from fkjoin.topology import Source, sources, summed_up

if TYPE_CHECKING:
    from fkjoin.table import Table


class Outputs:
    """Each starts a query; ``table.changes`` is for any other sink of Spark's."""

    def _made(self) -> Table:
        """The table, its internal topics made."""
        table = cast("Table", self)
        for stage in table.stages:
            stage.topics.create()
        return table

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
        trigger: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Start writing the table's changes to a topic that can be compacted: a record per change, a null value per delete.

        ``key``: a format; by default one column of text or bytes as it is, and anything else as a JSON object.  ``value``: a
        format, or an expression over ``changes``; by default the row's columns as a JSON object, nulls included.  ``headers``:
        an expression for the records' headers (``array<struct<key: string, value: binary>>``).  ``positions``: add the header
        ``fkjoin-positions``, which says where the rows came from; ``from_kafka(…, roots=…)`` reads it.  ``trigger``: as for
        Spark's ``DataStreamWriter.trigger``.  ``options``: settings of the producer, ``kafka.…``.  ``query_name``: the table's
        if left out.  Delivery is at least once; Spark's producer partitions as Java's does.
        """
        table = self._made()
        place = [_positions(table).alias(sink.POSITIONS)] if positions else []
        frame = sink.records(table.changes_with(*place), table.key, table.rest, key, value, headers)
        if table.packed is not None and headers is None:
            rest = StructType([table.row_type[name] for name in table.rest])
            roots = _roots(table) if positions else None
            made = sink.packed_records(table.packed, table.key_type, rest, key, value, roots)
            frame = frame if made is None else made
        return sink.start(frame, topic, bootstrap_servers, str(checkpoint), options, trigger, query_name or table.name)

    def to_parquet(
        self,
        path: str | Path,
        *,
        checkpoint: str | Path,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Start writing the table's changes as Parquet files under ``path``, each batch exactly once.

        The columns are those of ``changes``, and ``batch``, by the folders ``batch=…`` that the files are in.  Faster than
        ``changes.writeStream.format("parquet")``, since no row passes through the JVM.  ``path``: local or on HDFS, reachable
        from all workers.  ``trigger``, ``query_name``: as for ``to_kafka``.
        """
        table = self._made()
        frame, changes = table.changes, None
        if table.packed is not None:
            frame, changes = table.packed[0], ChangesOf(table.packed[1], table.timestamps != "bigint")
        return start_parquet(frame, changes, str(path), str(checkpoint), trigger, query_name or table.name)

    def to_postgres(
        self,
        into: str,
        dsn: str,
        *,
        checkpoint: str | Path,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Start keeping a PostgreSQL table as this table is; each batch takes effect exactly once, in one transaction.

        ``into``: the table, perhaps with its schema; it is made if it is not there, with the key as primary key.  One that is
        there needs the key's and the row's columns (structs, lists and maps are ``jsonb``) and a unique constraint of the key.
        Beside it stands ``fkjoin_batches``, with the last batch of each query.  ``dsn``: as libpq takes it, such as
        ``postgresql://shop@db/orders``; a password better comes from ``PGPASSWORD`` or ``~/.pgpass``.  A new checkpoint writes
        all rows again, and deletes none that went meanwhile: empty the table first.  A batch's changes pass through the driver.
        ``trigger``, ``query_name``: as for ``to_kafka``.  Of a source, write ``materialize`` first.

        Raises ``TopologyError``; ``FkJoinError`` when the table cannot be reached or written to.
        """
        try:
            from fkjoin.sinks.postgres import Postgres
        except ImportError as error:
            raise TopologyError("to_postgres needs psycopg: pip install 'fkjoin[postgres]'") from error
        return self._upserts(Postgres(dsn, into), checkpoint, trigger, query_name)

    def to_delta(
        self,
        path: str | Path,
        *,
        checkpoint: str | Path,
        options: Mapping[str, str] | None = None,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Start keeping a Delta table as this table is; each batch takes effect exactly once: a MERGE with a transaction id.

        ``path``: a folder, or a URI of the storage that ``options`` (of the package deltalake) are for; the table is made if it
        is not there.  The package deltalake writes it, in the driver, through which a batch's changes pass; Delta's jars are
        not needed.  ``trigger``, ``query_name``: as for ``to_kafka``.  Of a source, write ``materialize`` first.

        Raises ``TopologyError``; ``FkJoinError`` when the table cannot be written to.
        """
        try:
            from fkjoin.sinks.delta import Delta
        except ImportError as error:
            raise TopologyError("to_delta needs deltalake: pip install 'fkjoin[delta]'") from error
        return self._upserts(Delta(str(path), options or {}), checkpoint, trigger, query_name)

    def _upserts(
        self, target: Target, checkpoint: str | Path, trigger: Mapping[str, Any] | None, query_name: str | None
    ) -> StreamingQuery:
        table = self._made()
        return start_upserts(
            table.node, table.changes, table.key, table.rest, target, str(checkpoint), trigger, query_name or table.name
        )


def _positions(table: Table) -> Column:
    """The text of the header that says where the rows came from."""
    roots = _roots(table)
    if not isinstance(table.node, Source):
        return of_roots(F.col(VERSION), roots)
    return relayed(F.col(CHAINS) if CHAINS in table.frame.columns else None, F.col(RAW))


def _roots(table: Table) -> RootsOf:
    """What the versions of the rows say of where they came from; ``TopologyError`` if they say nothing."""
    read = sources(table.node)
    if summed_up(table.node):
        raise TopologyError("positions: a row that sums up or merges others has no position in a topic; leave positions out")
    if homeless := [source.name for source in read if source.topic is None]:
        raise TopologyError(f"positions: {homeless[0]} is not read from a topic, so its rows have no position in one")
    return RootsOf.topics(table.node.parts, [str(source.topic) for source in read])
