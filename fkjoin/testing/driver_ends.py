"""Inputs, changes and stores of a driven table, for users' tests; ``fkjoin.testing`` has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from fkjoin.analysis.planned import Planned
from fkjoin.checkpoint.entries import StoredRows
from fkjoin.checkpoint.python_values import rows_of
from fkjoin.checkpoint.user_keys import encoded, fitting, key_parts
from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.errors import FkJoinError, TopologyError, nearest
from fkjoin.spark.schemas import arrow_schema
from fkjoin.testing.driven import DrivenStage
from fkjoin.testing.driven_inputs import FedChange, Input

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)


class TableChange(NamedTuple):
    """A change of the driven table.

    Attributes
    ----------
    key : object
        The value of the key's column; a tuple if there are several; None of an event.
    operation : {"insert", "update", "delete", "upsert"}
        The kind of change; a table that is only read says ``"upsert"``.
    row : dict or None
        The row's columns but for those of the key; None in a delete.
    timestamp : datetime.datetime, int or None
        The row's timestamp, as its sources have it; a datetime is in UTC.
    """

    key: Any
    operation: Literal["insert", "update", "delete", "upsert"]
    row: dict[str, Any] | None
    timestamp: datetime | int | None


@dataclass(frozen=True, repr=False)
class DriverInput:
    """A source of a driven table, or a stream of events, to be fed; ``Driver.input`` gives it."""

    _input: Input
    _waiting: list[tuple[str, FedChange]]
    _next: Callable[[], int]
    """Function that gives the next number of all inputs."""

    def __repr__(self) -> str:
        planned = self._input.planned
        key = "" if self._input.of_events else f"key: {', '.join(planned.key)}; "
        return f"DriverInput[{planned.name}; {key}columns: {', '.join(planned.rest) or 'none'}]"

    def change(
        self, key: Any, row: Mapping[str, Any], *, version: int | None = None, timestamp: datetime | int | None = None
    ) -> None:
        """Feed a row.

        Parameters
        ----------
        key : object
            The value of the key's column; for several columns a tuple, or a dict by their names.
        row : mapping
            The row's columns by name.  Those of the key may be left out; others that are left out are null.
        version : int, optional
            The number that orders the changes of a key; by default, as they are fed.
        timestamp : datetime.datetime or int, optional
            The row's timestamp, of a table that has them; an int is in the unit of a bigint column.

        Returns
        -------
        None

        Raises
        ------
        FkJoinError
            If a value has another type than its column, or there is no such column.

        Examples
        --------
        >>> driver.input("orders").change("o1", {"customer_id": "c1", "amount": 5.0}, version=7)
        """
        planned = self._require_table()
        key_schema, row_schema = arrow_schema("key", planned.key_type), arrow_schema("row", planned.row_type)
        keys = self._key(key_schema, key)
        if not isinstance(row, Mapping):
            raise FkJoinError(f"row: {row!r} is no dict of columns; delete(…) feeds a deletion")
        self._require_columns("row", [name for name in row if name not in keys])
        values: dict[str, Any] = {}
        for field in row_schema:
            value = row.get(field.name, keys.get(field.name))
            if field.name in keys and value != keys[field.name]:
                raise FkJoinError(f"row: {field.name} is {value!r}, and the key is {keys[field.name]!r}")
            fitting("row", field, [value], nulls=True)
            values[field.name] = value
        self._feed(keys, values, version, timestamp)

    def snapshot(self, key: Any, row: Mapping[str, Any]) -> None:
        """Feed a row of the snapshot that the table begins with.

        Parameters
        ----------
        key, row
            See ``change``.

        Returns
        -------
        None

        Raises
        ------
        FkJoinError
            See ``change``.
        TopologyError
            If the table begins without a snapshot.

        Examples
        --------
        >>> Driver(orders.with_snapshot("lake/orders")).input("orders").snapshot("o1", {"customer_id": "c1"})
        """
        planned = self._require_table()
        if self._input.node.snapshot is None:
            raise TopologyError(f"snapshot: {planned.name} begins without one; make the table with with_snapshot(…)")
        self.change(key, row, version=versions.OLDEST)

    def event(self, event: Mapping[str, Any]) -> None:
        """Feed an event.

        Parameters
        ----------
        event : mapping
            The event's columns by name, as ``enrich`` reads them; those that are left out are null.

        Returns
        -------
        None

        Raises
        ------
        FkJoinError
            If a value has another type than its column, or there is no such column.
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
            raise FkJoinError(f"event: {event!r} is no dict of columns")
        self._require_columns("event", event)
        for field in self._input.schema:
            fitting("event", field, [event.get(field.name)], nulls=True)
        self._waiting.append((planned.name, FedChange(None, dict(event), self._next())))

    def delete(self, key: Any, *, version: int | None = None, timestamp: datetime | int | None = None) -> None:
        """Feed the deletion of a row.

        Parameters
        ----------
        key, version, timestamp
            See ``change``.

        Returns
        -------
        None

        Raises
        ------
        FkJoinError
            If it is no key of the table.

        Examples
        --------
        >>> driver.input("orders").delete("o1")
        """
        self._feed(self._key(arrow_schema("key", self._require_table().key_type), key), None, version, timestamp)

    def unusable(self, value: str | bytes, reason: str) -> None:
        """Feed a record that cannot be used, as its reader would say of a line that does not parse.

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
            raise FkJoinError(f'table {planned.name}: {reason}; on_error="fail" stops the query there')
        text = value.encode() if isinstance(value, str) else value
        self._waiting.append((planned.name, FedChange(None, None, self._next(), None, reason, (None, text))))

    def _require_table(self) -> Planned:
        planned = self._input.planned
        if self._input.of_events:
            raise TopologyError(f"input: {planned.name} are events, which have no key; feed them with event(…)")
        return planned

    def _require_columns(self, argument: str, names: Iterable[str]) -> None:
        planned = self._input.planned
        for name in names:
            if name not in planned.row_type.names:
                known = nearest(str(name), planned.visible_names)
                raise FkJoinError(f"{argument}: {planned.name} has no column {name!r}; {known}")

    def _key(self, schema: pa.Schema, key: Any) -> dict[str, Any]:
        encoded(schema, [key])  # refuses what is no key
        return dict(zip(schema.names, key_parts(schema, key), strict=True))

    def _feed(
        self, key: dict[str, Any], row: dict[str, Any] | None, version: int | None, timestamp: datetime | int | None
    ) -> None:
        planned = self._input.planned
        if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
            raise FkJoinError(f"version: {version!r} is no whole number")
        raw = _json(key), None if row is None else _json(row)
        change = FedChange(key, row, self._next() if version is None else version, self._ts(timestamp), None, raw)
        self._waiting.append((planned.name, change))

    def _ts(self, given: datetime | int | None) -> int | None:
        kind, name = self._input.planned.timestamps, self._input.planned.name
        if given is None:
            return None
        if kind is None:
            raise TopologyError(f"timestamp: {name} has no timestamps; make the table with timestamp=…")
        if isinstance(given, datetime) and kind == "timestamp":
            return ((given if given.tzinfo else given.replace(tzinfo=timezone.utc)) - EPOCH) // MICROSECOND
        if isinstance(given, int) and not isinstance(given, bool) and kind == "bigint":
            return given
        wanted = "a datetime" if kind == "timestamp" else "a whole number"
        raise FkJoinError(f"timestamp: {given!r} is not {wanted}, as the timestamps of {name} are")


@dataclass(frozen=True, repr=False)
class DriverStore:
    """The rows of a table that a driven query keeps; ``Driver.store`` gives it."""

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
            The columns as ``fkjoin.StateReader`` has them; None if there is no such row.

        Raises
        ------
        FkJoinError
            If it is no key of the table.

        Examples
        --------
        >>> row = driver.store("totals").get("c1")
        """
        of = self._stage.described()
        wanted = encoded(of.key, [key])
        return next(iter(self._rows(StoredRows(of, pa.array(wanted, BYTES)))), None)

    def all(self) -> list[dict[str, Any]]:
        """List the rows.

        Returns
        -------
        list of dict
            Rows as ``get`` has them, bucket by bucket.

        Examples
        --------
        >>> rows = driver.store("totals").all()
        """
        return self._rows(StoredRows(self._stage.described()))

    def _rows(self, results: StoredRows) -> list[dict[str, Any]]:
        stores = sorted(self._stage.stores.items())
        return [row for bucket, store in stores for batch in results(store, bucket) for row in rows_of(batch)]


def _json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, default=str, ensure_ascii=False).encode()
