"""The command line, in a process of its own where that matters; on Spark: ``tests/cli/test_termination.py``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import fkjoin
from tests.support.job_files import GOOD, job


def test_a_command_prints_what_is_asked_for_and_nothing_else() -> None:
    run = fkjoin("schema")
    assert (run.returncode, run.stderr) == (0, "")
    assert "sinks" in json.loads(run.stdout)["properties"]


def test_a_mistake_is_one_line_that_says_where(tmp_path: Path) -> None:
    path = job(tmp_path, GOOD.replace("trigger =", "triger ="))
    run = fkjoin("run", path)
    assert run.returncode == 1
    assert run.stderr == f"fkjoin: {path}: triger: there is no such setting; did you mean 'trigger'?\n"


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = job(tmp_path, GOOD)
    for arguments, message in (
        (("run", "nowhere.toml"), "'nowhere.toml' does not exist"),
        (("run", path, "--ui", "70000"), "for --ui"),
        (("describe", path, "--format", "flink"), "'--format'"),
    ):
        run = fkjoin(*arguments)
        assert run.returncode == 2
        assert message in run.stderr


def test_help_and_version() -> None:
    assert "demo" in fkjoin("--help").stdout
    assert fkjoin("--version").stdout == "fkjoin 0.1.0\n"
