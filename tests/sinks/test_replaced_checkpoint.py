"""A replaced checkpoint that is put back: sinks that were set back for the backup lack rows of its batches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.sinks import Delta, Parquet
from fkjoin.sinks.restored import SET_BACKS
from tests.support.orders import History, batch_join
from tests.support.sampling import sampled
from tests.support.sessions import small
from tests.support.sinks import Backup, finished, joined, no_input, there

pytestmark = pytest.mark.spark

SINKS = {"parquet": Parquet, "delta": Delta}

SAYS = (
    r"checkpoint: .*ck is at batch [01], and {} .* was set back since for another copy of it.* may lack rows .*: "
    r"on_restore=\"set-back\", or fkjoin run --set-back\. Or start with a new checkpoint and an empty target"
)


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)


def run(spark: SparkSession, folder: Path, *kinds: str, **more: Any) -> None:
    table, about = joined(spark, folder), {"checkpoint": folder / "ck", "trigger": {"availableNow": True}, **more}
    finished(table.to(*(SINKS[kind](folder / kind) for kind in kinds), **about))


def replaced(spark: SparkSession, folder: Path, history: History, *kinds: str) -> Backup:
    """Replace a checkpoint by a backup of its first batch, set the sinks back without a batch since, and return the old one."""
    history.write(60)
    run(spark, folder, *kinds)
    backup = Backup(folder / "ck")
    history.write(60)
    run(spark, folder, *kinds)
    newer = Backup(folder / "ck", "newer")
    backup.restore()
    with no_input(folder):
        run(spark, folder, *kinds, on_restore="set-back")
    return newer


@pytest.mark.faults
@pytest.mark.parametrize("kind", sampled([*SINKS], ["delta"]))
def test_it_is_refused_though_no_batch_had_rows_since_and_each_way_out_is_one(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    history = History(tmp_path)
    newer = replaced(spark, tmp_path, history, kind)
    older = Backup(tmp_path / "ck", "older")
    newer.restore()
    history.write(60)
    with pytest.raises(FkJoinError, match=SAYS.format(kind)):
        run(spark, tmp_path, kind)
    if kind == "delta":  # its history has what was undone
        run(spark, tmp_path, kind, on_restore="set-back")
        assert there(spark, tmp_path, kind) == batch_join(history)
        older.restore()
        with pytest.raises(FkJoinError, match="ck was set back: it is at batch 0, and delta .* has batch 2"):
            run(spark, tmp_path, kind)
        run(spark, tmp_path, kind, on_restore="set-back")
        assert there(spark, tmp_path, kind) == batch_join(history)
    else:
        says = (
            r"parquet .* cannot be set back to batch 1 .*: its batches from 1 on were moved to _set-aside .*\. Start with a new"
        )
        with pytest.raises(FkJoinError, match=says):
            run(spark, tmp_path, kind, on_restore="set-back")
        older.restore()  # the one that the sink was set back for goes on
        run(spark, tmp_path, kind)
        assert there(spark, tmp_path, kind) == batch_join(history)
    for gone in ("ck", kind):
        shutil.rmtree(tmp_path / gone)
    run(spark, tmp_path, kind)
    assert there(spark, tmp_path, kind) == batch_join(history)


def test_a_sink_that_was_set_back_to_nothing_is_compared_too(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    with no_input(tmp_path):
        run(spark, tmp_path, *SINKS)
    backup = Backup(tmp_path / "ck")
    history.write(60)
    run(spark, tmp_path, *SINKS)
    newer = Backup(tmp_path / "ck", "newer")
    backup.restore()
    with no_input(tmp_path):
        run(spark, tmp_path, *SINKS, on_restore="set-back")
    newer.restore()
    with pytest.raises(FkJoinError, match=SAYS.format("parquet")):
        run(spark, tmp_path, *SINKS)


def test_the_same_backup_may_be_restored_again(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    replaced(spark, tmp_path, history, *SINKS)
    shutil.rmtree(tmp_path / "ck")
    shutil.copytree(tmp_path / "backup", tmp_path / "ck")
    history.write(60)
    with pytest.raises(FkJoinError, match=r"ck is at batch 0, and parquet .* was set back since"):
        run(spark, tmp_path, *SINKS)
    run(spark, tmp_path, *SINKS, on_restore="set-back")
    for kind in SINKS:
        assert there(spark, tmp_path, kind) == batch_join(history)


def test_sinks_and_checkpoints_of_an_older_release_go_on(spark: SparkSession, tmp_path: Path) -> None:
    """Both lack the identity of a set-back, or the one of them that the older release has written."""
    history = History(tmp_path)
    replaced(spark, tmp_path, history, "parquet")
    about = tmp_path / "parquet" / "_fkjoin.json"
    said = json.loads(about.read_text())
    about.write_text(json.dumps({name: value for name, value in said.items() if name != "went_back"}))
    assert (tmp_path / "ck" / SET_BACKS).exists()
    run(spark, tmp_path, "parquet")
    (tmp_path / "ck" / SET_BACKS).unlink()
    history.write(60)
    run(spark, tmp_path, "parquet")
    assert there(spark, tmp_path, "parquet") == batch_join(history)
