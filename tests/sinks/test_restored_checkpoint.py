"""A checkpoint set back to a backup: each sink that remembers batches is set back with it, or the start is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fkjoin import Table, TopologyError
from fkjoin.analysis.written import ABOUT
from fkjoin.checkpoint.files import moved
from fkjoin.cli import main as cli
from fkjoin.errors import FkJoinError
from fkjoin.jobs import runner
from fkjoin.sinks import Delta, Parquet, parquet_folders
from fkjoin.sinks.restored import require_spark_at
from tests.support.orders import CUSTOMER, ORDER, History, batch_join
from tests.support.queries import write_lines
from tests.support.sampling import sampled
from tests.support.sessions import small
from tests.support.sinks import Backup, Memory, delta, finished, joined, there

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}
SINKS: list[Any] = ["parquet", "delta"]


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)


def run(spark: SparkSession, folder: Path, *kinds: str, **more: Any) -> None:
    """Run the join on all input into ``folder/parquet``, ``folder/delta`` or both."""
    table, about = joined(spark, folder), {"checkpoint": folder / "ck", "trigger": NOW, **more}
    made = {"parquet": Parquet, "delta": Delta}
    if len(kinds) > 1:
        finished(table.to(*(made[kind](folder / kind) for kind in kinds), **about))
    else:
        (kind,) = kinds
        finished(getattr(table, f"to_{kind}")(folder / kind, **about))


@pytest.mark.faults
@pytest.mark.parametrize("kinds", sampled([["parquet"], ["delta"], SINKS], [SINKS]), ids=" and ".join)
def test_after_a_restore_a_sink_is_refused_or_set_back_and_then_is_the_batch_join(
    spark: SparkSession, tmp_path: Path, kinds: list[str]
) -> None:
    """A sample tries both sinks together; for each alone see integration/test_sink_faults.py."""
    history = History(tmp_path)
    for _ in range(2):
        history.write(60)
        run(spark, tmp_path, *kinds)
    backup = Backup(tmp_path / "ck")
    for _ in range(2):
        history.write(60)
        run(spark, tmp_path, *kinds)
    backup.restore()
    history.write(60)
    for more in ({}, {"on_restore": "fail"}):
        says = rf"checkpoint: .*ck was set back: it is at batch 1, and {kinds[0]} .* has batch 3 .*on_restore=\"set-back\""
        with pytest.raises(FkJoinError, match=says):
            run(spark, tmp_path, *kinds, **more)
    for _ in range(2):  # the second is set back to nothing: it goes on
        run(spark, tmp_path, *kinds, on_restore="set-back")
        for kind in kinds:
            assert there(spark, tmp_path, kind) == batch_join(history)
        history.write(60)


def test_a_sink_that_is_ended_amid_being_set_back_is_set_back_by_the_next_start(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet moves folder by folder, and the Delta table comes after it."""
    history = History(tmp_path)
    history.write(60)
    run(spark, tmp_path, *SINKS)
    backup = Backup(tmp_path / "ck")
    for _ in range(3):
        history.write(60)
        run(spark, tmp_path, *SINKS)
    backup.restore()
    moves = 0

    def dies(*given: Any) -> bool:
        nonlocal moves
        moves += 1
        if moves == 3:
            raise KeyboardInterrupt
        return moved(*given)

    monkeypatch.setattr(parquet_folders, "moved", dies)
    with pytest.raises(KeyboardInterrupt):
        run(spark, tmp_path, *SINKS, on_restore="set-back")
    monkeypatch.undo()
    with pytest.raises(FkJoinError, match=r"it is at batch 0, and parquet .* has batch 1 of its query"):
        run(spark, tmp_path, *SINKS)
    run(spark, tmp_path, *SINKS, on_restore="set-back")
    for kind in SINKS:
        assert there(spark, tmp_path, kind) == batch_join(history)
    aside = sorted(path.name for path in (tmp_path / "parquet" / "_set-aside").iterdir())
    assert [name[:15] for name in aside] == ["batch=00000001-", "batch=00000002-", "batch=00000003-"]


def test_the_checkpoint_that_a_backup_replaced_cannot_be_put_back_under_parquet(spark: SparkSession, tmp_path: Path) -> None:
    """Two batches have one number: Delta has both, and files of one have been moved aside.  The way on is tried.

    The folder is as an older release leaves it, since that did not note set-backs.
    """
    history = History(tmp_path)
    history.write(60)
    run(spark, tmp_path, *SINKS)
    backup = Backup(tmp_path / "ck")
    history.write(60)
    run(spark, tmp_path, *SINKS)
    replaced = Backup(tmp_path / "ck", "replaced")
    backup.restore()
    history.write(60)
    run(spark, tmp_path, *SINKS, on_restore="set-back")
    about = tmp_path / "parquet" / ABOUT
    about.write_text(json.dumps({name: said for name, said in json.loads(about.read_text()).items() if name != "went_back"}))
    replaced.restore()
    says = r"it is at batch 1, and parquet .* has batch 1 of its query, which is another than the checkpoint's\. The sink would"
    with pytest.raises(FkJoinError, match=says):
        run(spark, tmp_path, *SINKS)
    written = there(spark, tmp_path, "parquet")
    says = r"on_restore: parquet .* cannot be set back to batch 1 of checkpoint .*batch=00000001-.* comes from another run"
    with pytest.raises(
        FkJoinError, match=rf"{says} of the query than the checkpoint\. Start with a new checkpoint and an empty target"
    ):
        run(spark, tmp_path, *SINKS, on_restore="set-back")
    assert there(spark, tmp_path, "parquet") == written == delta(tmp_path / "delta")
    for gone in ("ck", *SINKS):
        shutil.rmtree(tmp_path / gone)
    run(spark, tmp_path, *SINKS)
    for kind in SINKS:
        assert there(spark, tmp_path, kind) == batch_join(history)


@pytest.mark.parametrize("kinds", [["parquet"], SINKS], ids=" and ".join)
def test_a_target_that_was_dropped_between_two_runs_is_refused_and_restored_goes_on(
    spark: SparkSession, tmp_path: Path, kinds: list[str]
) -> None:
    """The first batch has no rows, so that no sink remembers it."""
    joined(spark, tmp_path)  # makes the folders
    write_lines(tmp_path / "customers", "0", [{"customer_id": "c", "region": "north", "lsn": 1, "op": "u"}])
    for number in range(3):
        run(spark, tmp_path, *kinds)
        order = {"order_id": f"o{number}", "customer_id": "c", "amount": 1.0, "items": 1, "lsn": number, "op": "u"}
        write_lines(tmp_path / "orders", str(number), [order])
    gone = tmp_path / kinds[-1]
    gone.rename(tmp_path / "aside")
    for more in ({}, {"on_restore": "set-back"}):
        says = (
            rf"ck is at batch 2, and {kinds[-1]} .* is not there: made anew it would lack the rows from before\. Restore it, or"
        )
        with pytest.raises(FkJoinError, match=says):
            run(spark, tmp_path, *kinds, **more)
    assert not gone.exists()
    (tmp_path / "aside").rename(gone)
    run(spark, tmp_path, *kinds)
    for kind in kinds:
        assert sorted(there(spark, tmp_path, kind)) == ["o0", "o1", "o2"]


def test_what_is_wrong_with_the_argument_is_said(spark: SparkSession, tmp_path: Path) -> None:
    History(tmp_path).write(10)
    with pytest.raises(TopologyError, match=r"on_restore: 'set_back' is none of 'fail', 'set-back'"):
        run(spark, tmp_path, "parquet", on_restore="set_back")
    assert not (tmp_path / "ck").exists()


def test_a_row_that_came_and_went_since_the_backup_is_not_sent_again(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that were sent stay sent, so after a restore a topic may have rows that the table does not have."""
    table = joined(spark, tmp_path)
    write_lines(tmp_path / "customers", "0", [{"customer_id": "c", "region": "north", "lsn": 1, "op": "u"}])
    sent = Memory()
    about: Any = {"checkpoint": tmp_path / "ck", "trigger": NOW}
    finished(table.to(sent, **about))
    backup = Backup(tmp_path / "ck")
    order = {"order_id": "o", "customer_id": "c", "amount": 1.0, "items": 1}
    write_lines(tmp_path / "orders", "1", [{**order, "lsn": 2, "op": "u"}])
    finished(table.to(sent, **about))
    assert len(sent.taken[1]) == 1
    backup.restore()
    write_lines(tmp_path / "orders", "2", [{**order, "lsn": 3, "op": "d"}])
    again = Memory()
    finished(table.to(again, **about))
    assert again.taken == {1: []}


def test_a_folder_of_sparks_own_sink_that_is_ahead_is_named(spark: SparkSession, tmp_path: Path) -> None:
    History(tmp_path).write(30)
    table = joined(spark, tmp_path)
    writer = table.changes.writeStream.format("json").option("checkpointLocation", str(tmp_path / "ck")).trigger(**NOW)
    finished(writer.start(str(tmp_path / "out")))
    require_spark_at(spark, str(tmp_path / "ck"), str(tmp_path / "out"))
    says = r"ck-new is at its beginning, and .*out has batch 0 already, .*: start with a new checkpoint and an empty path"
    with pytest.raises(FkJoinError, match=says):
        require_spark_at(spark, str(tmp_path / "ck-new"), str(tmp_path / "out"))
    require_spark_at(spark, str(tmp_path / "ck-new"), str(tmp_path / "empty"))
    (tmp_path / "out" / "_spark_metadata" / "9.compact").touch()
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and .*out has batch 9 already"):
        require_spark_at(spark, str(tmp_path / "ck"), str(tmp_path / "out"))


def test_who_has_read_what_was_set_aside_is_refused_and_who_has_not_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    def read(name: str) -> Table:
        table = Table.from_fkjoin(spark, tmp_path / "parquet").materialize("kept")
        finished(table.to_delta(tmp_path / name, checkpoint=tmp_path / f"{name}-ck", trigger=NOW))
        return table

    history = History(tmp_path)
    history.write(60)
    run(spark, tmp_path, "parquet")
    table = read("behind")
    backup = Backup(tmp_path / "ck")
    history.write(60)
    run(spark, tmp_path, "parquet")
    read("reader")
    running = table.to_delta(tmp_path / "running", checkpoint=tmp_path / "running-ck")
    running.processAllAvailable()
    backup.restore()
    history.write(60)
    run(spark, tmp_path, "parquet", on_restore="set-back")
    with pytest.raises(
        StreamingQueryException, match=r"batch=00000001-.*\.1, of another .* or its checkpoint was set back: start"
    ):
        running.awaitTermination()
    for name in ("reader", "running"):
        says = rf"checkpoint .*{name}-ck has read batches from it that are in _set-aside now: start this query, too, with a new"
        with pytest.raises(FkJoinError, match=says):
            read(name)
        shutil.rmtree(tmp_path / name)
        shutil.rmtree(tmp_path / f"{name}-ck")
    for name in ("reader", "running", "behind"):
        read(name)
        assert delta(tmp_path / name) == batch_join(history)


def test_fkjoin_run_refuses_and_sets_back(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f"""
        name = "job"
        checkpoint = "{tmp_path}/job"
        trigger = "available-now"
        [tables.orders]
        path = "{tmp_path}/orders"
        key = "order_id"
        version = "lsn"
        deleted = "op = 'd'"
        schema = "{ORDER}"
        [tables.customers]
        path = "{tmp_path}/customers"
        key = "customer_id"
        version = "lsn"
        deleted = "op = 'd'"
        schema = "{CUSTOMER}"
        [joins.joined]
        left = "orders"
        right = "customers"
        extractor = "customer_id"
        joiner = ["left.items", "right.region"]
        [sinks.one]
        table = "joined"
        path = "{tmp_path}/parquet"
        [sinks.two]
        table = "joined"
        path = "{tmp_path}/delta"
        format = "delta"
    """)
    monkeypatch.setattr(runner, "job_session", lambda spec: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)

    def fkjoin(*options: str) -> None:
        command = ["run", str(file), "--spark-log", str(tmp_path / "spark.log"), *options]
        CliRunner().invoke(cli.app, command, catch_exceptions=False)

    history = History(tmp_path)
    history.write(60)
    fkjoin()
    backup = Backup(tmp_path / "job")
    history.write(60)
    fkjoin()
    backup.restore()
    history.write(60)
    says = r"job/sinks-joined was set back: it is at batch 0, and parquet .* has batch 1 .*fkjoin run --set-back"
    with pytest.raises(FkJoinError, match=says):
        fkjoin()
    fkjoin("--set-back")
    for kind in SINKS:
        assert there(spark, tmp_path, kind) == batch_join(history)
