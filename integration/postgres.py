"""Batches for PostgreSQL, rows of a table there, and its server."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from fkjoin.sinks.postgres import Postgres
from integration.conftest import DOCKER, prepared
from integration.machine import free_port


def select(dsn: str, query: str = "select * from shop.it order by 1") -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        connection.execute("set time zone 'UTC'")
        return connection.execute(query).fetchall()  # type: ignore[call-overload,no-any-return]


def execute(dsn: str, *statements: Any) -> None:
    """Run the statements in one transaction."""
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement)


IDS = pa.schema([("id", pa.string())])
NUMBERS = IDS.append(pa.field("n", pa.int64()))


def sink(dsn: str, schema: pa.Schema = NUMBERS, types: str = "", **options: Any) -> Postgres:
    """A sink into ``shop.it`` that is prepared for the schema; with ``types``, the table is there before."""
    if types:
        execute(dsn, f"create table shop.it ({types})")
    made = Postgres("shop.it", dsn, **options)
    made.prepare(schema, ("id",))
    return made


def batch(**rows: int) -> pa.Table:
    return pa.table({"id": pa.array(list(rows), pa.string()), "n": pa.array(list(rows.values()), pa.int64())})


def gone(*keys: str) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.string())})


def it_waits(dsn: str) -> bool:
    """Tell whether a session waits for a lock of another."""
    return bool(select(dsn, "select 1 from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"))


def kept_rows(dsn: str) -> dict[str, Any]:
    return {key: tuple(rest) for key, *rest in select(dsn)}


def _run(program: str, *arguments: str) -> None:
    """Run a program of PostgreSQL, which does not run as root."""
    programs = prepared(str(DOCKER / "postgres.sh"))
    who = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    command = [*who, f"{programs}/{program}", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


def _start(folder: Path, port: int) -> None:
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    _run("pg_ctl", "-w", "-D", f"{folder}/data", "-l", f"{folder}/log", "-o", options, "start")


def _stop(folder: Path) -> None:
    _run("pg_ctl", "-w", "-D", f"{folder}/data", "-m", "immediate", "stop")


def serving() -> Iterator[str]:
    """The address of a server that serves until the end."""
    folder, port = Path(tempfile.mkdtemp(prefix="fkjoin-postgres-")), free_port()
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    _run("initdb", "-D", f"{folder}/data", "--auth=trust", "--username=postgres", "--no-sync")
    _start(folder, port)
    yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    _stop(folder)
    shutil.rmtree(folder)


@contextlib.contextmanager
def stopped(dsn: str) -> Iterator[None]:
    """Stop the server, and start it again at the end."""
    ((data,),) = select(dsn, "show data_directory")
    _stop(Path(data).parent)
    try:
        yield
    finally:
        _start(Path(data).parent, int(psycopg.conninfo.conninfo_to_dict(dsn)["port"]))
