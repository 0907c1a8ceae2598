"""The tests that users have for their sinks: one that keeps its promises, and some that break one each."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from fkjoin.errors import FkJoinError
from fkjoin.plan.base import Node
from fkjoin.sinks import BatchId
from fkjoin.testing import SinkContract
from tests.support.documents import blocks
from tests.support.own_sink import Restorable, Sqlite, rows_of, sqlite_sink
from tests.support.places import ROOT

PAGE = list(blocks(ROOT / "docs/sinks.md"))


def from_the_page() -> Any:
    """The class of tests that the page shows."""
    (block,) = (block for block in PAGE if "class TestSqlite" in block.text)
    found: dict[str, Any] = {"__name__": __name__, "Sqlite": Sqlite}
    exec(block.text, found)
    return found["TestSqlite"]


TestSqlite: Any = from_the_page()


def test_the_page_shows_lines_of_the_examples_sink() -> None:
    source = (ROOT / "examples/sqlite/sqlite_sink.py").read_text()
    (block,) = (block for block in PAGE if "class Sqlite" in block.text)
    parts = re.split(r"\n\n| *\.\.\.  # .*\n", block.text)
    assert [part for part in parts if part.strip("\n") not in source] == []
    assert re.findall(r"def (\w+)", block.text) == ["prepare", "last_batch", "apply"]
    assert len(source.splitlines()) < 64


class OfSqlite(SinkContract):
    kind: Any = Sqlite
    at = Path()

    def make_sink(self, into: str) -> Any:
        return self.kind(self.at, into)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return rows_of(self.at, into)

    def drop(self, into: str) -> None:
        with closing(sqlite3.connect(self.at)) as db:
            db.execute(f'drop table "{into}"')


def test_a_sink_with_replace_is_restored(tmp_path: Path) -> None:
    contract = OfSqlite()
    contract.kind, contract.at = Restorable, tmp_path / "db"
    contract.test_a_sink_that_is_restored_goes_on_from_there()


class Forgets(Sqlite):
    def has(self, batch: BatchId, last: BatchId | None) -> bool:
        return False


class TakesOlder(Sqlite):
    def has(self, batch: BatchId, last: BatchId | None) -> bool:
        return last is not None and last.number >= batch.number


class OneQuery(Sqlite):
    def last_batch(self, query: str) -> Any:
        with self.transaction() as db:
            row = db.execute("select query, number, began_ms from fkjoin_batches").fetchone()
            return row and BatchId(*row)


class Skips(Sqlite):
    def has(self, batch: BatchId, last: BatchId | None) -> bool:
        return last is not None and last.mark == batch.mark


class ForgetsEmptyBatches(Sqlite):
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        if len(upserts) or len(deletes):
            super().apply(batch, upserts, deletes)


class NoTransaction(Sqlite):
    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with closing(sqlite3.connect(self.database, isolation_level=None)) as db:
            db.execute(sqlite_sink.BATCHES)
            yield db


class NoTransactionBack(NoTransaction, Restorable):
    """Is wrong when a restore is cut off."""


class KeepsLater(Restorable):
    def replace(self, batch: BatchId, rows: pa.Table) -> None:
        """Leave the rows that came later."""
        with self.transaction() as db:
            mark = batch.query, self.into, batch.number, batch.began_ms
            db.execute("replace into fkjoin_batches values (?, ?, ?, ?)", mark)


class RemembersWhatIsGone(Sqlite):
    def last_in(self, db: Any, query: str) -> Any:
        row = db.execute("select number, began_ms from fkjoin_batches where query = ?", (query,)).fetchone()
        return row and BatchId(query, *row)


class KeepsDeleted(Sqlite):
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        super().apply(batch, upserts, deletes.slice(0, 0))


class Trims(Sqlite):
    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        trimmed = pc.utf8_trim_whitespace(upserts["value"])
        super().apply(batch, upserts.set_column(1, "value", trimmed), deletes)


class OtherColumns(OfSqlite):
    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return [{"count": len(super().read_rows(into))}]


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
    TakesOlder: "test_a_batch_that_does_not_follow_the_last_one_is_refused",
    Skips: "test_a_batch_that_does_not_follow_the_last_one_is_refused",
    ForgetsEmptyBatches: "test_rows_come_change_and_go",
    OneQuery: "test_the_last_batch_of_each_query_is_remembered",
    NoTransaction: "test_a_batch_that_is_cut_off_is_there_or_not",
    NoTransactionBack: "test_a_sink_that_is_restored_goes_on_from_there",
    KeepsLater: "test_a_sink_that_is_restored_goes_on_from_there",
    RemembersWhatIsGone: "test_a_target_that_is_gone_has_no_batch",
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


def test_a_query_that_had_no_batch_since_its_start_writes_nothing_after_a_restore(tmp_path: Path) -> None:
    """It knows which batch its first one follows."""
    kinds = StructType().add("id", StringType()).add("n", LongType())
    table: Any = SimpleNamespace(name="it", key=("id",), rest=("n",), key_type=kinds[:1], row_type=kinds[1:], node=Node("it"))
    rows = pa.table({"id": ["a"], "n": [1], "_operation": ["update"]})

    def batch(began_ms: int, previous_ms: int | None) -> Any:
        changes = SimpleNamespace(toArrow=lambda: rows)
        return SimpleNamespace(changes=changes, began_ms=began_ms, previous_ms=previous_ms)

    sink = Restorable(tmp_path / "db", "it")
    write = sink.begin(table)
    write(batch(100, None), "q", 0)
    write(batch(200, 100), "q", 1)
    idle = Restorable(tmp_path / "db", "it").begin(table)
    sink.replace(BatchId("q", 0, 100), rows.select(["id", "n"]))
    says = "^sqlite it has batch 0 of the query, which is about to write batch 2: the query runs"
    with pytest.raises(FkJoinError, match=says):
        idle(batch(300, 200), "q", 2)
    assert rows_of(tmp_path / "db", "it") == [{"id": "a", "n": 1}]
    idle(batch(300, 100), "q", 1)


def test_rows_without_the_columns_are_told(tmp_path: Path) -> None:
    contract = OtherColumns()
    contract.at, contract.types = tmp_path / "db", [pa.string()]  # type: ignore[misc]
    with pytest.raises(AssertionError, match="read_rows must return dicts with the columns .*; a row lacks "):
        contract.test_rows_come_change_and_go()
