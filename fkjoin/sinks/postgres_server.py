"""PostgreSQL's server: how it is reached, and which of its errors are of a value, and which a repetition may mend."""

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
"""``SQLSTATE`` of a row that a table cannot have, whatever the other rows are."""

_MENDED_CLASSES = ("08", "40", "53", "57", "58")
"""Classes of ``SQLSTATE``: connections, transactions rolled back, resources, an operator or a crash, the system."""
_MENDED = ("25006", "25P03", "55006", "55P03")
"""A server that only reads, as after a failover; a transaction that was idle for too long; something in use; a lock."""
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
"""Texts of errors while connecting, which have no ``SQLSTATE``; in other languages of the server they are repeated, too."""

_CONNECTION = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Settings without which a connection whose other end is gone lasts for hours; seconds, but ``tcp_user_timeout``."""


def settings_of(dsn: str) -> dict[str, Any]:
    """libpq's settings that the DSN says; ``TopologyError``, in which nothing of it stands, if it is none."""
    try:
        found = conninfo_to_dict(dsn)
    except psycopg.Error:
        found = None
    if found is None or _is_cut_wrongly(found, dsn):
        raise TopologyError(
            "postgres: the address cannot be read (it is not shown, since it may have a password): write "
            '"postgresql://USER@HOST:PORT/DATABASE" or "host=HOST dbname=DATABASE user=USER", in the first form with each of '
            "%, @, /, :, ?, # and blanks in a name or password as %25, %40, …; a password better comes from PGPASSWORD"
        )
    return found


def _is_cut_wrongly(found: dict[str, Any], dsn: str) -> bool:
    """Tell whether a part of a password may be in the place of a host, a port or a database, which errors name."""
    ports = str(found.get("port") or "0").replace(",", "")
    return not ports.isdecimal() or ("://" in dsn and any("@" in str(found.get(name, "")) for name in ("host", "dbname")))


def connect(settings: dict[str, Any]) -> Connection[Any]:
    """A connection, which notices when the server is gone."""
    chosen = {**_CONNECTION, **settings}
    if "PGCONNECT_TIMEOUT" in os.environ and "connect_timeout" not in settings:
        del chosen["connect_timeout"]
    return psycopg.connect(**chosen | {"client_encoding": "UTF8"})  # whatever that of the database


def mends(error: BaseException) -> bool:
    """Tell whether the same work may succeed later, unchanged."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:  # while connecting, or the connection is lost
        told = str(error).lower()
        if "failed to resolve host" in told or "could not translate host name" in told:
            return True  # the name of a host may have any of these words in it
        return isinstance(error, psycopg.OperationalError) and not any(refusal in told for refusal in _REFUSALS)
    return error.sqlstate in _MENDED or (error.sqlstate[:2] in _MENDED_CLASSES and error.sqlstate != _DROPPED)
