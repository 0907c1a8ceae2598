"""Indexes whose checkpoints are gone are found and removed; others never."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin.checkpoint import indexes
from fkjoin.checkpoint.files import query_id
from fkjoin.errors import FkJoinError
from fkjoin.spark import index_home
from tests.support.queries import write_lines
from tests.support.sessions import small


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Path:
    """A folder with the checkpoint of a query, and its index."""
    small(spark, tmp_path, buckets=1)
    for name in ("left", "right"):
        write_lines(tmp_path / name, "1", [{"id": "a", "of": "a", "n": 1}])
    tables = [Table.from_files(spark, tmp_path / name, key="id", version="n", name=name) for name in ("left", "right")]
    joined = fk_join(*tables, "of")
    joined.to_parquet(tmp_path / "out", checkpoint=tmp_path / "checkpoint", trigger={"availableNow": True}).awaitTermination()
    return tmp_path


def found(spark: SparkSession, job: Path) -> indexes.Found:
    (one,) = indexes.found(spark, job / "index")
    return one


def note(job: Path) -> Path:
    (file,) = (job / "index").glob(f"*/{index_home.HOME_FILE}")
    return file


def test_an_index_of_a_checkpoint_that_is_gone_is_removed(
    spark: SparkSession,
    job: Path,
    state_command: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    prune = ("prune", "--index-dir", str(job / "index"))
    _, lines = state_command(*prune, "--remove")
    assert "kept" in lines[0]
    assert f"{job}/checkpoint" in lines[0]
    assert lines[1] == f"no index under {job}/index is of a checkpoint that is gone"
    shutil.rmtree(job / "checkpoint")
    folder = found(spark, job).folder
    _, lines = state_command(*prune)
    assert lines[0].startswith("gone ")
    assert "--remove removes them" in lines[1]
    assert folder.is_dir(), "it was to be listed"
    with monkeypatch.context() as other:
        other.setattr(indexes.shutil, "rmtree", refused)
        with pytest.raises(FkJoinError, match=f"{folder} cannot be removed: .*; remove it as its owner"):
            state_command(*prune, "--remove")
    state_command(*prune, "--remove")
    assert list((job / "index").iterdir()) == []


def test_a_checkpoint_that_another_query_has_begun_is_not_the_indexs(spark: SparkSession, job: Path) -> None:
    metadata = job / "checkpoint" / "metadata"
    metadata.write_text(json.dumps({"id": "of another"}))
    (metadata.parent / ".metadata.crc").unlink()
    assert query_id(spark, str(job / "checkpoint")) == "of another"
    assert found(spark, job)[2:] == ("gone", f"file:{job}/checkpoint is now of another query")


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


def test_an_index_that_a_process_has_open_stays(spark: SparkSession, job: Path) -> None:
    shutil.rmtree(job / "checkpoint")
    index = next((job / "index").rglob("index-*"))
    program = (
        f"import pathlib; from state.folders import locked; print(locked(pathlib.Path({str(index)!r})), flush=True); input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    one = found(spark, job)
    holder.communicate(b"\n")
    assert one[2:] == ("kept", f"file:{job}/checkpoint is gone, but a process has an index open")
    assert found(spark, job).fate == "gone"
