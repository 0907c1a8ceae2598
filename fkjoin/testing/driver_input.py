"""Inputs of a driven table, which the caller feeds.

They stand in the place of its sources, and of the events that it enriches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from fkjoin.analysis.planned import Planned, SourceBound, rebuilt
from fkjoin.checkpoint.user_keys import encoded, fitting, key_parts
from fkjoin.codec import versions
from fkjoin.errors import FkJoinError, TopologyError, nearest
from fkjoin.lowering.enrich import EventsBound
from fkjoin.lowering.operators import plan
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.nodes import Events, Source
from fkjoin.plan.physical import Fed, Physical, by_spark
from fkjoin.spark.frame import CHAINS, DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.spark.on_spark import columns_of
from fkjoin.spark.schemas import arrow_schema, as_arrow
from fkjoin.testing.kit import require_version

TIMES = {"timestamp": pa.timestamp("us", "UTC"), "bigint": pa.int64()}
"""The types of a table's timestamps, by what the table calls them."""
_PARTITION = versions.PLACE[1]


class FedChange(NamedTuple):
    """A change of a source's row, or an event."""

    key: dict[str, Any] | None
    """None where the row cannot be used, which has a ``problem``, and of an event."""
    row: dict[str, Any] | None
    version: int
    ts: int | None = None
    problem: str | None = None
    raw: tuple[bytes | None, bytes | None] = (None, None)
    """Key and value of the dead letter that the row would be."""


@dataclass(frozen=True, eq=False)
class Input:
    """A source, or a stream of events, that the caller feeds."""

    planned: Planned
    rows: Physical
    """The plan in its place: of events, the user's own stream."""
    columns: StructType
    """Columns of these rows."""

    @property
    def of_events(self) -> bool:
        return isinstance(self.planned.node, Events)

    @property
    def node(self) -> Source:
        assert isinstance(self.planned.node, Source)
        return self.planned.node

    @cached_property
    def schema(self) -> pa.Schema:
        return as_arrow(self.columns)

    def batch(self, fed: Sequence[FedChange]) -> pa.RecordBatch:
        """Fed rows and events, as rows of the frame."""
        as_row = self._event if self.of_events else self._row
        return pa.RecordBatch.from_pylist(list(map(as_row, fed)), self.schema)

    def _event(self, event: FedChange) -> dict[str, Any]:
        return event.row or {}

    def _row(self, change: FedChange) -> dict[str, Any]:
        node = self.node
        identity = versions.identity(node.log or node.topic or node.name)
        return {
            KEY: change.key,
            ROW: change.row,
            DELETED: change.row is None,
            VERSION: self._version(identity, change.version),
            SOURCE: identity,
            TS: change.ts,
            PROBLEM: change.problem,
            RAW: {"table": node.name, "key": change.raw[0], "value": change.raw[1]},
        }

    def _version(self, identity: bytes, number: int) -> Any:
        """The version that a number is.

        Where each root of a row has a part of it, all parts are alike.
        """
        kind = self.schema.field(VERSION).type
        if pa.types.is_struct(kind):
            return {field.name: number for field in kind} | {_PARTITION: 0}
        position = dict.fromkeys(versions.PLACE, number) | {_PARTITION: 0}
        columns = [np.array([value]) for value in position.values()]
        part = versions.encode(identity, columns, placed=True)
        return part[0].as_py() * self.node.parts


def fed(table: Planned) -> tuple[TablePlan, dict[str, Input]]:
    """The plan of the table over inputs that the caller feeds, and these by their names.

    Raises ``TopologyError`` for two sources of one name.
    """
    inputs: dict[str, Input] = {}

    def over_inputs(below: Planned) -> Planned:
        if not isinstance(below.bound, SourceBound | EventsBound):
            return below
        if below.name in inputs:
            raise TopologyError(
                f"table: two of its sources are called {below.name}, and inputs go by their names"
            )
        inputs[below.name] = _input(below)
        return inputs[below.name].planned

    return plan(rebuilt(table, over_inputs)), inputs


def _input(table: Planned) -> Input:
    bound = table.bound
    columns = columns_of(table.spark, bound.rows)
    if isinstance(bound, EventsBound):
        # The user's expressions may be over columns of that stream.
        return Input(table, bound.rows, columns)
    columns = StructType([field for field in columns if field.name != CHAINS])
    rows = Fed(table.name, columns)
    letters: tuple[Physical, ...] = ()
    if bound.dead and RAW in columns.names:
        letters = (by_spark(lambda frame: frame.select(PROBLEM, RAW), rows),)
    return Input(replace(table, bound=SourceBound(rows, letters)), rows, columns)


@dataclass(frozen=True, repr=False)
class DriverInput:
    """A source of a driven table, or a stream of events, to feed; ``Driver.input`` returns it."""

    _input: Input
    _waiting: list[tuple[str, FedChange]]
    _next: Callable[[], int]
    """Function that gives the next number of all inputs."""

    def __repr__(self) -> str:
        planned = self._input.planned
        key = "" if self._input.of_events else f"key: {', '.join(planned.key)}; "
        return f"DriverInput[{planned.name}; {key}columns: {', '.join(planned.rest) or 'none'}]"

    def change(
        self,
        key: Any,
        row: Mapping[str, Any],
        *,
        version: int | None = None,
        timestamp: datetime | int | None = None,
    ) -> None:
        """Feed a row.

        Parameters
        ----------
        key : object
            The value of the key's column; for several columns a tuple, or a dict by their names.
        row : mapping of str to value
            The row's columns by name. You may leave out the key's columns; other columns that you
            leave out are null.
        version : int, optional
            The number that orders the changes of a key. By default the order in which they are fed.
        timestamp : datetime.datetime or int, optional
            The timestamp of the row, if its table has timestamps. An int is in the unit of a bigint
            column.

        Returns
        -------
        None

        Raises
        ------
        FkJoinError
            If a column is unknown, or a value has another type than its column.

        Examples
        --------
        >>> row = {"customer_id": "c1", "amount": 5.0}
        >>> driver.input("orders").change("o1", row, version=7)
        """
        self._require_table()
        keys = self._key(key)
        if not isinstance(row, Mapping):
            raise FkJoinError(f"row: {row!r} is not a dict of columns; delete(…) feeds a deletion")
        schema = arrow_schema("row", self._input.planned.row_type)
        self._feed(keys, self._values("row", schema, row, keys), version, timestamp)

    def snapshot(self, key: Any, row: Mapping[str, Any]) -> None:
        """Feed a row of the snapshot that the table begins with.

        Parameters
        ----------
        key : object
            The value of the key's column; for several columns a tuple, or a dict by their names.
        row : mapping of str to value
            The row's columns by name. You may leave out the key's columns; other columns that you
            leave out are null.

        Returns
        -------
        None

        Raises
        ------
        FkJoinError
            If a column is unknown, or a value has another type than its column.
        TopologyError
            If the table begins without a snapshot.

        Examples
        --------
        >>> driver = Driver(orders.with_snapshot("lake/orders"))
        >>> driver.input("orders").snapshot("o1", {"customer_id": "c1"})
        """
        planned = self._require_table()
        if self._input.node.snapshot is None:
            raise TopologyError(
                f"snapshot: {planned.name} has no snapshot; make the table with with_snapshot(…)"
            )
        self.change(key, row, version=versions.OLDEST)

    def event(self, event: Mapping[str, Any]) -> None:
        """Feed an event.

        Parameters
        ----------
        event : mapping of str to value
            The event's columns by name, as ``enrich`` reads them. Columns that you leave out are
            null.

        Returns
        -------
        None

        Raises
        ------
        FkJoinError
            If a column is unknown, or a value has another type than its column.
        TopologyError
            If the source is a table.

        Examples
        --------
        >>> Driver(enriched).input("clicks").event({"order_id": "o1"})
        """
        planned = self._input.planned
        if not self._input.of_events:
            raise TopologyError(f"event: {planned.name} is a table; feed its rows with change(…)")
        if not isinstance(event, Mapping):
            raise FkJoinError(f"event: {event!r} is not a dict of columns")
        values = self._values("event", self._input.schema, event, {})
        self._add(FedChange(None, values, self._next()))

    def delete(
        self, key: Any, *, version: int | None = None, timestamp: datetime | int | None = None
    ) -> None:
        """Feed the deletion of a row.

        Parameters
        ----------
        key : object
            The value of the key's column; for several columns a tuple, or a dict by their names.
        version : int, optional
            The number that orders the changes of a key. By default the order in which they are fed.
        timestamp : datetime.datetime or int, optional
            The timestamp of the row, if its table has timestamps. An int is in the unit of a bigint
            column.

        Returns
        -------
        None

        Raises
        ------
        FkJoinError
            If it cannot be a key of the table.

        Examples
        --------
        >>> driver.input("orders").delete("o1")
        """
        self._require_table()
        self._feed(self._key(key), None, version, timestamp)

    def unusable(self, value: str | bytes, reason: str) -> None:
        """Feed a record that cannot be used, for example a line that does not parse.

        Parameters
        ----------
        value : str or bytes
            The record, as a dead letter shows it.
        reason : str
            Why it cannot be used.

        Returns
        -------
        None

        Raises
        ------
        FkJoinError
            If the source has ``on_error="fail"``, with which such a record stops the query.

        Examples
        --------
        >>> driver.input("orders").unusable("{", "no JSON")
        """
        planned = self._require_table()
        if planned.on_error == "fail":
            raise FkJoinError(
                f'table {planned.name}: {reason}; on_error="fail" stops the query there'
            )
        text = value.encode() if isinstance(value, str) else value
        self._add(FedChange(None, None, self._next(), None, reason, (None, text)))

    def _require_table(self) -> Planned:
        planned = self._input.planned
        if self._input.of_events:
            raise TopologyError(
                f"input: {planned.name} are events, which have no key; feed them with event(…)"
            )
        return planned

    def _key(self, key: Any) -> dict[str, Any]:
        """The columns of a key as users write it."""
        schema = arrow_schema("key", self._input.planned.key_type)
        encoded(schema, [key])  # refuses what is not a key
        return dict(zip(schema.names, key_parts(schema, key), strict=True))

    def _values(
        self,
        argument: str,
        schema: pa.Schema,
        row: Mapping[str, Any],
        keys: Mapping[str, Any],
    ) -> dict[str, Any]:
        """A row's columns, each of a value that it can have; the key's columns may be left out."""
        planned = self._input.planned
        for name in row:
            if name not in keys and name not in planned.row_type.names:
                known = nearest(str(name), planned.visible_names)
                raise FkJoinError(f"{argument}: {planned.name} has no column {name!r}; {known}")
        values = {field.name: row.get(field.name, keys.get(field.name)) for field in schema}
        for field in schema:
            value = values[field.name]
            if field.name in keys and value != keys[field.name]:
                wrong = f"{field.name} is {value!r}, and the key is {keys[field.name]!r}"
                raise FkJoinError(f"{argument}: {wrong}")
            fitting(argument, field, [value], nulls=True)
        return values

    def _feed(
        self,
        key: dict[str, Any],
        row: dict[str, Any] | None,
        version: int | None,
        timestamp: datetime | int | None,
    ) -> None:
        require_version(version, f"version: {version!r}")
        number = self._next() if version is None else version
        raw = _json(key), None if row is None else _json(row)
        self._add(FedChange(key, row, number, self._ts(timestamp), None, raw))

    def _add(self, change: FedChange) -> None:
        self._waiting.append((self._input.planned.name, change))

    def _ts(self, timestamp: datetime | int | None) -> int | None:
        planned = self._input.planned
        if timestamp is None:
            return None
        if planned.timestamps is None:
            raise TopologyError(
                f"timestamp: {planned.name} has no timestamps; make the table with timestamp=…"
            )
        if isinstance(timestamp, datetime) and timestamp.tzinfo is None:
            timestamp = timestamp.replace(tzinfo=timezone.utc)
        kind = TIMES[planned.timestamps]
        column = fitting("timestamp", pa.field(f"timestamp of {planned.name}", kind), [timestamp])
        number: int = column.cast(pa.int64())[0].as_py()
        return number


def _json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, default=str, ensure_ascii=False).encode()
