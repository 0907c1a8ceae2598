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

        A batch is one transaction.
        fkjoin creates a missing table, with the key as primary key.  An existing table needs the
        key's and the row's columns, and a unique constraint of the key.  Its types must hold every
        value (page "Sinks"); structs, lists and maps are ``jsonb``.  The table ``fkjoin_batches``
        in the same schema has the last batch of each query.  A batch's changes pass through the
        driver.

        A query with a new checkpoint writes all rows again, and deletes none that went meanwhile:
        empty the table first.  For a source, call ``materialize`` first.

        Parameters
        ----------
        into : str
            The table, perhaps with its schema.
        dsn : str
            The database, as libpq takes it, such as ``postgresql://shop@db/orders``.  Put a
            password into ``PGPASSWORD`` or ``~/.pgpass``.
        checkpoint : str or pathlib.Path
            See ``to_kafka``.
        on_error : {"fail", "dead-letter", "skip"}, default "fail"
            What happens to a row that the table cannot have, such as one with U+0000 in a text.
            ``"fail"`` stops the query and names key, column and value.  ``"dead-letter"`` puts the
            row into ``fkjoin_dead_letters`` beside the table, in the same transaction.  ``"skip"``
            leaves it out.  The last two count it.  The key's last good row stays.
        retry_s : float, default 60.0
            How many seconds fkjoin repeats a batch after an outage, a deadlock or a serialization
            failure before the query stops.
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

        A batch is a MERGE with a transaction id.
        fkjoin creates a missing table; an existing one needs columns that can hold every value.
        The package deltalake writes it in the driver, so a batch's changes pass through the driver,
        and Delta's jars are not needed.  For a source, call ``materialize`` first.

        Parameters
        ----------
        path : str or pathlib.Path
            A folder, or a URI of the storage that ``options`` are for.
        checkpoint : str or pathlib.Path
            See ``to_kafka``.
        options : mapping of str to str, optional
            Options of the storage, as the package deltalake takes them.
        evolve : bool, default False
            Whether an existing table gets the columns that it lacks when the query starts.  No
            column is dropped.
        partition_by : str or sequence of str, optional
            Columns by whose values a new table has its files in folders.
        optimize_every, vacuum_every : int, optional
            After so many batches, small files are compacted (OPTIMIZE), and files that no version
            of the last week has are deleted (VACUUM).
        retry_s : float, default 60.0
            How many seconds fkjoin repeats a batch after another writer's change of the same rows,
            or while the storage does not answer.
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

        A batch is one commit with its number.
        fkjoin creates a missing table and its namespace; an existing one needs columns that can
        hold every value.  The package pyiceberg writes it in the driver, so a batch's changes pass
        through the driver.  It rewrites files with changed rows. For a source, call ``materialize``
        first.

        Parameters
        ----------
        table : str
            The table with its namespace, such as ``shop.joined``.
        checkpoint : str or pathlib.Path
            See ``to_kafka``.
        catalog : str, default "default"
            The catalog's name, by which the package finds properties in its configuration.
        options : mapping of str to str, optional
            Properties of the catalog and its storage, as the package takes them; they override
            those of the configuration.
        evolve : bool, default False
            Whether an existing table gets the columns that it lacks, and wider types, when the
            query starts.  No column is dropped.
        retry_s : float, default 60.0
            How many seconds fkjoin repeats a batch after another writer's commit, or while catalog
            or storage do not answer.
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
            If the table cannot be written to, or the checkpoint is in use or at another batch than
            the target (see ``restore``).

        Examples
        --------
        >>> lake = {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "file:///lake"}
        >>> query = joined.to_iceberg("shop.joined", options=lake, checkpoint="ck/joined")
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
        """Start keeping a table up to date by a sink of your own (page "Sinks").

        For a source, call ``materialize`` first.

        Parameters
        ----------
        sink : fkjoin.sinks.TableSink
            The sink.
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
