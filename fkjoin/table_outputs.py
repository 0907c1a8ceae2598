"""Tables elsewhere that can be kept as a table is; ``Table`` has these methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fkjoin import sinks
from fkjoin.checkpoint.query import Query
from fkjoin.lowering.handle import Handle
from fkjoin.sinks import RETRY_S, batches
from fkjoin.sinks.restored import OnRestore
from fkjoin.sinks.table_sink import require_table_sink
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.trigger import Trigger


class TableOutputs(Handle):
    """Each starts a query that updates rows in place."""

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
    ) -> Query:
        """Start keeping a PostgreSQL table as this table is; each batch takes effect exactly once, in one transaction.

        A table that is not there is made, with the key as primary key.  One that is there needs the key's and the row's
        columns, and a unique constraint of the key.  Its types must hold every value (page "Sinks"); structs, lists and
        maps are ``jsonb``.  Beside it stands ``fkjoin_batches``, with the last batch of each query.  A batch's changes pass
        through the driver.

        A new checkpoint writes all rows again, and deletes none that went meanwhile: empty the table first.  Of a source, write
        ``materialize`` first.

        Parameters
        ----------
        into : str
            The table, perhaps with its schema.
        dsn : str
            The database, as libpq takes it, such as ``postgresql://shop@db/orders``.  A password better comes from
            ``PGPASSWORD`` or ``~/.pgpass``.
        checkpoint : str or pathlib.Path
            See ``to_kafka``.
        on_error : {"fail", "dead-letter", "skip"}, default "fail"
            What happens to a row that the table cannot have, such as one with U+0000 in a text.  ``"fail"`` stops the query and
            names key, column and value.  ``"dead-letter"`` puts the row into ``fkjoin_dead_letters`` beside the table, in the
            same transaction.  ``"skip"`` leaves it out.  The last two count it.  The key's last good row stays.
        retry_s : float, default 60.0
            Seconds for which an outage, a deadlock or a serialization failure is waited for before the query stops.
        trigger, query_name
            See ``to_kafka``.
        on_restore : {"fail", "set-back"}, default "fail"
            See ``to_parquet``.  ``"set-back"`` makes the target what the state has, and deletes other rows.  It needs a table
            that is materialized, an aggregate, ``with_children``, a cogroup or ``merge``.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If the table cannot be reached or written to, or the checkpoint is in use, or was set back.

        Examples
        --------
        >>> query = joined.to_postgres("public.joined", "postgresql://shop@db/orders", checkpoint="ck/joined")
        """
        sink = sinks.Postgres(into, dsn, on_error, retry_s)
        return self._start(sink, checkpoint, trigger, query_name, on_restore)

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
        on_restore: OnRestore = "fail",
    ) -> Query:
        """Start keeping a Delta table as this table is; each batch takes effect exactly once: a MERGE with a transaction id.

        A table that is not there is made; one that is there needs columns that can hold every value.  The package deltalake
        writes it, in the driver, through which a batch's changes pass; Delta's jars are not needed.  Of a source, write
        ``materialize`` first.

        Parameters
        ----------
        path : str or pathlib.Path
            A folder, or a URI of the storage that ``options`` are for.
        checkpoint : str or pathlib.Path
            See ``to_kafka``.
        options : mapping of str to str, optional
            Options of the storage, as the package deltalake takes them.
        evolve : bool, default False
            Whether a table that is there gets the columns that it lacks when the query starts.  Nothing is dropped.
        partition_by : str or sequence of str, optional
            Columns by whose values a table that is made has its files in folders.
        optimize_every, vacuum_every : int, optional
            After so many batches, small files are compacted (OPTIMIZE), and files that no version of the last week has are
            deleted (VACUUM).
        retry_s : float, default 60.0
            Seconds for which a batch is tried again after another writer's change of the same rows, or while the storage is
            away.
        trigger, query_name
            See ``to_kafka``.
        on_restore : {"fail", "set-back"}, default "fail"
            See ``to_parquet``.  ``"set-back"`` restores the version of the checkpoint's batch, if no other writer has written
            since and its files are there.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If the table cannot be written to, or the checkpoint is in use, or was set back.

        Examples
        --------
        >>> query = joined.to_delta("lake/joined", checkpoint="ck/joined")
        """
        sink = sinks.Delta(path, options or {}, retry_s, evolve, partition_by, optimize_every, vacuum_every)
        return self._start(sink, checkpoint, trigger, query_name, on_restore)

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
        on_restore: OnRestore = "fail",
    ) -> Query:
        """Start keeping an Iceberg table as this table is; each batch takes effect exactly once: one commit has its number.

        A table that is not there is made, with its namespace; one that is there needs columns that can hold every value.  The
        package pyiceberg writes it, in the driver, through which a batch's changes pass: files that have a row which changes
        are written anew.  Of a source, write ``materialize`` first.

        Parameters
        ----------
        table : str
            The table with its namespace, such as ``shop.joined``.
        checkpoint : str or pathlib.Path
            See ``to_kafka``.
        catalog : str, default "default"
            The catalog's name, by which the package finds properties in its configuration.
        options : mapping of str to str, optional
            Properties of the catalog and its storage, as the package takes them; they go before those of the configuration.
        evolve : bool, default False
            Whether a table that is there gets the columns that it lacks, and wider types, when the query starts.  Nothing is
            dropped.
        retry_s : float, default 60.0
            Seconds for which a batch is tried again after another writer's commit, or while catalog or storage are away.
        trigger, query_name
            See ``to_kafka``.
        on_restore : {"fail", "set-back"}, default "fail"
            See ``to_parquet``.  ``"set-back"`` makes the target what the state has, and deletes other rows, for tables as
            ``to_postgres`` says.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If the table cannot be written to, or the checkpoint is in use, or was set back.

        Examples
        --------
        >>> lake = {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "file:///lake"}
        >>> query = joined.to_iceberg("shop.joined", options=lake, checkpoint="ck/joined")
        """
        sink = sinks.Iceberg(table, catalog, options or {}, evolve, retry_s)
        return self._start(sink, checkpoint, trigger, query_name, on_restore)

    def to_sink(
        self,
        sink: sinks.TableSink,
        *,
        checkpoint: str | Path,
        trigger: Trigger = None,
        query_name: str | None = None,
        on_restore: OnRestore = "fail",
    ) -> Query:
        """Start keeping a table somewhere else as this table is, by a sink of your own (page "Sinks").

        Of a source, write ``materialize`` first.

        Parameters
        ----------
        sink : fkjoin.sinks.TableSink
            The sink.
        checkpoint, trigger, query_name
            See ``to_kafka``.
        on_restore : {"fail", "set-back"}, default "fail"
            See ``to_parquet``.  ``"set-back"`` calls the sink's ``replace``, for tables as ``to_postgres`` says.

        Returns
        -------
        fkjoin.Query

        Raises
        ------
        TopologyError
            If an argument or the table is wrong; the message says what, and why.
        FkJoinError
            If the sink cannot be written to, or the checkpoint is in use, or was set back.

        Examples
        --------
        >>> query = joined.to_sink(Sqlite("shop.db", "joined"), checkpoint="ck/joined")
        """
        return self._start(require_table_sink(sink), checkpoint, trigger, query_name, on_restore)

    def _start(
        self,
        sink: sinks.Sink,
        checkpoint: str | Path,
        trigger: Trigger,
        query_name: str | None,
        on_restore: OnRestore,
    ) -> Query:
        spark, begun, place, when = self._planned.spark, self._as_begun, str(checkpoint), self._when(trigger)
        return batches.start(spark, begun, sink, checkpoint=place, trigger=when, query_name=query_name, on_restore=on_restore)
