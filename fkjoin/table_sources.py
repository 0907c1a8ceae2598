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

        The newer change of a row is the one of the later batch; a source's changes are ordered by
        their own versions.  The columns that results add, and the folders' name, are not part of
        the row.  A folder with batches of several checkpoints is refused, since nothing orders
        them.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            The session that reads the files.
        path : str or pathlib.Path
            The folder that ``to_parquet`` writes to.
        name, on_error
            See ``from_files``.
        schema : pyspark.sql.types.StructType, optional
            The schema of the files, with all columns.  If left out, it is the schema of the newest
            batch, and a checkpoint keeps it.
        options : mapping of str to value, optional
            See ``from_files``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong, the folder is refused, or no batch is there yet.

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

        The later commit is newer; in a commit a row that is put is newer than a delete.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            A session with Delta's connector for its Spark, and the two settings that it asks for.
        path : str or pathlib.Path
            The folder of the Delta table, which records its changes: its property
            ``delta.enableChangeDataFeed`` is true.
        key : str, Column, or list of them
            The columns of which no two rows of the Delta table have the same values.
        timestamp : str or Column, optional
            A timestamp or bigint column that results carry on in place of the commit's time.
            Windows that close need it.
        name, on_error
            See ``from_stream``; without a name it is the folder's name.
        schema : pyspark.sql.types.StructType or str, optional
            The columns to read.  If left out, they are those that the Delta table has, and a
            checkpoint keeps them.
        options : mapping of str to value, optional
            Options of Delta's source, such as ``maxFilesPerTrigger``.

        Returns
        -------
        Table

        Raises
        ------
        SessionError
            If the session has no connector that works.
        TopologyError
            If an argument is wrong, or the Delta table is not there or does not record its changes.

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
