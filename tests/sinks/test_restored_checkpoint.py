"""A checkpoint or a target that was restored from a backup: the start is refused in both directions, and restore mends it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fkjoin import Table, TopologyError
from fkjoin.checkpoint.files import moved
from fkjoin.cli import main as cli
from fkjoin.errors import FkJoinError
from fkjoin.jobs import runner
from fkjoin.sinks import Delta, Iceberg, Parquet, iceberg_catalog, parquet_folders
from fkjoin.sinks.ledger import require_spark_at
from tests.support.orders import CUSTOMER, ORDER, History, batch_join
from tests.support.own_sink import Restorable, Sqlite, rows_of
from tests.support.queries import write_lines
from tests.support.sampling import sampled
from tests.support.sessions import small
from tests.support.sinks import Backup, Memory, delta, finished, joined, lake, no_input, there

NOW = {"availableNow": True}
SINKS = {
    "parquet": lambda folder: Parquet(folder / "parquet"),
    "delta": lambda folder: Delta(folder / "delta"),
    "iceberg": lambda folder: Iceberg("shop.it", options=lake(folder)),
}
FILES = ["parquet", "delta"]


def remove(place: Path) -> None:
    """Remove a target, with what this process knows of a catalog in it."""
    shutil.rmtree(place)
    iceberg_catalog._loaded.cache_clear()


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)


def run(spark: SparkSession, folder: Path, *kinds: str, table: Table | None = None) -> None:
    """Run the join on all input, into sinks of these kinds."""
    table = joined(spark, folder) if table is None else table
    finished(table.to(*(SINKS[kind](folder) for kind in kinds), checkpoint=folder / "ck", trigger=NOW))


def restore(spark: SparkSession, folder: Path, *kinds: str, table: Table | None = None) -> list[str]:
    """Restore the sinks; the kinds of those that were rewritten."""
    table = joined(spark, folder) if table is None else table
    places = table.restore(*(SINKS[kind](folder) for kind in kinds), checkpoint=folder / "ck")
    return [place.split()[0] for place in places]


def kept(spark: SparkSession, folder: Path) -> Table:
    """The join, whose state has its rows."""
    return joined(spark, folder).materialize("kept")


@pytest.mark.faults
@pytest.mark.parametrize("kinds", sampled([["parquet"], ["delta"], FILES], [FILES]), ids=" and ".join)
def test_sinks_that_are_ahead_of_a_restored_checkpoint_are_refused_until_they_are_restored(
    spark: SparkSession, tmp_path: Path, kinds: list[str]
) -> None:
    """The state has no rows of a plain join: Delta has them in its history, and Parquet in its folders."""
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
    for _ in range(2):
        says = rf"ck is at batch 1, and {kinds[0]} .* is ahead, at batch 3: the checkpoint was .*fkjoin restore JOB.toml"
        with pytest.raises(FkJoinError, match=says):
            run(spark, tmp_path, *kinds)
    assert restore(spark, tmp_path, *kinds) == kinds
    assert restore(spark, tmp_path, *kinds) == [], "they are where the checkpoint is"
    for _ in range(2):
        run(spark, tmp_path, *kinds)
        for kind in kinds:
            assert there(spark, tmp_path, kind) == batch_join(history)
        history.write(60)


@pytest.mark.parametrize("kind", SINKS)
def test_a_target_that_is_behind_its_checkpoint_is_refused_and_gets_its_rows_from_the_state(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Batches without rows come first and last: a place tells them, too."""
    history, place = History(tmp_path), tmp_path / kind
    table = kept(spark, tmp_path)
    with no_input(tmp_path):
        run(spark, tmp_path, kind, table=table)
    history.write(60)
    run(spark, tmp_path, kind, table=table)
    shutil.copytree(place, tmp_path / "place-backup")
    for _ in range(2):
        history.write(60)
        run(spark, tmp_path, kind, table=table)
    write_lines(tmp_path / "orders", "none", [{"order_id": "never", "lsn": 10**9, "op": "d"}])
    run(spark, tmp_path, kind, table=table)
    whole = there(spark, tmp_path, kind)
    remove(place)
    (tmp_path / "place-backup").rename(place)
    says = rf"ck is at batch 3, and {kind} .* is behind, at batch 0: it was restored .* lacks later rows.* fkjoin restore"
    with pytest.raises(FkJoinError, match=says):
        run(spark, tmp_path, kind, table=table)
    assert restore(spark, tmp_path, kind, table=table) == [kind]
    assert there(spark, tmp_path, kind) == whole == batch_join(history)
    for _ in range(2):
        run(spark, tmp_path, kind, table=table)
        assert there(spark, tmp_path, kind) == batch_join(history)
        history.write(60)


@pytest.mark.parametrize("kind", SINKS)
def test_a_target_that_was_dropped_is_refused_and_made_from_the_state(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    history = History(tmp_path)
    history.write(60)
    run(spark, tmp_path, kind, table=kept(spark, tmp_path))
    remove(tmp_path / kind)
    with pytest.raises(FkJoinError, match=rf"ck is at batch 0, and {kind} .* has no batch of its query: it is another place"):
        run(spark, tmp_path, kind, table=kept(spark, tmp_path))
    restore(spark, tmp_path, kind, table=kept(spark, tmp_path))
    assert there(spark, tmp_path, kind) == batch_join(history)


@pytest.mark.parametrize("kind", FILES)
def test_the_checkpoint_that_a_backup_replaced_is_refused_and_restored_too(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """The two copies have batches of one number with other rows."""
    history = History(tmp_path)
    history.write(60)
    run(spark, tmp_path, kind, table=kept(spark, tmp_path))
    backup = Backup(tmp_path / "ck")
    history.write(60)
    run(spark, tmp_path, kind, table=kept(spark, tmp_path))
    newer = Backup(tmp_path / "ck", "newer")
    backup.restore()
    restore(spark, tmp_path, kind, table=kept(spark, tmp_path))
    history.write(60)
    run(spark, tmp_path, kind, table=kept(spark, tmp_path))
    newer.restore()
    with pytest.raises(FkJoinError, match=rf"ck is at batch 1, and {kind} .* has another batch 1: one of them was restored"):
        run(spark, tmp_path, kind, table=kept(spark, tmp_path))
    restore(spark, tmp_path, kind, table=kept(spark, tmp_path))
    run(spark, tmp_path, kind, table=kept(spark, tmp_path))
    assert there(spark, tmp_path, kind) == batch_join(history)


def test_a_checkpoint_from_before_its_first_batch_was_done_makes_targets_empty(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    history.write(60)
    run(spark, tmp_path, *FILES)
    shutil.rmtree(tmp_path / "ck" / "commits")
    shutil.rmtree(tmp_path / "ck" / "offsets")
    shutil.rmtree(tmp_path / "ck" / "state")
    with pytest.raises(FkJoinError, match=r"ck is at its beginning, and parquet .* is ahead, at batch 0"):
        run(spark, tmp_path, *FILES)
    assert restore(spark, tmp_path, *FILES) == FILES
    assert delta(tmp_path / "delta") == {}
    run(spark, tmp_path, *FILES)
    for kind in FILES:
        assert there(spark, tmp_path, kind) == batch_join(history)


def test_a_restore_that_is_ended_is_repeated(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet moves folder by folder, and the Delta table comes after it."""
    history = History(tmp_path)
    history.write(60)
    run(spark, tmp_path, *FILES)
    backup = Backup(tmp_path / "ck")
    for _ in range(3):
        history.write(60)
        run(spark, tmp_path, *FILES)
    backup.restore()
    moves = 0

    def dies(*arguments: Any) -> bool:
        nonlocal moves
        moves += 1
        if moves == 3:
            raise KeyboardInterrupt
        return moved(*arguments)

    monkeypatch.setattr(parquet_folders, "moved", dies)
    with pytest.raises(KeyboardInterrupt):
        restore(spark, tmp_path, *FILES)
    monkeypatch.undo()
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and parquet .* is ahead, at batch 1"):
        run(spark, tmp_path, *FILES)
    assert restore(spark, tmp_path, *FILES) == FILES
    run(spark, tmp_path, *FILES)
    for kind in FILES:
        assert there(spark, tmp_path, kind) == batch_join(history)
    aside = sorted(path.name for path in (tmp_path / "parquet" / "_set-aside").iterdir())
    assert [name[:15] for name in aside] == ["batch=00000001-", "batch=00000002-", "batch=00000003-"]


def test_a_restore_of_a_folder_from_the_state_that_is_ended_is_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches are set aside by then, and the batch of the state's rows is not there yet."""
    history, table = History(tmp_path), kept(spark, tmp_path)
    for _ in range(2):
        history.write(60)
        run(spark, tmp_path, "parquet", table=table)
    (newest,) = (tmp_path / "parquet").glob("batch=00000001-*")
    shutil.rmtree(newest)

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parquet_folders.BatchFolders, "publish", dies)
    with pytest.raises(KeyboardInterrupt):
        restore(spark, tmp_path, "parquet", table=table)
    monkeypatch.undo()
    with pytest.raises(FkJoinError, match=r"ck is at batch 1, and parquet .* has no batch of its query"):
        run(spark, tmp_path, "parquet", table=table)
    assert restore(spark, tmp_path, "parquet", table=table) == ["parquet"]
    run(spark, tmp_path, "parquet", table=table)
    assert there(spark, tmp_path, "parquet") == batch_join(history)


def test_rows_that_neither_state_nor_target_has_are_not_made_up(spark: SparkSession, tmp_path: Path) -> None:
    """A plain join keeps hashes.  The way out is a new checkpoint."""
    history = History(tmp_path)
    history.write(60)
    run(spark, tmp_path, "parquet")
    history.write(60)
    run(spark, tmp_path, "parquet")
    (newest,) = (tmp_path / "parquet").glob("batch=00000001-*")
    shutil.rmtree(newest)
    before = there(spark, tmp_path, "parquet")
    says = r"is behind, at batch 0.* cannot be restored: joined keeps only hashes .*materialize.* Or start with a new"
    with pytest.raises(FkJoinError, match=says):
        restore(spark, tmp_path, "parquet")
    assert there(spark, tmp_path, "parquet") == before
    for folder in ("ck", "parquet"):
        shutil.rmtree(tmp_path / folder)
    run(spark, tmp_path, "parquet")
    assert there(spark, tmp_path, "parquet") == batch_join(history)


def test_a_sink_of_ones_own_is_restored_beside_others(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)

    def sinks(kind: Any) -> tuple[Any, ...]:
        return kind(tmp_path / "db", "joined"), Delta(tmp_path / "delta")

    def same() -> bool:
        rows = {row.pop("order_id"): row for row in rows_of(tmp_path / "db", "joined")}
        return rows == delta(tmp_path / "delta") == batch_join(history)

    def go() -> None:
        finished(kept(spark, tmp_path).to(*sinks(Restorable), checkpoint=tmp_path / "ck", trigger=NOW))

    history.write(60)
    go()
    backup = Backup(tmp_path / "ck")
    history.write(60)
    go()
    assert same()
    backup.restore()
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and sqlite joined is ahead, at batch 1"):
        go()
    with pytest.raises(FkJoinError, match=r"sqlite joined .* cannot be restored: Sqlite has no method replace"):
        kept(spark, tmp_path).restore(*sinks(Sqlite), checkpoint=tmp_path / "ck")
    kept(spark, tmp_path).restore(*sinks(Restorable), checkpoint=tmp_path / "ck")
    go()
    assert same()


def test_what_cannot_be_restored_is_said(spark: SparkSession, tmp_path: Path) -> None:
    History(tmp_path).write(10)
    table = joined(spark, tmp_path)
    with pytest.raises(FkJoinError, match=r"checkpoint: .*ck is of no query: give that of the query that writes"):
        table.restore(Parquet(tmp_path / "parquet"), checkpoint=tmp_path / "ck")
    finished(table.to_parquet(tmp_path / "parquet", checkpoint=tmp_path / "ck", trigger=NOW))
    with pytest.raises(TopologyError, match=r"sinks: the query of .*ck has one; give that one"):
        table.restore(Parquet(tmp_path / "parquet"), Delta(tmp_path / "delta"), checkpoint=tmp_path / "ck")
    query = table.to_parquet(tmp_path / "parquet", checkpoint=tmp_path / "ck")
    with pytest.raises(FkJoinError, match=r"ck is in use by query joined of this session: stop that one first"):
        table.restore(Parquet(tmp_path / "parquet"), checkpoint=tmp_path / "ck")
    query.stop()
    assert table.restore(Parquet(tmp_path / "parquet"), checkpoint=tmp_path / "ck") == []


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
    says = r"ck-new is at its beginning, and .*out has batch 0 already, .*: give another path, or start with a new"
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
    restore(spark, tmp_path, "parquet")
    run(spark, tmp_path, "parquet")
    with pytest.raises(StreamingQueryException, match=r"batch=00000001-.*\.1, of another .* or it was restored: start"):
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


def test_fkjoin_run_refuses_and_fkjoin_restore_restores(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    def fkjoin(command: str) -> str:
        arguments = [command, str(file), "--spark-log", str(tmp_path / "spark.log")]
        return CliRunner().invoke(cli.app, arguments, catch_exceptions=False).output

    history = History(tmp_path)
    history.write(60)
    with pytest.raises(FkJoinError, match=r"checkpoint: .*job has no job, so there is nothing to restore"):
        fkjoin("restore")
    fkjoin("run")
    backup = Backup(tmp_path / "job")
    history.write(60)
    fkjoin("run")
    backup.restore()
    history.write(60)
    says = r"job/sinks-joined is at batch 0, and parquet .* is ahead, at batch 1: .*run fkjoin restore JOB.toml"
    with pytest.raises(FkJoinError, match=says):
        fkjoin("run")
    assert fkjoin("restore").count("is at the checkpoint's batch again") == 2
    assert "all targets are at the checkpoint's batch: nothing was changed" in fkjoin("restore")
    fkjoin("run")
    for kind in FILES:
        assert there(spark, tmp_path, kind) == batch_join(history)
