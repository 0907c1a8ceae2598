"""The way back of a Delta table to a batch that a checkpoint has: through its history, once, and not over others' work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from fkjoin.checkpoint.batch_log import Mark
from fkjoin.errors import FkJoinError
from fkjoin.sinks import delta_log
from fkjoin.sinks.delta import Delta
from fkjoin.sinks.restored import SetBack
from fkjoin.sinks.table_sink import BatchId

IDS = pa.schema([("id", pa.int64())])


NONE = pa.table({"id": pa.array([], pa.int64())})


class Log:
    """A checkpoint's log: when each batch began, from the number 0; None where Spark has deleted that."""

    def __init__(self, *began_ms: int | None) -> None:
        self.began_ms, self.last = began_ms, len(began_ms) - 1

    def mark(self, number: int) -> Mark:
        return Mark(number, self.began_ms[number])

    def has(self, mark: Mark) -> bool:
        return mark.number <= self.last and mark.is_same(self.mark(mark.number))


class Target:
    """A table with one row for each batch: its number and when it began, as one number."""

    def __init__(self, path: Path) -> None:
        self.path, self.sink = path, Delta(str(path))
        self.set_backs = 0
        self.known: dict[str, int | None] = {}
        self.sink.prepare(IDS, ("id",))

    def batch(self, number: int, began_ms: int, query: str = "q") -> int:
        row = 1000 * number + began_ms
        if query not in self.known:  # its first batch since it started
            self.known[query] = self.sink.last_set_back(cast(Any, None), query)
        self.sink.apply(BatchId(query, number, began_ms, self.known[query]), pa.table({"id": [row]}), NONE)
        return row

    def batch_of_an_older_release(self, number: int) -> int:
        """A commit that has the batch's number as a transaction, and nothing else."""
        row, said = 1000 * number, CommitProperties(app_transactions=[Transaction("q", number)])
        write_deltalake(str(self.path), pa.table({"id": [row]}), mode="append", commit_properties=said)
        return row

    def way_back(self, log: Any, known: int | None = None) -> Callable[[], None]:
        self.set_backs += 1
        self.known = {}  # a query starts
        return self.sink.way_back(cast(Any, None), "q", log, SetBack(self.set_backs, known))

    def back(self, log: Any, *, times: int = 1, known: int | None = None) -> None:
        """Set the table back for a checkpoint that knows of a set-back, or of none."""
        for _ in range(times):
            self.way_back(log, known)()

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
    with pytest.raises(FkJoinError, match=r"its version 7 \(WRITE\) comes from another writer, and would be undone"):
        target.back(Log(10, 11))
    assert target.rows == sorted([77, *rows])


def test_a_batch_that_is_no_longer_there_is_named(target: Target) -> None:
    with pytest.raises(FkJoinError, match="no version of its history is that of a batch that the checkpoint has"):
        target.back(Log(10))  # as of an older release, which did not say whose a commit is
    for number in range(2):
        target.batch(number, 10 + number)
    DeltaTable(target.path).optimize.compact()
    for _ in range(2):
        DeltaTable(target.path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    go_back = target.way_back(Log(10))
    gone = "cannot be set back: version 1, that of batch 0 of the checkpoint, lacks files, .* vacuumed. Start with a new"
    with pytest.raises(FkJoinError, match=gone):
        go_back()
    empty = Target(target.path.with_name("empty"))
    row = empty.batch(0, 30, "of the new checkpoint")
    assert empty.rows == [row]


def test_batches_of_an_older_release_before_the_first_known_one_are_not_taken_for_nothing(target: Target) -> None:
    rows = [target.batch_of_an_older_release(number) for number in range(4)]
    rows.append(target.batch(4, 14))
    with pytest.raises(FkJoinError, match="no version of its history is that of a batch that the checkpoint has"):
        target.back(Log(10, 11))
    assert target.rows == rows
    assert target.last == Mark(4, 14)


def test_a_run_that_was_set_back_is_not_restored_where_the_checkpoint_no_longer_has_the_times(target: Target) -> None:
    first = [target.batch(number, 10 + number) for number in range(10)]
    target.back(Log(10, 11, 12))
    second = [target.batch(3, 103), target.batch(4, 104)]
    target.batch(301, 401)
    kept = [None] * 101 + [100 + number for number in range(101, 201)]
    target.back(Log(*kept), times=2, known=1)
    assert target.rows == [*first[:3], *second]
    assert target.last == Mark(4, 104)
    target.back(Log(10, 11, None))
    assert target.rows == first[:3]


def test_the_checkpoint_that_was_replaced_has_its_own_rows_though_it_no_longer_has_the_times(target: Target) -> None:
    """The table's batch of that checkpoint's last number is of the other copy."""
    first = [target.batch(number, 10 + number) for number in range(4)]
    target.back(Log(10, 11))
    second = [target.batch(number, 20 + number) for number in range(2, 4)]
    replaced, other = Log(None, None, None, None, 14), Log(None, None, None, None, 24)
    target.back(replaced)
    assert target.rows == first
    assert delta_log.last_set_back(DeltaTable(target.path), "q") == 2
    target.back(other, known=1)
    assert target.rows == [*first[:2], *second]


def test_a_query_that_stood_still_while_the_table_was_set_back_writes_nothing(target: Target) -> None:
    """Its next batch has a number that the table does not have any more."""
    rows = [target.batch(number, 10 + number) for number in range(3)]
    other = Target(target.path)
    other.back(Log(10))
    with pytest.raises(FkJoinError, match="^delta .* was set back since this query began, and another query goes on with it"):
        target.batch(3, 13)
    assert target.rows == rows[:1]
    assert other.batch(1, 21) in target.rows


def test_a_way_back_that_the_history_no_longer_has_is_not_guessed(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        target.batch(number, 10 + number)
    target.back(Log(10, 11))
    rows = [*target.rows, target.batch(2, 22)]
    history = DeltaTable.history
    monkeypatch.setattr(DeltaTable, "history", lambda table: history(table)[:1])
    with pytest.raises(FkJoinError, match="set back for another copy of the checkpoint, and its history no longer says when"):
        target.back(Log(10, 11, None, None))
    assert target.rows == rows
    target.back(Log(10, 11, 22), known=1)


def test_the_time_of_a_batch_is_not_that_of_a_later_one_of_an_older_release(target: Target) -> None:
    target.batch(0, 10)
    target.batch_of_an_older_release(1)
    assert target.last == Mark(1, None)
    target.batch(2, 12)
    assert target.last == Mark(2, 12)


@pytest.mark.parametrize("kind", [OSError, DeltaError])
@pytest.mark.parametrize("step", ["history", "restore"])
def test_an_outage_on_the_way_back_is_waited_for(
    target: Target, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], step: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [target.batch(number, 10 + number) for number in range(2)]
    works, away = getattr(DeltaTable, step), [2]

    def fails(table: DeltaTable, *given: Any, **named: Any) -> Any:
        if away[0]:
            away[0] -= 1
            raise kind("Generic S3 error: Error performing PUT http://x/y?X-Amz-Signature=CaNaRy17 - non-2xx status code: 503")
        return works(table, *given, **named)

    monkeypatch.setattr(DeltaTable, step, fails)
    target.back(Log(10))
    assert target.rows == rows[:1]
    assert away == [0]
    away[0], target.sink.retry_s = 1, 0
    target.batch(1, 21)
    with pytest.raises(FkJoinError, match="503 .*retry_s = 0.*Start the query again when the outage is over") as caught:
        target.back(Log(10))
    assert "CaNaRy17" not in f"{caught.value}{caplog.text}"
    assert "vacuum" not in str(caught.value)


def test_what_another_writes_between_the_look_and_the_way_back_is_not_undone(target: Target) -> None:
    rows = [target.batch(number, 10 + number) for number in range(2)]
    go_back = target.way_back(Log(10))
    write_deltalake(str(target.path), pa.table({"id": [77]}), mode="append")
    with pytest.raises(FkJoinError, match=r"^delta .* cannot be set back: its version 3 \(WRITE\) comes from another writer"):
        go_back()
    assert target.rows == sorted([77, *rows])


def test_a_commit_that_comes_first_is_looked_at_again(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [target.batch(number, 10 + number) for number in range(2)]
    restore, others = DeltaTable.restore, [lambda: DeltaTable(target.path).optimize.compact()]

    def late(table: DeltaTable, *given: Any, **named: Any) -> Any:
        while others:
            others.pop()()
        return restore(table, *given, **named)

    monkeypatch.setattr(DeltaTable, "restore", late)
    target.back(Log(10))
    assert target.rows == rows[:1]
    assert target.last == Mark(0, 10)
