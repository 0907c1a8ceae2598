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


def test_init_writes_a_job_and_replaces_no_file(tmp_path: Path) -> None:
    """``tests/house/test_docs.py`` runs the job of files, as the README shows it."""
    for flag, written in (("--files", ["orders/1.csv", "customers/1.csv", "job.toml"]), ("--kafka", ["job.toml"])):
        folder = tmp_path / flag
        run = CliRunner().invoke(app, ["init", flag, "--dir", str(folder)])
        assert run.stdout.startswith("".join(f"wrote {folder / name}\n" for name in written))
        assert read_job(folder / "job.toml").joins["shop"].left == "orders"
    (folder / "job.toml").write_text("mine")
    run = fkjoin("init", "--dir", folder)
    assert (
        run.stderr == f"fkjoin: {folder / 'job.toml'} already exists, so nothing was written; give another folder with --dir\n"
    )
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("job.toml", "mine")]
