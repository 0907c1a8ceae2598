"""A batch for PostgreSQL, and what a table there has."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa

from fkjoin.sinks.postgres import Postgres
from fkjoin.spark.schemas import spark_schema


def select(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        connection.execute("set time zone 'UTC'")
        return connection.execute(query).fetchall()  # type: ignore[call-overload,no-any-return]


IDS = pa.schema([("id", pa.string())])
NUMBERS = IDS.append(pa.field("n", pa.int64()))


def target(dsn: str, schema: pa.Schema, *key: str) -> Postgres:
    made = Postgres("shop.it", dsn)
    made.prepare(spark_schema(schema), key)
    return made


def batch(**rows: int) -> pa.Table:
    return pa.table({"id": pa.array(list(rows), pa.string()), "n": pa.array(list(rows.values()), pa.int64())})


def gone(*keys: str) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.string())})
