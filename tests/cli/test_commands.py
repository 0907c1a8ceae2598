"""The command line, once in a process of its own; with a JVM: ``tests/cli/test_termination.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from fkjoin.cli.main import app
from fkjoin.jobs.job_file import read_job
from tests.support.job_files import GOOD, job


def fkjoin(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``fkjoin …`` to its end."""
    command, given = [sys.executable, "-m", "fkjoin", *map(str, arguments)], os.environ | environment
    return subprocess.run(command, env=given, capture_output=True, text=True, encoding="utf-8", check=False)


def test_a_command_prints_what_is_asked_for_and_nothing_else() -> None:
    run = CliRunner().invoke(app, ["schema"])
    assert (run.exit_code, run.stderr) == (0, "")
    assert "sinks" in json.loads(run.stdout)["properties"]
    assert "demo" in CliRunner().invoke(app, ["--help"]).stdout
    assert CliRunner().invoke(app, ["--version"]).stdout == "fkjoin 0.1.0\n"


def test_a_mistake_is_one_line_that_says_where(tmp_path: Path) -> None:
    path = job(tmp_path, GOOD.replace("trigger =", "triger ="))
    run = fkjoin("run", path)
    assert run.returncode == 1
    assert run.stderr == f"fkjoin: {path}: triger: there is no such setting; did you mean 'trigger'?\n"


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = str(job(tmp_path, GOOD))
    for arguments, message in (
        (["run", "nowhere.toml"], "'nowhere.toml' does not exist"),
        (["run", path, "--ui", "70000"], "for --ui"),
        (["describe", path, "--format", "flink"], "'--format'"),
    ):
        run = CliRunner().invoke(app, arguments)
        assert run.exit_code == 2
        assert message in run.stderr


def test_init_writes_a_job_and_touches_no_file_that_is_there(tmp_path: Path) -> None:
    """``tests/house/test_docs.py`` runs the job of files, as the README shows it."""
    init = ["init", "--dir", str(tmp_path / "my job")]
    for flag, written, next_step in (
        ("--kafka", ["job.toml"], f"cd '{tmp_path}/my job'; fkjoin run job.toml --check\n"),
        ("--files", ["orders/1.csv", "customers/1.csv", "job.toml"], f"cd '{tmp_path}/my job'; fkjoin run job.toml\n"),
    ):
        run = CliRunner().invoke(app, [*init, flag])
        assert run.stdout.startswith("".join(f"wrote {tmp_path}/my job/{name}\n" for name in written))
        assert next_step in run.stdout
        assert read_job(tmp_path / "my job" / "job.toml").joins["shop"].materialize
        for path in written:
            again = fkjoin(*init, flag)
            first = tmp_path / "my job" / path.partition("/")[0]
            assert f"{first} already exists, so nothing was written; give another folder" in again.stderr
            (tmp_path / "my job" / path).unlink()
            if "/" in path:
                first.rmdir()
        assert list((tmp_path / "my job").iterdir()) == []
