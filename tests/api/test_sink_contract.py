"""The tests that users have for their sinks: one that keeps its promises, and some that break one each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from fkjoin.sinks import BatchId
from fkjoin.testing import SinkContract
from tests.support.examples import module_of

Sqlite: Any = module_of("sqlite", "sqlite_sink").Sqlite


class OfSqlite(SinkContract):
    kind: Any = Sqlite

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.at = tmp_path / "db"

    def make_sink(self, into: str) -> Any:
        return self.kind(self.at, into)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.at)) as db:
            found = db.execute(f'select * from "{into}"')
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]


class TestSqlite(OfSqlite):
    types: ClassVar[list[pa.DataType]] = [kind for kind in SinkContract.types if not pa.types.is_boolean(kind)]


def test_booleans_are_whole_numbers_there(tmp_path: Path) -> None:
    class Booleans(OfSqlite):
        types: ClassVar[list[pa.DataType]] = [pa.bool_()]

        def read_rows(self, into: str) -> list[dict[str, Any]]:
            rows = super().read_rows(into)
            return [{**row, "value": None if row["value"] is None else bool(row["value"])} for row in rows]

    contract = Booleans()
    contract.at = tmp_path / "db"
    contract.test_each_type_comes_back_or_is_refused()


class Forgets(Sqlite):
    def has(self, batch: BatchId, last: BatchId | None) -> bool:
        return False


class TakesOlder(Sqlite):
    def has(self, batch: BatchId, last: BatchId | None) -> bool:
        return last is not None and last.number >= batch.number


class OneQuery(Sqlite):
    def last_batch(self, query: str) -> Any:
        with self.transaction() as db:
            row = db.execute("select * from fkjoin_batches").fetchone()
            return row and BatchId(*row)


class NoTransaction(Sqlite):
    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with closing(sqlite3.connect(self.database, isolation_level=None)) as db:
            db.execute("create table if not exists fkjoin_batches (query primary key, number, began_ms)")
            yield db


class KeepsDeleted(Sqlite):
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        super().apply(batch, upserts, deletes.slice(0, 0))


class Trims(Sqlite):
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        texts = [
            pa.array([None if text is None else text.strip() for text in column.to_pylist()], pa.string())
            if pa.types.is_string(column.type)
            else column
            for column in upserts.columns
        ]
        super().apply(batch, pa.table(texts, upserts.column_names), deletes)


class Connected(Sqlite):
    def prepare(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        super().prepare(schema, key)
        self.connection = sqlite3.connect(self.database)


class MakesAnew(Sqlite):
    def prepare(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        with closing(sqlite3.connect(self.database, isolation_level=None)) as db:
            db.execute(f'drop table if exists "{self.into}"')
        super().prepare(schema, key)


class MakesOnCheck(Sqlite):
    def examine(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self.prepare(schema, key)


BROKEN = {
    Forgets: "test_a_batch_that_is_repeated_is_left_out",
    TakesOlder: "test_another_batch_of_a_number_and_an_earlier_one_are_refused",
    OneQuery: "test_the_last_batch_of_each_query_is_remembered",
    NoTransaction: "test_a_batch_that_is_cut_off_is_there_or_not",
    KeepsDeleted: "test_rows_come_change_and_go",
    Trims: "test_each_type_comes_back_or_is_refused",
    Connected: "test_a_prepared_sink_can_be_sent",
    MakesAnew: "test_a_start_leaves_rows_and_a_place_without_the_columns_is_refused",
    MakesOnCheck: "test_a_check_makes_nothing",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_promise_that_is_broken_is_found(kind: Any, tmp_path: Path) -> None:
    contract = OfSqlite()
    contract.kind, contract.at, contract.types = kind, tmp_path / "db", [pa.string()]  # type: ignore[misc]
    with pytest.raises(Exception, match=r"found|cannot pickle|no column"):
        getattr(contract, BROKEN[kind])()
