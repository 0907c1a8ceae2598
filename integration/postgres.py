"""Batches for PostgreSQL, rows of a table there, and its server."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from fkjoin.sinks.postgres import Postgres
from integration.conftest import DOCKER, prepared


def select(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        connection.execute("set time zone 'UTC'")
        return connection.execute(query).fetchall()  # type: ignore[call-overload,no-any-return]


IDS = pa.schema([("id", pa.string())])
NUMBERS = IDS.append(pa.field("n", pa.int64()))


def target(dsn: str, schema: pa.Schema, *key: str) -> Postgres:
    made = Postgres("shop.it", dsn)
    made.prepare(schema, key)
    return made


def batch(**rows: int) -> pa.Table:
    return pa.table({"id": pa.array(list(rows), pa.string()), "n": pa.array(list(rows.values()), pa.int64())})


def gone(*keys: str) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.string())})


def it_waits(dsn: str) -> bool:
    """Tell whether a session waits for a lock of another."""
    return bool(select(dsn, "select 1 from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"))


def server(dsn: str, *command: str) -> None:
    """Run ``pg_ctl`` for the server at ``dsn`` or at a folder."""
    programs = prepared(str(DOCKER / "postgres.sh"))
    who = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*who, f"{programs}/pg_ctl", "-w", *command], check=True, stdout=subprocess.DEVNULL, cwd="/")


@contextlib.contextmanager
def stopped(dsn: str) -> Iterator[None]:
    """Stop the server, and start it again at the end."""
    ((folder,),) = select(dsn, "show data_directory")
    port = psycopg.conninfo.conninfo_to_dict(dsn)["port"]
    server(folder, "-D", folder, "-m", "immediate", "stop")
    try:
        yield
    finally:
        options = f"-p {port} -k {Path(folder).parent} -c listen_addresses=127.0.0.1 -c fsync=off"
        server(folder, "-D", folder, "-l", f"{Path(folder).parent}/log", "-o", options, "start")


def kept_rows(dsn: str) -> dict[str, Any]:
    return {key: tuple(rest) for key, *rest in select(dsn, "select * from shop.it")}
