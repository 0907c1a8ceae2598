"""Rows that PostgreSQL refuses: which of a batch they are, and what there is to say of each.

*Law*: all other rows are written, whichever rows are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import Connection

from fkjoin.sinks.postgres_server import OF_A_VALUE
from fkjoin.sinks.postgres_values import spelled

_SHOWN = 60
_NUL = "no text of PostgreSQL's can have U+0000"

Try = Callable[[pa.Table], None]
"""Writes rows; what it has done is undone if it throws."""


@dataclass(frozen=True)
class Refused:
    """A row that a table cannot have."""

    row: dict[str, Any]
    """Its columns, as they were to be written: whole numbers and truth values as such, all else as texts."""
    key: Sequence[str]
    column: str | None
    """None where PostgreSQL does not say."""
    reason: str

    def __str__(self) -> str:
        """Key, column, the value's beginning, and why; in a line."""
        key = ", ".join(f"{name} = {_beginning(self.row[name])}" for name in self.key)
        column = "" if self.column is None else f", column {self.column}"
        if self.column in self.row and self.column not in self.key:
            column += f" = {_beginning(self.row[self.column])}"
        return f"{key}{column}: {self.reason}"

    @property
    def key_text(self) -> str:
        """JSON that any encoding of a database has."""
        return json.dumps({name: self.row[name] for name in self.key})

    @property
    def row_text(self) -> str:
        return json.dumps(self.row)


def refused(connection: Connection[Any], rows: pa.Table, write: Try, copy: Try, key: Sequence[str]) -> Iterator[Refused]:
    """Write all rows but those that PostgreSQL refuses: all at once if it takes them, else by ever smaller parts.

    ``copy``: sends rows, or a column of them, to where nothing but types is looked at.
    """
    if not rows.num_rows or _tried(connection, rows, write) is None:
        return
    for name in [name for name in rows.column_names if pa.types.is_string(rows[name].type)]:
        has = pc.fill_null(pc.match_substring(rows[name], "\0"), False)
        yield from (Refused(row, key, name, _NUL) for row in shown(rows.filter(has)))
        rows = rows.filter(pc.invert(has))
    for row, error in _parts(connection, rows, write):
        yield Refused(shown(row)[0], key, _column(connection, row, error, copy), _reason(error))


def shown(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as they can stand in JSON: numbers that a JSON number may not be, times and all else are texts."""
    return pa.table([_plain(spelled(values)) for values in rows.columns], rows.column_names).to_pylist()


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = values.type
    return values if pa.types.is_boolean(kind) or pa.types.is_integer(kind) else values.cast(pa.string())


def _parts(connection: Connection[Any], rows: pa.Table, write: Try) -> Iterator[tuple[pa.Table, psycopg.Error]]:
    """Write the rows that can be written; the others, one by one."""
    error = _tried(connection, rows, write) if rows.num_rows else None
    if error is None:
        return
    if rows.num_rows == 1:
        yield rows, error
        return
    half = rows.num_rows // 2
    yield from _parts(connection, rows.slice(0, half), write)
    yield from _parts(connection, rows.slice(half), write)


def _tried(connection: Connection[Any], rows: pa.Table, write: Try) -> psycopg.Error | None:
    """Write the rows, or none of them and say why."""
    try:
        with connection.transaction():  # a savepoint, since the batch's own has begun
            write(rows)
    except OF_A_VALUE as error:
        return error
    return None


def _column(connection: Connection[Any], row: pa.Table, error: psycopg.Error, copy: Try) -> str | None:
    """The column that the error is about: what it says of it depends on the server's language, so types are tried."""
    told = error.diag
    if told.column_name is not None:
        return told.column_name
    if told.constraint_name is not None and told.table_name is not None:
        return _of_constraint(connection, told, row.column_names)
    alone = (name for name in row.column_names if _tried(connection, row.select([name]), copy) is not None)
    return next(alone, None)


def _of_constraint(connection: Connection[Any], told: psycopg.errors.Diagnostic, names: Sequence[str]) -> str | None:
    found = connection.execute(
        "select attname from pg_constraint join pg_class on pg_class.oid = conrelid join pg_namespace on pg_namespace.oid = "
        "relnamespace join pg_attribute on attrelid = conrelid and attnum = any(conkey) "
        "where nspname = %s and relname = %s and conname = %s order by attnum",
        (told.schema_name, told.table_name, told.constraint_name),
    ).fetchall()
    return ", ".join(name for (name,) in found if name in names) or None


def _reason(error: psycopg.Error) -> str:
    """What PostgreSQL says, without what it quotes of the whole row."""
    said = [error.diag.message_primary, error.diag.message_detail if isinstance(error, psycopg.DataError) else None]
    return _shortened(": ".join(" ".join(text.split()) for text in said if text), 3 * _SHOWN)


def _beginning(value: Any) -> str:
    return _shortened(repr(value), _SHOWN)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"
