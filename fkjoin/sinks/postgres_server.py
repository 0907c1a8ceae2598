"""PostgreSQL's server: how it is reached, and which of its errors are of a value or pass."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

from fkjoin.errors import TopologyError

OF_A_VALUE = (
    psycopg.DataError,
    psycopg.errors.NotNullViolation,
    psycopg.errors.CheckViolation,  # of the table or a domain
    psycopg.errors.StatementTooComplex,  # JSON that is nested too deeply
    psycopg.errors.ProgramLimitExceeded,  # or too long; a key that is too long for an index
)
"""``SQLSTATE`` of a row that a table cannot store, whatever the other rows are."""

_MENDED_CLASSES = ("08", "40", "53", "57", "58")
"""Classes of ``SQLSTATE``: connections, transactions, resources, an operator or a crash, I/O."""
_MENDED = ("25006", "25P03", "55006", "55P03")
"""A server that only reads, as after a failover; a transaction idle for too long; use; a lock."""
_DROPPED = "57P04"
NO_PASSWORD = "no password supplied"
_REFUSALS = (
    "authentication failed",
    NO_PASSWORD,
    "pg_hba.conf",
    "does not exist",
    "permission denied",
    "not permitted to log in",
    "certificate",
    "does not support ssl",
    "invalid",
)
"""Texts of errors while connecting, which have no ``SQLSTATE``; in other languages they pass."""

_CONNECTION = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Settings without which a connection whose other end is gone lasts for hours.

They are seconds, but ``tcp_user_timeout``.
"""


def settings_of(dsn: str) -> dict[str, Any]:
    """libpq's settings of a DSN; ``TopologyError``, which shows none of it, if it is none."""
    try:
        settings = conninfo_to_dict(dsn)
    except psycopg.Error:
        settings = None
    if settings is None or _is_cut_wrongly(settings, dsn):
        raise TopologyError(
            "postgres: the address cannot be read (it is not shown, since it may contain a "
            'password): write "postgresql://USER@HOST:PORT/DATABASE" or "host=HOST dbname=DATABASE '
            'user=USER". In the first form, write each of %, @, /, :, ?, # and blanks in a name or '
            "password as %25, %40, …. Or leave the password out, and set PGPASSWORD"
        )
    return settings


def _is_cut_wrongly(settings: dict[str, Any], dsn: str) -> bool:
    """Tell whether host, port or database, which errors name, may have some of a password."""
    ports = str(settings.get("port") or "0").replace(",", "")
    if not ports.isdecimal():
        return True
    names = f"{settings.get('host', '')} {settings.get('dbname', '')}"
    return "://" in dsn and "@" in names


def connect(settings: dict[str, Any]) -> Connection[Any]:
    """A connection, which notices when the server is gone."""
    chosen = {**_CONNECTION, **settings}
    if "PGCONNECT_TIMEOUT" in os.environ and "connect_timeout" not in settings:
        del chosen["connect_timeout"]
    return psycopg.connect(**chosen | {"client_encoding": "UTF8"})  # not the database's


def mends(error: BaseException) -> bool:
    """Tell whether the same work may succeed later, unchanged."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:  # while connecting, or the connection is lost
        text = str(error).lower()
        if "failed to resolve host" in text or "could not translate host name" in text:
            return True  # the name of a host may have any of these words in it
        is_refused = any(refusal in text for refusal in _REFUSALS)
        return isinstance(error, psycopg.OperationalError) and not is_refused
    passes = error.sqlstate[:2] in _MENDED_CLASSES and error.sqlstate != _DROPPED
    return passes or error.sqlstate in _MENDED
