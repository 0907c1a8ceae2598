"""Tables that are kept as such, by fkjoin or in Delta, as sources; ``Table`` has these methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.delta_feed import read_delta
from fkjoin.analysis.written import read_written
from fkjoin.lowering.handle import Handle
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.schemas import Expression, Expressions

if TYPE_CHECKING:
    from typing_extensions import Self


class TableSources(Handle):
    """Each makes a table of one that is there; nothing runs."""

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
