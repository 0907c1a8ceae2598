"""Rows as PostgreSQL reads them, and those that it refuses: which, and what to say of each.

*Law*: all other rows are written, whichever rows are refused.  All are tried at once; if that
fails, their halves are, and the halves of those that fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import Connection

from fkjoin.errors import shortened
from fkjoin.sinks.column_types import beyond_years
from fkjoin.sinks.postgres_server import OF_A_VALUE

ROW_PLACE = "_fkjoin_place"
"""A column more: which row of the batch it is."""

_NO_TIME = "NaT"
_LEAST = "-290308-12-21T19:59:05.224192"
"""The least number of microseconds, which NumPy takes for no time at all."""

_SHOWN = 60
_NUL = "PostgreSQL's texts cannot contain U+0000"

_COLUMNS = """
select attname from pg_constraint join pg_class on pg_class.oid = conrelid
join pg_namespace on pg_namespace.oid = relnamespace
join pg_attribute on attrelid = conrelid and attnum = any(conkey)
where nspname = %s and relname = %s and conname = %s order by attnum
"""

Copy = Callable[[pa.Table], None]
"""Send rows, or some of their columns, to where nothing but types is looked at."""
_Write = Callable[[int, int], None]
"""Write the rows of a batch from a place on to before another one."""


@dataclass(frozen=True)
class Refused:
    """A row that a table cannot store."""

    row: dict[str, Any]
    """Its columns as they should be written: whole numbers and truth values, all else as texts."""
    key: Sequence[str]
    columns: Sequence[str]
    """Several, where a check is about several; none where PostgreSQL does not say."""
    reason: str

    def __str__(self) -> str:
        """Key, column, the value's beginning, and why; in a line."""
        key = [f"{name} = {_beginning(self.row[name])}" for name in self.key]
        columns = [f"column {name} = {_beginning(self.row[name])}" for name in self.columns]
        return f"{', '.join([*key, *columns])}: {self.reason}"

    def letter(self) -> tuple[str, str | None, str, str]:
        """Key, columns, reason and row, in JSON that any encoding of a database has."""
        key = json.dumps({name: self.row[name] for name in self.key})
        return key, ", ".join(self.columns) or None, self.reason, json.dumps(self.row)


def unread(
    connection: Connection[Any], rows: pa.Table, copy: Copy, key: Sequence[str]
) -> Iterator[Refused]:
    """Copy the rows but those with a value that PostgreSQL cannot read, or a type cannot store."""
    if not rows.num_rows or _tried(connection, lambda: copy(rows)) is None:
        return
    for name in [name for name in rows.column_names if pa.types.is_string(rows[name].type)]:
        has = pc.fill_null(pc.match_substring(rows[name], "\0"), False)
        yield from (Refused(row, key, [name], _NUL) for row in shown(rows.filter(has)))
        rows = rows.filter(pc.invert(has))

    def copy_part(first: int, end: int) -> None:
        copy(rows.slice(first, end - first))

    for index, error in _halved(connection, 0, rows.num_rows, copy_part):
        row = rows.slice(index, 1)
        yield Refused(shown(row)[0], key, _unreadable(connection, row, copy), _reason(error))


def unwritten(
    connection: Connection[Any],
    rows: pa.Table,
    write: _Write,
    index: Callable[[], None],
    key: Sequence[str],
) -> Iterator[Refused]:
    """Write the rows but those that a constraint or an index of the table does not take.

    ``index``: makes parts of what was copied quick to find.
    """
    if not rows.num_rows or _tried(connection, lambda: write(0, rows.num_rows)) is None:
        return
    index()
    for position, error in _halved(connection, 0, rows.num_rows, write):
        row = shown(rows.slice(position, 1))[0]
        columns = _of_constraint(connection, error, rows.column_names)
        yield Refused(row, key, columns, _reason(error))


def shown(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as they can stand in JSON: whole numbers and truth values, all else as texts."""
    columns = {name: _plain(spelled(rows[name])) for name in rows.column_names if name != ROW_PLACE}
    return pa.table(columns).to_pylist()


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_boolean(values.type) or pa.types.is_integer(values.type):
        return values
    return values.cast(pa.string())


def _halved(
    connection: Connection[Any], first: int, end: int, work: _Write
) -> Iterator[tuple[int, psycopg.Error]]:
    """Do the work for all rows but those with which it fails: their places, and why."""
    error = _tried(connection, lambda: work(first, end)) if first < end else None
    if error is None:
        return
    if end - first == 1:
        yield first, error
        return
    middle = (first + end) // 2
    yield from _halved(connection, first, middle, work)
    yield from _halved(connection, middle, end, work)


def _tried(connection: Connection[Any], work: Callable[[], None]) -> psycopg.Error | None:
    """Do the work, or nothing of it and say why."""
    try:
        with connection.transaction():  # a savepoint, since the batch's own has begun
            work()
    except OF_A_VALUE as error:
        return error
    return None


def _unreadable(connection: Connection[Any], row: pa.Table, copy: Copy) -> list[str]:
    """The column that cannot be copied alone: errors name it in the server's language."""
    for name in row.column_names:
        if _tried(connection, partial(copy, row.select([name]))) is not None:
            return [name]
    return []


def _of_constraint(
    connection: Connection[Any], error: psycopg.Error, names: Sequence[str]
) -> list[str]:
    """The columns that a constraint is about."""
    diagnosis = error.diag
    if diagnosis.column_name is not None:
        return [diagnosis.column_name]
    constraint = diagnosis.schema_name, diagnosis.table_name, diagnosis.constraint_name
    columns = connection.execute(_COLUMNS, constraint).fetchall()
    return [name for (name,) in columns if name in names]


def _reason(error: psycopg.Error) -> str:
    """Return what PostgreSQL says, without what it quotes of the whole row."""
    texts = [error.diag.message_primary]
    if isinstance(error, psycopg.DataError):
        texts.append(error.diag.message_detail)
    return shortened(": ".join(" ".join(text.split()) for text in texts if text), 3 * _SHOWN)


def _beginning(value: Any) -> str:
    return shortened(repr(value), _SHOWN)


def spelled(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, or texts in its place.

    Texts stand for intervals, and for times and days where one is outside of the years 1 to 9999,
    of which Arrow's text is PostgreSQL's.
    Times are microseconds.  Arrow writes another instant for times that nanoseconds cannot count.
    """
    kind = values.type
    if pa.types.is_duration(kind):
        numbers = values.cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(numbers, "microseconds", " ")
    is_day = pa.types.is_date32(kind)
    if not (is_day or pa.types.is_timestamp(kind)) or not beyond_years(values):
        return values
    counted = values.cast(pa.int32() if is_day else pa.int64())
    zone = "" if is_day or kind.tz is None else "+00"
    texts = [_spelled(number, zone, is_day=is_day) for number in counted.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _spelled(number: int | None, zone: str, *, is_day: bool) -> str | None:
    """``-0043-03-15T12:00:00`` → ``0044-03-15T12:00:00+00 BC``: the year 0 is 1 BC."""
    if number is None:
        return None
    text = str(np.datetime64(number, "D") if is_day else np.datetime64(number, "us"))
    text = _LEAST if text == _NO_TIME else text
    year, rest = text.removeprefix("-").split("-", 1)
    number = -int(year) if text.startswith("-") else int(year)
    return f"{number:04}-{rest}{zone}" if number > 0 else f"{1 - number:04}-{rest}{zone} BC"
