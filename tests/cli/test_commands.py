"""The command line, in a process of its own where that matters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.commands import fkjoin
from tests.support.traces import TRACES, assert_agrees, expected


def test_replay_in_memory_prints_the_expected_lines() -> None:
    path = TRACES / "left-unicode-keys.in.jsonl"
    run = fkjoin("replay", path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split("\n")[:-1] == expected(path)


def test_a_mistake_is_one_line_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"join": "inner", "extractor": "field"}\n{"side": "left", "key": "k", "value": 1}\n')
    run = fkjoin("replay", path)
    assert run.returncode == 1
    assert run.stderr == f'fkjoin: {path}:2: "ts" must be a whole number of 64 bits, it is null\n'


def test_what_cannot_be_is_refused() -> None:
    path = TRACES / "left-unicode-keys.in.jsonl"
    for arguments, says in (
        (("replay", "nowhere.jsonl"), "'nowhere.jsonl' does not exist"),
        (("replay", path, "--events-per-batch", "0"), "'--events-per-batch'"),
        (("replay", path, "--engine", "flink"), "'--engine'"),
    ):
        run = fkjoin(*arguments)
        assert run.returncode == 2
        assert says in run.stderr


def test_help_and_version() -> None:
    assert "demo" in fkjoin("--help").stdout
    assert fkjoin("--version").stdout == "fkjoin 0.1.0\n"


@pytest.mark.spark
def test_replay_on_spark_prints_lines_and_nothing_else(tmp_path: Path) -> None:
    """Nor does it start a process for each file that Hadoop makes, to set its permissions (``fkjoin.sessions.local_files``)."""
    path, chmod = TRACES / "left-empty-string-keys.in.jsonl", tmp_path / "bin" / "chmod"
    chmod.parent.mkdir()
    chmod.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/started\nexec /bin/chmod "$@"\n')
    chmod.chmod(0o755)
    arguments = ("replay", path, "--engine", "spark", "--events-per-batch", "4", "--buckets", "1")
    run = fkjoin(*arguments, PATH=f"{chmod.parent}{os.pathsep}{os.environ['PATH']}")
    assert (run.returncode, run.stderr) == (0, "")
    assert_agrees(run.stdout.split("\n")[:-1], expected(path))
    assert not (tmp_path / "started").exists()
