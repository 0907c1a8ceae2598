"""Tables elsewhere that can be kept as a table is; ``Table`` has these methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fkjoin import sinks
from fkjoin.checkpoint.query import Query
from fkjoin.lowering.handle import Handle
from fkjoin.sinks import RETRY_S, batches
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
