"""Any table in memory, for users' tests: the plan of its query without a query.

``fkjoin.testing`` has it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.checkpoint.entries import StoredRows
from fkjoin.checkpoint.stores import kept_as
from fkjoin.checkpoint.user_keys import encoded, hashable, rows_of
from fkjoin.codec.arrays import BYTES
from fkjoin.errors import FkJoinError, nearest
from fkjoin.events import Enriched
from fkjoin.lowering.handle import planned_of
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, ROW, TS
from fkjoin.spark.in_memory import MemoryBatch, MemoryQuery
from fkjoin.stages.counters import Counters
from fkjoin.table import Table
from fkjoin.testing.driven import DrivenStage, DrivenTopology
from fkjoin.testing.driver_input import TIMES, DriverInput, FedChange, fed
from fkjoin.testing.kit import CRASH, DUPLICATE, REORDER, Sentinel, portions, require_sentinel


class TableChange(NamedTuple):
    """A change of the driven table.

    Attributes
    ----------
    key : object
        The value of the key's column; a tuple for several columns; None for an event.
    operation : {"insert", "update", "delete", "upsert"}
        The kind of change; a table that is only read says ``"upsert"``.
    row : dict or None
        The row's columns without the key; None in a delete.
    timestamp : datetime.datetime, int or None
        The timestamp of the row, in the type of its sources; a datetime is in UTC.

    Examples
    --------
    >>> row = {"customer_id": "c1", "amount": 5.0}
    >>> change = TableChange("o1", "upsert", row, None)
    """

    key: Any
    operation: Literal["insert", "update", "delete", "upsert"]
    row: dict[str, Any] | None
    timestamp: datetime | int | None


class Driver:
    """A table of any topology, driven in memory: its plan runs batch by batch, without a query.

    The plan is the plan of a query of the table. Its stages run in this process, over stores in
    memory. Spark evaluates only expressions that workers cannot evaluate. In each batch, queries of
    staged operators run before it, with topics in memory between them.

    Parameters
    ----------
    table : Table or Enriched
        The table, or the events that it enriches, made in a classic session. Inputs of the same
        names replace the sources.
    seed : int, default 0
        The seed of the random order of ``REORDER``.

    Raises
    ------
    TopologyError
        If it is not a table, or two of its sources have one name.
    SessionError
        If the session is one of Spark Connect.

    Examples
    --------
    >>> driver = Driver(orders)
    >>> driver.input("orders").change("o1", {"customer_id": "c1", "amount": 5.0})
    >>> (change,) = driver.run()
    >>> change.operation, change.row
    ('upsert', {'customer_id': 'c1', 'amount': 5.0})
    """

    def __init__(self, table: Table | Enriched, *, seed: int = 0) -> None:
        planned = table._planned if isinstance(table, Enriched) else planned_of("table", table)
        self._plan, self._inputs = fed(planned)
        self._random = random.Random(seed)
        self._queries = DrivenTopology(self._plan)
        self._letters: MemoryQuery | None = None
        self._waiting: list[tuple[str, FedChange]] = []
        self.clear()

    def __repr__(self) -> str:
        return f"Driver[{self._plan.name}; inputs: {', '.join(self._inputs)}]"

    def clear(self) -> None:
        """Forget everything except the state of the random numbers of ``REORDER``.

        This is faster than a new driver, which plans its table again.

        Returns
        -------
        None

        Examples
        --------
        >>> driver.clear()
        >>> driver.table
        {}
        """
        self._queries.clear()
        if self._letters is not None:
            self._letters.clear()
        self._dead: list[dict[str, Any]] = []
        self._batches: list[MemoryBatch] = []
        self._waiting.clear()
        self._fed: list[tuple[str, FedChange]] = []
        self._now_ms = self._before_ms = 0
        self._table: dict[Any, dict[str, Any]] = {}
        self._results: list[TableChange] = []

    @property
    def table(self) -> dict[Any, dict[str, Any]]:
        """The rows by key, as a reader of the results sees them.

        Returns
        -------
        dict
            The columns of each row by name, without the key's columns.

        Examples
        --------
        >>> driver.input("orders").change("o1", {"customer_id": "c1", "amount": 5.0})
        >>> changes = driver.run()
        >>> driver.table
        {'o1': {'customer_id': 'c1', 'amount': 5.0}}
        """
        return self._table

    @property
    def results(self) -> list[TableChange]:
        """All changes, in order. An event is an insert whose key is None.

        Returns
        -------
        list of TableChange

        Examples
        --------
        >>> [change.operation for change in driver.results]
        ['upsert']
        """
        return self._results

    def input(self, name: str) -> DriverInput:
        """Name a source, to feed it.

        Parameters
        ----------
        name : str
            The name of a source of the driven table, or of the stream of events.

        Returns
        -------
        DriverInput

        Raises
        ------
        FkJoinError
            If the source is unknown.

        Examples
        --------
        >>> driver.input("orders").change("o1", {"customer_id": "c1"})
        """
        if name not in self._inputs:
            raise FkJoinError(
                f"input: the table has no source {name!r}; {nearest(name, self.inputs)}"
            )
        return DriverInput(
            self._inputs[name], self._waiting, lambda: len(self._fed) + len(self._waiting)
        )

    @property
    def inputs(self) -> list[str]:
        """The names of the sources.

        Returns
        -------
        list of str

        Examples
        --------
        >>> driver.inputs
        ['orders']
        """
        return list(self._inputs)

    def run(self, fault: Sentinel | None = None) -> list[TableChange]:
        """Run what you fed since the last run, as one batch.

        Parameters
        ----------
        fault : Sentinel, optional
            What happens to the batch.

            - ``CRASH``: it is lost after each stage in turn, with all that it wrote, and is then
              done.
            - ``DUPLICATE``: everything that was fed so far comes again after it, except events,
              which come once.
            - ``REORDER``: its changes overtake each other and come in several batches, some of them
              twice. So do records of internal topics. Nothing overtakes between the stages of one
              query.

        Returns
        -------
        list of TableChange
            The changes of the table.

        Examples
        --------
        >>> driver.input("orders").change("o1", {"customer_id": "c1"})
        >>> changes = driver.run(CRASH)
        """
        if fault is not None:
            require_sentinel(fault, "fault")
        before, batch = len(self._results), list(self._waiting)
        self._waiting.clear()
        self._fed += batch
        if fault != REORDER:
            self._batch(batch, fault)
        else:
            for part in portions(batch, self._repeatable(batch), self._random) or [[]]:
                self._batch(part, fault)
            if self._plan.stages:
                # Records of internal topics are still on their way.
                self._batch([])
        if fault == DUPLICATE:
            self._batch(self._repeatable(self._fed))
        return self._results[before:]

    def advance(self, by: str | timedelta) -> list[TableChange]:
        """Move the clock, then run what you fed since the last run.

        Intervals of periodic emission, and of the clock that finds idle sources, end at whole
        multiples since the driver was made. At ends on the way, batches without rows run. The
        retention of tombstone markers uses this clock, too.

        Parameters
        ----------
        by : str or datetime.timedelta
            The time that passes, for example ``"10 seconds"``.

        Returns
        -------
        list of TableChange
            The changes of the table.

        Raises
        ------
        FkJoinError
            If it is not a time of at least one millisecond.

        Examples
        --------
        >>> changes = driver.advance("1 minute")
        """
        try:
            passed = int(pd.Timedelta(by) / pd.Timedelta(milliseconds=1))
        except (ValueError, TypeError) as error:
            raise FkJoinError(
                f'by: {by!r} is not a duration such as "10 seconds" or "1 minute"'
            ) from error
        if isinstance(by, int | float) or passed < 1:
            raise FkJoinError(
                f'by: {by!r} must be a duration of at least 1 ms, for example "10 seconds"'
            )
        before, now_ms = len(self._results), self._now_ms + passed
        for end_ms in self._queries.ends(self._now_ms, now_ms):
            self._now_ms = end_ms
            self._batch([])
        self._now_ms = now_ms
        self.run()
        return self._results[before:]

    @property
    def now(self) -> timedelta:
        """The time that has passed on the driver's clock.

        Returns
        -------
        datetime.timedelta

        Examples
        --------
        >>> changes = driver.advance("1 minute")
        >>> str(driver.now)
        '0:01:00'
        """
        return timedelta(milliseconds=self._now_ms)

    @property
    def count(self) -> Counters:
        """The sums of the operators' counters, such as ``stale-dropped`` and ``dead-letters``.

        Returns
        -------
        collections.Counter

        Examples
        --------
        >>> driver.count["stale-dropped"]
        0
        """
        return self._queries.count

    @property
    def dead_letters(self) -> list[dict[str, Any]]:
        """The rows that could not be used so far, as ``Table.dead_letters`` shows them.

        Dead letters are a query of their own. The driver runs it when you read this property.

        Returns
        -------
        list of dict
            The columns of each dead letter by name; ``reason`` says why.

        Examples
        --------
        >>> driver.input("orders").unusable("{", "no JSON")
        >>> changes = driver.run()
        >>> [letter["reason"] for letter in driver.dead_letters]
        ['no JSON']
        """
        if self._plan.letters is not None:
            self._letters = self._letters or MemoryQuery(self._plan.spark, self._plan.letters)
            for batch in self._batches:
                self._dead += rows_of(self._letters.run(batch))
            self._batches.clear()
        return list(self._dead)

    def store(self, name: str) -> DriverStore:
        """Read the rows that the query keeps of the driven table, or of a table below it.

        Parameters
        ----------
        name : str
            The name that ``materialize`` was given, or the name of an aggregate, a cogroup, a
            merge, a flat map or ``with_children``.

        Returns
        -------
        DriverStore

        Raises
        ------
        FkJoinError
            If the table is unknown, or its rows are not kept.

        Examples
        --------
        >>> row = driver.store("totals").get("c1")
        """
        return DriverStore(kept_as(name, self._queries.stages, "the driver"))

    def _repeatable(self, fed: list[tuple[str, FedChange]]) -> list[tuple[str, FedChange]]:
        """Changes of tables, which may come twice; events may not."""
        return [(name, change) for name, change in fed if not self._inputs[name].of_events]

    def _batch(
        self, changes: list[tuple[str, FedChange]], sentinel: Sentinel | None = None
    ) -> None:
        fed: dict[str, list[FedChange]] = {name: [] for name in self._inputs}
        for name, change in changes:
            fed[name].append(change)
        rows = {source.rows: source.batch(fed[name]) for name, source in self._inputs.items()}
        batch = MemoryBatch(rows.__getitem__, self._now_ms, self._before_ms)
        mixed = self._random if sentinel == REORDER else None
        results, batch = self._queries.run(batch, lose=sentinel == CRASH, mixed=mixed)
        self._before_ms = self._now_ms
        if self._plan.dead:
            self._batches.append(batch)
        for result in self._changes(results):
            self._results.append(result)
            if self._plan.node.appends:
                continue
            if result.row is None:
                self._table.pop(result.key, None)
            else:
                self._table[result.key] = result.row

    def _changes(self, rows: pa.RecordBatch) -> Iterator[TableChange]:
        plan = self._plan
        if plan.node.appends:
            yield from (TableChange(None, "insert", row, None) for row in rows_of(rows))
            return
        if plan.packed is None:
            rows = rows.filter(pc.is_null(rows.column(PROBLEM)))
            operations = pc.if_else(rows.column(DELETED), "delete", "upsert")
            columns = [rows.column(KEY), rows.column(ROW), rows.column(TS), operations]
        else:
            columns = [rows.column(name) for name in ("key", "row", "ts", "operation")]
        if plan.timestamps == "timestamp":
            columns[2] = columns[2].cast(TIMES["timestamp"])
        for row in rows_of(pa.record_batch(columns, ["key", "row", "ts", "operation"])):
            parts = tuple(hashable(row["key"][name]) for name in plan.key)
            key = parts[0] if len(parts) == 1 else parts
            values = None
            if row["operation"] != "delete":
                values = {name: row["row"][name] for name in plan.rest}
            yield TableChange(key, row["operation"], values, row["ts"])


@dataclass(frozen=True, repr=False)
class DriverStore:
    """The rows of a table that a driven query keeps; ``Driver.store`` returns it."""

    _stage: DrivenStage

    def __repr__(self) -> str:
        return f"DriverStore[{self._stage.identity[0]['materialized']}]"

    def get(self, key: Any) -> dict[str, Any] | None:
        """Look up the row of a key.

        Parameters
        ----------
        key : object
            The value of the key's column; for several columns a tuple, or a dict by their names.

        Returns
        -------
        dict or None
            The columns as ``fkjoin.StateReader`` returns them; None if the table does not contain
            the row.

        Raises
        ------
        FkJoinError
            If it cannot be a key of the table.

        Examples
        --------
        >>> row = driver.store("totals").get("c1")
        """
        stage = self._stage.described()
        wanted = encoded(stage.key, [key])
        return next(iter(self._rows(StoredRows(stage, pa.array(wanted, BYTES)))), None)

    def all(self) -> list[dict[str, Any]]:
        """List the rows.

        Returns
        -------
        list of dict
            Rows as ``get`` returns them, bucket by bucket.

        Examples
        --------
        >>> rows = driver.store("totals").all()
        """
        return self._rows(StoredRows(self._stage.described()))

    def _rows(self, results: StoredRows) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for bucket, store in sorted(self._stage.stores.items()):
            for batch in results(store, bucket):
                rows += rows_of(batch)
        return rows
