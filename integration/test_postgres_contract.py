"""PostgreSQL tables, through the tests that users have for their own sinks."""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from fkjoin.sinks import Postgres
from fkjoin.testing import SinkContract
from tests.support.sampling import EVERY


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a batch has values of the type as they are; of others Spark makes texts (test_postgres_types.py)."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind))


@pytest.mark.faults
class TestPostgres(SinkContract):
    every = 1 if EVERY else 9
    types: ClassVar[list[pa.DataType]] = [kind for kind in SinkContract.types if is_plain(kind)]

    @pytest.fixture(autouse=True)
    def place(self, dsn: str) -> None:
        self.dsn = dsn

    def make_sink(self, into: str) -> Postgres:
        return Postgres(f"shop.{into}", self.dsn)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            connection.execute("set time zone 'UTC'")
            return connection.execute(SQL("select * from {}").format(Identifier("shop", into))).fetchall()

    def drop(self, into: str) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute(SQL("drop table {}").format(Identifier("shop", into)))
