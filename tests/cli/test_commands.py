"""The command line, once in a process of its own; with a JVM: ``tests/cli/test_termination.py``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pandas
import pyspark
import pytest
from typer.testing import CliRunner

from fkjoin.cli import doctor
from fkjoin.cli.main import app
from fkjoin.errors import FkJoinError
from fkjoin.jobs.job_file import read_job
from fkjoin.sessions.connector import MODULE
from tests.support.job_files import GOOD, job


def test_a_command_prints_what_is_asked_for_and_nothing_else() -> None:
    run = CliRunner().invoke(app, ["schema"])
    assert (run.exit_code, run.stderr) == (0, "")
    assert "sinks" in json.loads(run.stdout)["properties"]
    assert "demo" in CliRunner().invoke(app, ["--help"]).stdout
    assert CliRunner().invoke(app, ["--version"]).stdout == "fkjoin 0.1.0\n"


def test_a_mistake_is_one_line_that_says_where(tmp_path: Path) -> None:
    path = job(tmp_path, GOOD.replace("trigger =", "triger ="))
    command = [sys.executable, "-m", "fkjoin", "run", str(path)]
    run = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert run.returncode == 1
    assert run.stderr == f"fkjoin: {path}: triger: there is no such setting; did you mean 'trigger'?\n"


def test_the_screen_stands_before_spark_is_imported() -> None:
    """Imports take seconds, in which the command says already that it reads the job."""
    libraries = "{'pyspark', 'pyarrow', 'pandas', 'numpy'}"
    code = f"import sys, fkjoin.cli.main, fkjoin.jobs.screen; print({libraries} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


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
            first = tmp_path / "my job" / path.partition("/")[0]
            with pytest.raises(FkJoinError, match=f"{first} already exists, so nothing was"):
                CliRunner().invoke(app, [*init, flag], catch_exceptions=False)
            (tmp_path / "my job" / path).unlink()
            if "/" in path:
                first.rmdir()
        assert list((tmp_path / "my job").iterdir()) == []


def test_known_faults_of_a_release_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old, late = ["SPARK-53870", "SPARK-58932"], ["SPARK-58932"]
    for release, faults in (("3.5.6", []), ("4.0.0", old), ("4.0.2", late), ("4.2.1.dev0", late), ("4.3.0", []), ("5.0.0", [])):
        monkeypatch.setattr(pyspark, "__version__", release)
        found = doctor._pyspark()
        assert (found.fine, found.state.split(";")[0]) == (release in {"4.0.2", "4.2.1.dev0", "4.3.0"}, release)
        assert [fault for fault in old if fault in found.state] == faults
        assert found.advice == 'pip install "pyspark>=4.0.2,<5"'


def test_pyspark_has_the_word_on_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn() -> None:
        import warnings

        warnings.warn("some features may not work", FutureWarning, stacklevel=2)

    assert doctor._pandas().state.split(";")[0] == pandas.__version__
    monkeypatch.setattr(pandas, "__version__", "2.2.3")
    assert doctor._pandas() == ("pandas", True, "2.2.3", "")
    monkeypatch.setattr(pandas, "__version__", "1.5.3")
    found = doctor._pandas()
    assert (found.fine, found.advice) == (False, 'pip install "pandas>=2.2"')
    assert "1.5.3" in found.state
    monkeypatch.setattr(doctor, "require_minimum_pandas_version", warn)
    assert doctor._pandas() == ("pandas", True, "1.5.3; PySpark says: some features may not work", "")


OLD, NEW = (f"spark-sql-kafka-0-10_2.13-{release}.jar" for release in ("4.0.0", "4.2.0"))


def test_a_connector_is_needed_if_brokers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = SimpleNamespace(version="4.3.0")
    for jar, wanted, fine, state in (
        (None, True, False, "is not in the session$"),
        (None, False, True, "is not in the session, and only topics need it: start the session"),
        (OLD, True, False, f"{OLD} does not fit Spark 4.3.0$"),
        (NEW, True, True, NEW),
    ):
        monkeypatch.setattr(doctor.connector, "loaded_jar", lambda _, jar=jar: jar)
        finding = doctor._connector(session, wanted=wanted)
        assert finding.fine == fine
        assert re.match(state, finding.state)
        assert fine or f"; spark-submit, and here: --packages {MODULE}:4.2.0" in finding.advice


def test_brokers_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    session = MagicMock(side_effect=FkJoinError("no repository answers\nand more"))
    monkeypatch.setattr(doctor, "session", session)
    for brokers, settings, fetched in (("b:9092", {}, True), ("", {}, False), ("b:9092", {"spark.jars": "x"}, False)):
        (finding,) = doctor._session("local[2]", brokers, settings)
        assert (finding.fine, finding.state) == (False, "no repository answers")
        assert session.call_args.kwargs == {"kafka": fetched}


def test_advice_about_a_section_of_a_job_file_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor.Finding("Kafka connector", False, "is not in [spark]", "write kafka = true in [spark]")
    monkeypatch.setattr(doctor, "examine", lambda *_: [finding])
    said = CliRunner().invoke(app, ["doctor"])
    assert said.exit_code == 1
    assert said.stdout == "bad Kafka connector: is not in [spark]\n    write kafka = true in [spark]\n"
