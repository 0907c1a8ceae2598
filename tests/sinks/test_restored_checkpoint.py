"""A checkpoint or a target restored from a backup: a start is refused both ways, and restore mends it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError
from fkjoin.errors import FkJoinError
from fkjoin.sinks import Delta, Iceberg, Parquet, iceberg_catalog, parquet_folders
from fkjoin.sinks.ledger import require_spark_at
from fkjoin.storage.local_files import LocalFiles
from tests.support.job_files import PLAIN, job, write_rows
from tests.support.orders import History, batch_join, tables
from tests.support.own_sink import Restorable, rows_of
from tests.support.queries import write_lines
from tests.support.sessions import small
from tests.support.sinks import Memory, delta, finished, joined, lake, there

NOW = {"availableNow": True}
FILES = ["parquet", "delta"]
SINKS = [*FILES, "iceberg", "sqlite"]
SENT_AND_DELETED = {"order_id": "o-sent", "customer_id": "c-sent", "amount": 1.0, "items": 1}


class Past:
    """The join into several sinks at a time, and its folder as it was after each batch.

    So a test begins with the checkpoint of one batch beside the targets of another, without a run.
    """

    def __init__(self, spark: SparkSession, folder: Path, *kinds: str, materialized: bool) -> None:
        self.spark, self.folder, self.kinds = spark, folder / "now", kinds
        self.materialized = materialized
        self.folder.mkdir()
        self.history, self.copies, self.sent = History(self.folder), folder / "copies", Memory()
        self._histories: list[History] = []
        small(spark, folder)

    def sink(self, kind: str) -> Any:
        target = self.folder / kind
        if kind == "sqlite":
            target.mkdir(exist_ok=True)
            return Restorable(target / "db", "joined")
        if kind == "iceberg":
            return Iceberg("shop.it", options=lake(self.folder))
        return {"parquet": Parquet, "delta": Delta, "memory": lambda _: self.sent}[kind](target)

    def table(self) -> Table:
        """The join; if it is materialized, its state has its rows."""
        table = joined(self.spark, self.folder)
        return table.materialize("kept") if self.materialized else table

    def run(self) -> None:
        """Run the join on all input."""
        sinks = map(self.sink, self.kinds)
        finished(self.table().to(*sinks, checkpoint=self.folder / "ck", trigger=NOW))

    def batch(self) -> None:
        """Run the join, and copy the folder."""
        self.run()
        shutil.copytree(self.folder, self.copies / str(len(self._histories)))
        self._histories.append(copy.deepcopy(self.history))

    def back(self, batch: int, *names: str) -> None:
        """Have these folders as they were after the batch; without names all."""
        if not names or "orders" in names:
            self.history, self.sent = copy.deepcopy(self._histories[batch]), Memory()
        for name in names or ("",):
            self.remove(name)
            shutil.copytree(self.copies / str(batch) / name, self.folder / name)

    def remove(self, *names: str) -> None:
        """Remove folders, with what this process knows of a catalog in them."""
        for name in names:
            shutil.rmtree(self.folder / name)
        iceberg_catalog._loaded.cache_clear()

    def restore(self) -> list[str]:
        """Restore the sinks; the kinds of those that were rewritten."""
        places = self.table().restore(*map(self.sink, self.kinds), checkpoint=self.folder / "ck")
        return [place.split()[0] for place in places]

    def rows(self, kind: str) -> dict[str, Any]:
        if kind == "sqlite":
            rows = rows_of(self.folder / kind / "db", "joined")
            return {row.pop("order_id"): row for row in rows}
        return there(self.spark, self.folder, kind)

    def is_whole(self) -> bool:
        """Tell whether each target is the batch join of the input."""
        wanted = batch_join(self.history)
        return all(self.rows(kind) == wanted for kind in self.kinds if kind != "memory")

    def require_refused(self, says: str) -> None:
        with pytest.raises(FkJoinError, match=says):
            self.run()


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Past:
    """A join whose state has no rows: Delta has them in its history, and Parquet in its folders."""
    past = Past(spark, tmp_path_factory.mktemp("plain"), *FILES, "memory", materialized=False)
    customer = {"customer_id": "c-sent", "region": "north"}
    for batch in range(3):
        past.history.write(60)
        if batch == 1:
            write_lines(past.folder / "customers", "sent", [{**customer, "lsn": 0, "op": "u"}])
            write_lines(past.folder / "orders", "sent", [{**SENT_AND_DELETED, "lsn": 0, "op": "u"}])
            past.history.customers["c-sent"] = customer
            past.history.orders["o-sent"] = SENT_AND_DELETED
        past.batch()
    return past


@pytest.fixture(scope="module")
def stateful(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Past:
    """A join whose state has its rows."""
    past = Past(spark, tmp_path_factory.mktemp("stateful"), *SINKS, materialized=True)
    for _ in range(2):
        past.history.write(60)
        past.batch()
    return past


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, plain: Past, stateful: Past, tmp_path: Path) -> None:
    """The settings of these tests come after those of the pasts."""
    small(spark, tmp_path)


def dies(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_sinks_ahead_of_a_restored_checkpoint_are_refused_until_restored(plain: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that came and went since the backup stays sent: no deletion follows in a topic.

    A restore that is ended is repeated.  Parquet moves folder by folder, and the Delta table comes after it.
    """
    plain.back(2)
    plain.back(0, "ck")
    assert "o-sent" in plain.rows("parquet")
    plain.history.write(60)
    write_lines(plain.folder / "orders", "deleted", [{**SENT_AND_DELETED, "lsn": 10**9, "op": "d"}])
    del plain.history.orders["o-sent"]
    plain.require_refused(
        r"ck is at batch 0, and parquet .* is ahead, at batch 2: the checkpoint was .*fkjoin restore JOB.toml"
    )
    moves, renamed = iter([LocalFiles.rename, dies]), LocalFiles.rename
    with monkeypatch.context() as ended:
        ended.setattr(LocalFiles, "rename", lambda *arguments: next(moves)(*arguments))
        with pytest.raises(KeyboardInterrupt):
            plain.restore()
    assert LocalFiles.rename is renamed
    plain.require_refused(r"ck is at batch 0, and parquet .* is ahead, at batch 1")
    assert plain.restore() == FILES
    assert plain.restore() == [], "they are where the checkpoint is"
    plain.run()
    assert plain.is_whole()
    assert plain.sent.taken[1]
    assert not any("o-sent" in row for row in plain.sent.taken[1])
    aside = sorted(path.name for path in (plain.folder / "parquet" / "_set-aside").iterdir())
    assert [name[:15] for name in aside] == ["batch=00000001-", "batch=00000002-"]


def test_a_target_that_is_behind_or_gone_gets_its_rows_from_the_state(stateful: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a restore was ended when Parquet had set its batches aside and had not written the state's rows."""
    stateful.back(1)
    for kind in ("parquet", "iceberg"):
        stateful.back(0, kind)
        says = rf"ck is at batch 1, and {kind} .* is behind, at batch 0: it was restored .* lacks later rows.* fkjoin restore"
        stateful.require_refused(says)
        stateful.back(1, kind)
    stateful.remove("delta", "iceberg")
    stateful.require_refused(r"ck is at batch 1, and delta .* has no batch of its query: it is another place")
    stateful.back(0, "parquet", "sqlite")
    with monkeypatch.context() as ended:
        ended.setattr(parquet_folders.BatchFolders, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            stateful.restore()
    stateful.require_refused(r"ck is at batch 1, and parquet .* has no batch of its query")
    assert stateful.restore() == SINKS
    assert stateful.is_whole()
    stateful.back(0, "sqlite")
    with monkeypatch.context() as without:
        without.delattr(Restorable, "replace")
        with pytest.raises(FkJoinError, match=r"sqlite joined .* cannot be restored: Restorable has no method replace"):
            stateful.restore()
    assert stateful.restore() == ["sqlite"], "the others are where the checkpoint is"
    stateful.back(0, "ck", "orders", "customers")
    assert stateful.restore() == SINKS, "they have one batch of the state, which is later, in the place of all earlier ones"
    assert stateful.is_whole()


@pytest.mark.nightly
def test_the_checkpoint_that_a_backup_replaced_is_refused_and_restored_too(stateful: Past) -> None:
    """The two copies have batches of one number with other rows."""
    stateful.back(1)
    stateful.back(0, "ck")
    assert stateful.restore() == SINKS
    stateful.history.write(60)
    stateful.run()
    stateful.back(1, "ck")
    stateful.require_refused(r"ck is at batch 1, and parquet .* has another batch 1: one of them was restored")
    assert stateful.restore() == SINKS
    stateful.run()
    assert stateful.is_whole()


def test_rows_that_neither_state_nor_target_has_are_not_made_up(plain: Past) -> None:
    """A plain join keeps hashes."""
    plain.back(1)
    plain.back(0, "parquet")
    before = plain.rows("parquet")
    says = r"is behind, at batch 0.* cannot be restored: joined keeps only hashes .*materialize.* Or start with a new"
    with pytest.raises(FkJoinError, match=says):
        plain.restore()
    assert plain.rows("parquet") == before


def test_what_cannot_be_restored_is_said(spark: SparkSession, tmp_path: Path) -> None:
    History(tmp_path).write(10)
    table, sink = tables(spark, tmp_path)[0], Parquet(tmp_path / "parquet")
    with pytest.raises(
        FkJoinError, match=r"checkpoint: .*ck belongs to no query: give the checkpoint of the query that writes"
    ):
        table.restore(sink, checkpoint=tmp_path / "ck")
    query = table.to_parquet(tmp_path / "parquet", checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    with pytest.raises(FkJoinError, match=r"ck is in use by query orders of this session: stop that one first"):
        table.restore(sink, checkpoint=tmp_path / "ck")
    query.stop()
    with pytest.raises(TopologyError, match=r"sinks: the query of .*ck has one; give that one"):
        table.restore(sink, Delta(tmp_path / "delta"), checkpoint=tmp_path / "ck")
    assert table.restore(sink, checkpoint=tmp_path / "ck") == []


def test_a_folder_of_sparks_own_sink_that_is_ahead_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """``tests/jobs/test_file_tables.py`` has a query that writes such a folder."""
    for log in ("ck/offsets/0", "out/_spark_metadata/0"):
        (tmp_path / log).parent.mkdir(parents=True)
        (tmp_path / log).touch()
    require_spark_at(spark, str(tmp_path / "ck"), str(tmp_path / "out"))
    says = r"ck-new is at its beginning, and .*out already contains batch 0, .*: give another path, or start with a new"
    with pytest.raises(FkJoinError, match=says):
        require_spark_at(spark, str(tmp_path / "ck-new"), str(tmp_path / "out"))
    require_spark_at(spark, str(tmp_path / "ck-new"), str(tmp_path / "empty"))
    (tmp_path / "out" / "_spark_metadata" / "9.compact").touch()
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and .*out already contains batch 9"):
        require_spark_at(spark, str(tmp_path / "ck"), str(tmp_path / "out"))


@pytest.mark.nightly
def test_who_has_read_what_was_set_aside_is_refused_and_others_go_on(spark: SparkSession, plain: Past, tmp_path: Path) -> None:
    def read(name: str, trigger: Any = NOW) -> Any:
        table = Table.from_fkjoin(spark, plain.folder / "parquet").materialize("kept")
        return table.to_delta(tmp_path / name, checkpoint=tmp_path / f"{name}-ck", trigger=trigger)

    plain.back(0)
    finished(read("behind"))
    plain.back(1)
    reader = read("reader", None)
    reader.processAllAvailable()
    plain.back(0, "ck")
    plain.history.write(60)
    plain.restore()
    plain.run()
    # Spark may also list the folder at the moment when it is set aside.
    says = r"batch=00000001-.*(\.1, of another .* or, if the path was restored, start| does not exist)"
    with pytest.raises(StreamingQueryException, match=says):
        reader.awaitTermination()
    says = r"checkpoint .*reader-ck had read batches that are now in _set-aside: start this query, too, with a new"
    with pytest.raises(FkJoinError, match=says):
        read("reader")
    for name in ("reader-ck", "reader"):
        shutil.rmtree(tmp_path / name)
    for name in ("reader", "behind"):
        finished(read(name))
        assert delta(tmp_path / name) == batch_join(plain.history)


def test_fkjoin_run_refuses_and_fkjoin_restore_restores(tmp_path: Path, fkjoin_here: Callable[..., str]) -> None:
    """The checkpoint is from before its first batch was done: restored targets are empty."""
    two = '[sinks.two]\ntable = "joined"\npath = "{folder}/delta"\nformat = "delta"\n'
    file = job(tmp_path, PLAIN + two)
    write_rows(tmp_path)
    with pytest.raises(FkJoinError, match=r"checkpoint: .*has no job, so there is nothing"):
        fkjoin_here("restore", file)
    fkjoin_here("run", file)
    for name in ("commits", "offsets", "state"):
        shutil.rmtree(tmp_path / "checkpoint" / "sinks-joined" / name)
    says = r"/sinks-joined is at its beginning, and parquet .* ahead, at batch 0: .*run fkjoin restore"
    with pytest.raises(FkJoinError, match=says):
        fkjoin_here("run", file)
    assert fkjoin_here("restore", file).count("is at the checkpoint's batch again") == 2
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().num_rows == 0
    assert list((tmp_path / "out").glob("batch=*")) == []
    assert "all targets are at the checkpoint's batch: nothing was changed" in fkjoin_here("restore", file)
