"""The way back of a Delta table to a batch that a checkpoint has: through its history, once, and not over others' work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from fkjoin.columns import spark_schema
from fkjoin.errors import FkJoinError
from fkjoin.sinks import delta_log
from fkjoin.sinks.delta import Delta
from fkjoin.spark.batch_log import Mark

IDS = pa.schema([("id", pa.int64())])


class Log:
    """What a checkpoint knows: when each batch began, from the number 0."""

    def __init__(self, *began_ms: int) -> None:
        self.began_ms, self.last = began_ms, len(began_ms) - 1

    def has(self, mark: Mark) -> bool:
        return mark.number <= self.last and self.began_ms[mark.number] == mark.began_ms


class Target:
    """A table with one row for each batch: its number and when it began, as one number."""

    def __init__(self, path: Path) -> None:
        self.path, self.sink = path, Delta(str(path))
        self.sink.prepare(spark_schema(IDS), ("id",))

    def batch(self, number: int, began_ms: int, query: str = "q") -> int:
        row = 1000 * number + began_ms
        self.sink.apply(query, number, pa.table({"id": [row]}), pa.table({"id": pa.array([], pa.int64())}), began_ms)
        return row

    def back(self, log: Any, *, times: int = 1) -> None:
        for _ in range(times):
            delta_log.way_back(DeltaTable(self.path), "q", log)()

    @property
    def rows(self) -> list[int]:
        return sorted(DeltaTable(self.path).to_pyarrow_table()["id"].to_pylist())

    @property
    def last(self) -> Mark | None:
        return delta_log.last(DeltaTable(self.path), "q")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path / "table")


def test_a_table_goes_back_to_the_checkpoints_batch_however_often_it_is_told(target: Target) -> None:
    rows = [target.batch(number, 10 + number) for number in range(5)]
    target.back(Log(10, 11, 12), times=2)
    assert target.rows == rows[:3]
    assert target.last == Mark(2, 12)
    rows = [*rows[:3], target.batch(3, 23), target.batch(4, 24)]
    assert target.rows == rows
    target.back(Log(10, 11, 12, 23))
    assert target.rows == rows[:4]


def test_batches_without_rows_are_passed_over(target: Target) -> None:
    row = target.batch(0, 10)
    target.batch(4, 14)
    target.back(Log(10, 11, 12))
    assert target.rows == [row]
    assert target.last == Mark(0, 10)


def test_a_checkpoint_from_before_the_first_batch_makes_it_empty(target: Target) -> None:
    target.batch(1, 11)
    target.back(Log(10), times=2)
    assert target.rows == []
    assert target.last is None
    row = target.batch(1, 21)
    assert target.rows == [row]
    target.back(Log(10))
    assert target.rows == []


def test_the_checkpoint_that_was_replaced_by_a_backup_is_put_back(target: Target) -> None:
    """Batches of one number differ by when they began, and the table goes back to what was set back."""
    first = [target.batch(number, 10 + number) for number in range(4)]
    target.back(Log(10, 11))
    second = [target.batch(number, 20 + number) for number in range(2, 6)]
    assert target.rows == [*first[:2], *second]
    target.back(Log(10, 11, 12, 13))
    assert target.rows == first
    target.back(Log(10, 11, 12))
    assert target.rows == first[:3]


def test_upkeep_is_no_hindrance_and_what_others_wrote_is_not_undone(target: Target) -> None:
    rows = [target.batch(number, 10 + number) for number in range(3)]
    DeltaTable(target.path).optimize.compact()
    target.back(Log(10, 11))
    assert target.rows == rows[:2]
    rows = [*rows[:2], target.batch(2, 22)]
    write_deltalake(str(target.path), pa.table({"id": [77]}), mode="append")
    with pytest.raises(FkJoinError, match=r"its version 7 \(WRITE\) is none of this query's, and would be undone"):
        target.back(Log(10, 11))
    assert target.rows == sorted([77, *rows])


def test_a_batch_that_is_no_longer_there_is_named(target: Target) -> None:
    with pytest.raises(FkJoinError, match="no version of its history is that of a batch that the checkpoint has"):
        target.back(Log(10))  # as of a release before, which did not say whose a commit is
    for number in range(2):
        target.batch(number, 10 + number)
    DeltaTable(target.path).optimize.compact()
    for _ in range(2):
        DeltaTable(target.path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    go_back = delta_log.way_back(DeltaTable(target.path), "q", Log(10))  # type: ignore[arg-type]
    with pytest.raises(FkJoinError, match=r"cannot be restored to version 1, that of batch 0 .*vacuumed, start with a new"):
        go_back()
