"""Sinks that are tables somewhere else, ours and other packages'."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.checkpoint.batch_log import BatchLog, Mark, is_taken
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.nodes import Source
from fkjoin.sinks.batches import Batch, Write
from fkjoin.sinks.ledger import rows_of_state
from fkjoin.spark.names import quoted, require_results
from fkjoin.spark.schemas import arrow_schema


@dataclass(frozen=True)
class BatchId:
    """The name of a batch, which a table sink keeps beside the rows.

    Parameters
    ----------
    query : str
        The query of the batch. Several queries may write to one table.
    number : int
        The number of the batch, from 0 on; -1 stands for the time before the first batch.
    began_ms : int or None
        Milliseconds since 1970 when the batch began; a repeated batch has the same time. After a
        restore of the checkpoint, another batch with that number has another time. None before the
        first batch.
    previous_ms : int, optional
        When the batch before it began; None for the first one. A place need not keep it.

    Examples
    --------
    >>> query = "5b0f6c1e-2f0a-4f0e-9c5e-0d6f8a1b2c3d"
    >>> batch = BatchId(query, 7, 1767323045006, previous_ms=1767323044001)
    """

    query: str
    number: int
    began_ms: int | None
    previous_ms: int | None = field(default=None, compare=False)

    @property
    def mark(self) -> Mark:  # the batch itself
        return Mark(self.number, self.began_ms)


class TableSink(ABC):
    """Base class of your own sinks, which keep a table somewhere else up to date.

    Implement ``place``, ``prepare``, ``last_batch`` and ``apply``. A batch takes effect exactly
    once if ``apply`` writes rows and batch in one transaction, including a batch without rows.
    ``fkjoin.testing.SinkContract`` tests that.

    Examples
    --------
    >>> from operator import itemgetter
    >>> from fkjoin.sinks import TableSink
    >>> class Rows(TableSink):
    ...     place = "rows"
    ...
    ...     def __init__(self):
    ...         self.rows, self.batches = {}, {}
    ...
    ...     def prepare(self, schema, key):
    ...         self.key = list(key)
    ...
    ...     def last_batch(self, query):
    ...         return self.batches.get(query)
    ...
    ...     def apply(self, batch, upserts, deletes):
    ...         if self.has(batch, self.last_batch(batch.query)):
    ...             return
    ...         rows, key_of = dict(self.rows), itemgetter(*self.key)
    ...         for row in upserts.to_pylist():
    ...             rows[key_of(row)] = row
    ...         for row in deletes.to_pylist():
    ...             rows.pop(key_of(row), None)
    ...         self.rows, self.batches = rows, self.batches | {batch.query: batch}
    """

    @property
    @abstractmethod
    def place(self) -> str:
        """The name of the place in errors, without secrets; a class attribute is enough.

        Returns
        -------
        str
        """

    @abstractmethod
    def prepare(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        """Make the target, unless it exists.

        Each start of the query calls it.

        Parameters
        ----------
        schema : pyarrow.Schema
            The key's columns, then the others.
        key : tuple of str
            The names of the key's columns.

        Raises
        ------
        FkJoinError
            If the place cannot store rows of the schema, or is not reachable.
        """

    @abstractmethod
    def last_batch(self, query: str) -> BatchId | None:
        """Return the query's last batch that the place has taken, also before ``prepare``.

        Parameters
        ----------
        query : str
            The name of the query.

        Returns
        -------
        BatchId or None
            The batch that ``apply`` or ``replace`` was given. None if the place has taken no batch
            of the query, or if the target does not exist.

        Raises
        ------
        FkJoinError
            If the place is not reachable.
        """

    @abstractmethod
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        """Write a batch and its ``BatchId``, all or nothing, unless the place ``has`` it.

        Also keep the ``BatchId`` of a batch without rows: the next start compares the last batch of
        the place with the checkpoint.

        Parameters
        ----------
        batch : BatchId
            The batch, to be kept in the same transaction.
        upserts : pyarrow.Table
            Rows to insert or to replace, with the columns of ``prepare``. A key comes once in a
            batch.
        deletes : pyarrow.Table
            Keys of rows to delete. The place need not have such a row.

        Raises
        ------
        FkJoinError
            If the batch does not follow the last one of the place, or if the place cannot store a
            row.
        """

    def has(self, batch: BatchId, last: BatchId | None) -> bool:
        """Compare a batch with the last one that the place has taken; ``apply`` calls it.

        Parameters
        ----------
        batch : BatchId
            The batch to be written.
        last : BatchId or None
            What ``last_batch`` returns, read in the transaction that writes.

        Returns
        -------
        bool
            Whether the place has taken the batch.

        Raises
        ------
        FkJoinError
            If the batch does not follow the last one. Then the query runs twice, or a backup was
            restored meanwhile.
        """
        mark = None if last is None else last.mark
        return is_taken(self.place, mark, batch.mark, batch.previous_ms)

    def examine(self, schema: pa.Schema, key: tuple[str, ...]) -> None:  # noqa: B027
        """Raise the errors of ``prepare``, and make nothing; ``fkjoin run --check`` calls it.

        By default it raises nothing.

        Parameters
        ----------
        schema : pyarrow.Schema
            The key's columns, then the others.
        key : tuple of str
            The names of the key's columns.
        """

    def replace(self, batch: BatchId, rows: pa.Table) -> None:
        """Replace all rows of the place, in one transaction with the batch of the new rows.

        ``fkjoin restore`` calls it with the rows of the checkpoint's state. A sink need not
        implement it.

        Parameters
        ----------
        batch : BatchId
            The last batch of the query from here on.
        rows : pyarrow.Table
            All rows, with the columns of ``prepare``.

        Raises
        ------
        NotImplementedError
            By default: fkjoin cannot restore such a sink.
        """
        raise NotImplementedError

    def as_taken(self, changes: DataFrame) -> DataFrame:  # their columns as ``apply`` takes them
        return changes

    _takes_events: ClassVar[bool] = False
    """``apply`` appends rows of a schema without a key."""

    def check(self, table: TablePlan) -> None:  # see Checks
        self.examine(self._schema_of(table), table.key)

    def begin(self, table: TablePlan) -> Write:  # see Sink
        key, columns, appends = list(table.key), [*table.key, *table.rest], table.node.appends
        self.prepare(self._schema_of(table), table.key)

        def write(batch: Batch, query: str, number: int) -> None:
            rows = self.as_taken(batch.changes).toArrow()
            gone = pa.repeat(pa.scalar(value=False), len(rows))
            if not appends:
                gone = pc.equal(rows["_operation"], "delete")
            upserts = rows.filter(pc.invert(gone)).select(columns)
            deletes = rows.filter(gone).select(key)
            self.apply(BatchId(query, number, batch.began_ms, batch.previous_ms), upserts, deletes)

        return write

    def last(self, spark: SparkSession, query: str) -> Mark | None:  # see Ledger
        batch = self.last_batch(query)
        return None if batch is None or batch.number < 0 else batch.mark

    def restore(self, table: TablePlan, query: str, log: BatchLog) -> None:  # see Ledger
        if type(self).replace is TableSink.replace:
            raise FkJoinError(f"{type(self).__name__} has no method replace")
        rows = rows_of_state(table, log).select(*map(quoted, (*table.key, *table.rest)))
        mark = log.mark(log.done)
        self.replace(BatchId(query, mark.number, mark.began_ms), self.as_taken(rows).toArrow())

    def _schema_of(self, table: TablePlan) -> pa.Schema:
        self._require_last_changes(table)
        kinds = StructType([*table.key_type, *(table.row_type[name] for name in table.rest)])
        return arrow_schema(type(self).__name__, kinds)

    def _require_last_changes(self, table: TablePlan) -> None:
        """Raise ``TopologyError`` unless a batch has the last change of each row.

        Its columns must have names that results leave free.
        """
        if isinstance(table.node, Source):
            raise TopologyError(
                f"{table.name}: a batch of a source may contain several changes of a row, and the "
                f'sink needs the last one alone: write .materialize("{table.name}") first (in a '
                "job file, materialize = true)"
            )
        if not table.node.appends:
            require_results(table.name, [*table.key, *table.rest])
        elif not self._takes_events:
            raise TopologyError(
                f"{table.name}: these are events, which have no key, and {self.place} keeps rows "
                "by a key; write them to Parquet, Delta, Iceberg or a topic"
            )


def require_table_sink(sink: TableSink) -> TableSink:
    """Return the sink; ``TopologyError`` if it is none."""
    if not isinstance(sink, TableSink):
        raise TopologyError(
            f"sink: a {type(sink).__name__} is not a TableSink: let it inherit from "
            "fkjoin.sinks.TableSink; fkjoin's other sinks have methods of their own: to_kafka, "
            "to_parquet"
        )
    return sink
