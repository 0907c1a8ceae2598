"""Columns of any name in PostgreSQL."""

from __future__ import annotations

import psycopg
import pyarrow as pa

from integration.test_postgres import dsn, select, server, target
from tests.test_names import KEY, NASTY

__all__ = ["dsn", "server"]


def test_columns_of_any_name_are_made_written_changed_and_deleted(dsn: str) -> None:
    schema = pa.schema([(name, pa.string()) for name in (KEY, *NASTY)])
    rows = [{KEY: key, **{name: f"{name} of {key}" for name in NASTY}} for key in ("a", "b")]
    given = pa.Table.from_pylist(rows, schema=schema)
    postgres = target(dsn, schema, KEY)
    postgres.apply("q", 0, given, given.select([KEY]).slice(0, 0))
    assert select(dsn, "select * from shop.it") == [tuple(row.values()) for row in rows]
    changed = pa.Table.from_pylist([{**rows[0], "a.b": "new"}], schema=schema)
    target(dsn, schema, KEY).apply("q", 1, changed, given.select([KEY]).slice(1))
    assert select(dsn, "select * from shop.it") == [tuple({**rows[0], "a.b": "new"}.values())]
    with psycopg.connect(dsn) as connection:
        found = connection.execute("select * from shop.it").description
    assert [column.name for column in found or ()] == [KEY, *NASTY]
