"""Indexes whose checkpoints are gone are found and removed; others never."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin.checkpoint import indexes
from fkjoin.checkpoint.files import query_id
from fkjoin.errors import FkJoinError
from fkjoin.spark import index_home
from fkjoin.state.folders import locked
from tests.support.queries import run, write_lines
from tests.support.sessions import small


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Path:
    """A folder with the checkpoint of a query, and its index."""
    small(spark, tmp_path, buckets=1)
    for name in ("left", "right"):
        write_lines(tmp_path / name, "1", [{"id": "a", "of": "a", "n": 1}])
    tables = [Table.from_files(spark, tmp_path / name, key="id", version="n", name=name) for name in ("left", "right")]
    run(fk_join(*tables, "of").changes, tmp_path / "checkpoint")
    return tmp_path


def found(spark: SparkSession, job: Path) -> indexes.Found:
    (one,) = indexes.found(spark, job / "index")
    return one


def test_an_index_of_a_checkpoint_that_is_gone_is_removed(
    spark: SparkSession, job: Path, state_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stays as long as the checkpoint is the query's, or a process has the index open."""

    prune, checkpoint = ("prune", "--index-dir", str(job / "index")), job / "checkpoint"
    _, lines = state_command(*prune, "--remove")
    assert "kept" in lines[0]
    assert str(checkpoint) in lines[0]
    assert lines[1] == f"no index under {job}/index belongs to a checkpoint that is gone"
    (checkpoint / "metadata").write_text(json.dumps({"id": "of another"}))
    (checkpoint / ".metadata.crc").unlink()
    assert query_id(spark, str(checkpoint)) == "of another"
    assert found(spark, job)[2:] == ("gone", f"file:{checkpoint} is now of another query")
    shutil.rmtree(checkpoint)
    lock = locked(next((job / "index").rglob("index-*")))
    assert lock is not None
    assert found(spark, job)[2:] == ("kept", f"file:{checkpoint} is gone, but a process has an index open")
    os.close(lock)
    folder = found(spark, job).folder
    _, lines = state_command(*prune)
    assert lines[0].startswith("gone ")
    assert "--remove removes them" in lines[1]
    assert folder.is_dir(), "it was to be listed"
    with monkeypatch.context() as other:
        other.setattr(indexes.shutil, "rmtree", MagicMock(side_effect=PermissionError("not allowed")))
        with pytest.raises(FkJoinError, match=f"{folder} cannot be removed: .*; remove it as its owner"):
            state_command(*prune, "--remove")
    state_command(*prune, "--remove")
    assert list((job / "index").iterdir()) == []


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (None, "nothing says where the checkpoint is"),
        ("?", "nothing says where the checkpoint is"),
        ({"checkpoint": "file:/gone", "host": "elsewhere"}, "file:/gone is on elsewhere"),
        ({"checkpoint": "nowhere://bucket/gone", "host": "h"}, "nowhere://bucket/gone cannot be asked: "),
    ],
)
def test_an_index_of_which_too_little_is_known_stays(spark: SparkSession, tmp_path: Path, written: Any, why: str) -> None:
    folder = tmp_path / "index" / "query"
    folder.mkdir(parents=True)
    if written is not None:
        (folder / index_home.HOME_FILE).write_text(json.dumps(written))
    one = found(spark, tmp_path)
    assert one.fate == "unknown"
    assert one.why.startswith(why)
    assert indexes.remove([one]) == []
    assert folder.is_dir()
