"""complete, within resolve: rows whose source left values out get the values of earlier changes.

*Law*: the row of a key is the row of its newest change, as if every change had carried its whole
row, whatever the order and the batches in which changes come.  So each column has the value of the
newest change that carries it, and that is newer than the key's last deletion.  A change that came
before a value that it lacks waits: its row is shown when no column is missing, and is corrected
when a change comes that is nearer to it.

Store: beside resolve's record, while the row has values that its newest change lacks,
``{'b'}{key}`` → that change's version and timestamp, and for each column the version of the change
that its value is of (null: that one's own; empty: the value is missing), the version of the last
deletion, and, while values are missing, the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import records, tags, versions
from fkjoin.codec.arrays import BYTES, Bools, Bytes, Ints, bools, masked, prefixed, take, valid
from fkjoin.codec.messages import JOINED, column, table
from fkjoin.codec.rows import RowCodec, bytes_codec
from fkjoin.stages import counters
from fkjoin.stages.ordering import Newest
from fkjoin.stages.retention import GONE
from fkjoin.state import Store

UNAVAILABLE = "__fkjoin_unavailable"
"""A column of rows that may lack values: the numbers of the columns that do, or null."""

_MISSING = b""
_NO_DELETION = b""


@dataclass(frozen=True)
class _KeyRow:
    """A key's row, as its newest change has it."""

    version: bytes
    ts: int
    gone: bool
    deletion: bytes
    """The version of the last deletion before it."""
    as_of: tuple[bytes, ...]
    """The version of the change that each column's value is of."""
    places: tuple[int, ...]
    """The position of each column's value in the batch's columns (``CompletedBatch.columns``)."""

    @property
    def missing(self) -> bool:
        return _MISSING in self.as_of

    def with_newer(self, change: _KeyRow, lacking: Sequence[int]) -> _KeyRow:
        """The row of a newer change, with values of this one."""
        if change.gone:
            return replace(change, deletion=change.version)
        as_of, places = list(change.as_of), list(change.places)
        for number in lacking:
            as_of[number], places[number] = self.as_of[number], self.places[number]
        return replace(change, deletion=self.deletion, as_of=tuple(as_of), places=tuple(places))

    def with_older(self, change: _KeyRow, lacking: Sequence[int]) -> _KeyRow:
        """The row, with what a change that is not newer says of columns that it lacks."""
        # A column takes the change's value if its own is of an older change: so the value of the
        # newest change that carries it stays, in whatever order changes come.  A change before the
        # last deletion says nothing of the row that came after it.
        *nearer, undeleted = versions.is_newer(
            pa.array([change.version] * (len(self.as_of) + 1), BYTES),
            pa.array([*self.as_of, self.deletion], BYTES),
        ).tolist()
        if not undeleted:
            return self
        as_of, places = list(self.as_of), list(self.places)
        for number in np.flatnonzero(nearer).tolist():
            if change.gone:
                as_of[number] = _MISSING
            elif number not in lacking:
                as_of[number], places[number] = change.version, change.places[number]
        after = replace(self, as_of=tuple(as_of), places=tuple(places))
        # A deletion matters only while values are missing: the others are newer than it.
        return replace(after, deletion=change.version) if change.gone and after.missing else after


@dataclass(frozen=True)
class Complete:
    """The completion of rows.

    ``schema``: of the rows as they come, ``UNAVAILABLE`` among its columns; whole rows have the
    others.
    """

    schema: pa.Schema

    @property
    def whole(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if field.name != UNAVAILABLE])


class CompletedBatch:
    """A batch of changes, and what is kept of their keys.

    ``joined``: all messages, of which ``code`` has the keys' numbers; ``held``, ``rows``: the
    keys' records, and the rows that were shown.

    Rows are not made of values, but of their positions in ``columns``: there each column has the
    values of all messages, and behind them the values of each key's row before the batch.  So only
    keys with missing values are looked at one by one, and values are taken in bulk::

        a key whose changes are whole, and whose row borrows nothing: its changes are its rows
        any other: apply its older changes to its row, then its newer ones, one by one (``_rows``)
        take each row's values at its positions, column by column
    """

    def __init__(
        self,
        complete: Complete,
        joined: pa.Table,
        code: Ints,
        newer: Newest,
        *,
        keys: Bytes,
        held: records.Records,
        rows: Bytes,
        store: Store,
    ) -> None:
        self.codec, self.width = RowCodec(complete.whole), len(complete.whole)
        self.joined, self.code, self.newer = joined, code, newer
        self.keys, self.held = keys, held
        self.by_key = np.argsort(code, kind="stable")
        self.names = prefixed(tags.BORROWED, keys)
        self.borrowed = records.decode(store.get_many(self.names))
        *self.as_of, self.deletion, waiting = bytes_codec(self.width + 2).decode(self.borrowed.body)

        values = column(joined, "value")
        columns = dict(
            zip(complete.schema.names, RowCodec(complete.schema).decode(values), strict=True)
        )
        self.lacking = columns.pop(UNAVAILABLE)
        self.gone = ~valid(values)
        before = self.codec.decode(pc.coalesce(waiting, rows))
        self.columns = [
            pa.concat_arrays([columns[name], known])
            for name, known in zip(complete.whole.names, before, strict=True)
        ]
        lacking_values = pc.fill_null(pc.list_value_length(self.lacking), 0)
        lacks = bools(pc.greater(lacking_values, 0)) & ~self.gone
        self.concerned: Bools = self.borrowed.exists | np.isin(np.arange(len(keys)), code[lacks])

    def completed(self, count: counters.Counters) -> tuple[pa.Table, Ints, tuple[Bytes, Bytes]]:
        """Make changes with whole rows (``JOINED``), sorted by code and version; codes; entries.

        What no value comes for yet becomes a change to no row, and is counted.
        """
        order, code, version = self.newer
        simple = np.flatnonzero(~self.concerned[code])
        simple_order = order[simple]
        changed: list[tuple[int, _KeyRow]] = []
        for key in np.flatnonzero(self.concerned).tolist():
            changed += [(key, row) for row in self._rows(key, count)]
        rows_of = [row for _, row in changed]
        # Simple changes first, then rows of concerned keys; ``sorting`` puts both in order of keys.
        all_code = np.append(code[simple], np.array([key for key, _ in changed], np.int64))
        sorting = np.argsort(all_code, kind="stable")
        own = np.repeat(simple_order[:, None], self.width, axis=1)
        borrowed = np.array([row.places for row in rows_of], np.int64).reshape(-1, self.width)
        places = np.concatenate([own, borrowed])[sorting]
        ts = column(self.joined, "ts").to_numpy()[simple_order]
        all_ts = np.append(ts, np.array([row.ts for row in rows_of], np.int64))[sorting]
        all_versions = [*take(version, simple).to_pylist(), *(row.version for row in rows_of)]
        row_gone = np.array([row.gone for row in rows_of], bool)
        gone = np.append(self.gone[simple_order], row_gone)[sorting]
        row_missing = np.array([row.missing for row in rows_of], bool)
        missing = np.append(np.zeros(len(simple), bool), row_missing)[sorting]
        numbered = enumerate(self.columns)
        columns = [values.take(pa.array(places[:, number])) for number, values in numbered]
        rows = self.codec.encode(columns, len(places))

        all_code = all_code[sorting]
        whole = table(
            JOINED,
            take(self.keys, all_code),
            take(pa.array(all_versions, BYTES), sorting),
            masked(rows, ~gone & ~missing),
            gone,
            all_ts,
        )
        last = dict(changed)
        ends = np.searchsorted(all_code, np.array(list(last), np.int64), side="right") - 1
        return whole, all_code, self._entries(last, take(rows, ends))

    def _rows(self, key: int, count: counters.Counters) -> list[_KeyRow]:
        """The whole rows that a key's changes lead to, in order.

        The first is the held one, if older changes complete it.
        """
        order, code, version = self.newer
        start, end = np.searchsorted(code, [key, key + 1])
        row, rows = self._held(key), []
        before = row
        for change, lacking in self._older(key, order[start:end]):
            after = row.with_older(change, lacking)
            count[counters.STALE] -= after != row
            row = after
        if row != before:
            rows.append(row)
        for position, own_version in zip(
            order[start:end].tolist(), version[start:end].to_pylist(), strict=True
        ):
            row = row.with_newer(*self._change(position, own_version))
            count[counters.UNAVAILABLE_VALUES] += row.missing and not row.gone
            rows.append(row)
        return rows

    def _held(self, key: int) -> _KeyRow:
        """The row that is held under a key; of none, one that is gone."""
        number = self.held.version[key].as_py()
        places = (len(self.code) + key,) * self.width
        alive = bool(self.held.exists[key]) and not self.held.flags[key] & GONE
        if not alive:
            return _KeyRow(number, 0, True, number, (_MISSING,) * self.width, places)
        if not self.borrowed.exists[key]:
            ts, all_as_of = int(self.held.ts[key]), (number,) * self.width
            return _KeyRow(number, ts, False, _NO_DELETION, all_as_of, places)
        as_of = [version[key].as_py() for version in self.as_of]
        for index in range(self.width):
            if as_of[index] is None:
                as_of[index] = number
        ts, deletion = int(self.borrowed.ts[key]), self.deletion[key].as_py()
        return _KeyRow(number, ts, False, deletion, tuple(as_of), places)

    def _older(self, key: int, newer: Ints) -> list[tuple[_KeyRow, list[int]]]:
        """The changes of a key that are not newer than the row that it has."""
        if not self.held.exists[key] or self.held.flags[key] & GONE:
            return []
        start, end = np.searchsorted(self.code, [key, key + 1], sorter=self.by_key)
        rows = np.setdiff1d(self.by_key[start:end], newer)
        version = take(column(self.joined, "version"), rows)
        rest = ~versions.is_newer(version, take(self.held.version, np.full(len(rows), key)))
        older = zip(rows[rest].tolist(), version.filter(pa.array(rest)).to_pylist(), strict=True)
        return [self._change(position, own_version) for position, own_version in older]

    def _change(self, position: int, version: bytes) -> tuple[_KeyRow, list[int]]:
        """A change as it came, and the columns that it lacks."""
        gone = bool(self.gone[position])
        lacking = [] if gone else self.lacking[position].as_py() or []
        as_of = [_MISSING if gone else version] * self.width
        for number in lacking:
            as_of[number] = _MISSING
        ts, places = self.joined.column("ts")[position].as_py(), (position,) * self.width
        return _KeyRow(version, ts, gone, _NO_DELETION, tuple(as_of), places), lacking

    def _entries(self, last: dict[int, _KeyRow], rows: Bytes) -> tuple[Bytes, Bytes]:
        """The entries of keys whose last rows these are."""
        # A value of the newest change itself has null for its version, which most have.
        borrows: list[bool] = []
        as_of: list[list[bytes | None]] = [[] for _ in range(self.width)]
        for row in last.values():
            own = all(version_of == row.version for version_of in row.as_of)
            borrows.append(not row.gone and not own)
            for versions_of, version_of in zip(as_of, row.as_of, strict=True):
                versions_of.append(None if version_of == row.version else version_of)
        columns = [pa.array(versions_of, BYTES) for versions_of in as_of]
        deletion = pa.array([row.deletion for row in last.values()], BYTES)
        waiting = masked(rows, np.array([row.missing for row in last.values()], bool))
        body = bytes_codec(self.width + 2).encode([*columns, deletion, waiting], len(last))
        version = pa.array([row.version for row in last.values()], BYTES)
        ts = np.array([row.ts for row in last.values()], np.int64)
        values = records.encode(np.zeros(len(last), np.uint8), ts, version, body)
        keys = np.array(list(last), np.int64)
        return take(self.names, keys), masked(values, np.array(borrows, bool))
