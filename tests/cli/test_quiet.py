"""Places to which the JVM's standard error goes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.errors import IllegalArgumentException

from fkjoin.cli import main, quiet
from fkjoin.cli.quiet import log_file, quiet_spark, spark_log
from fkjoin.errors import FkJoinError
from tests.support.places import ROOT

SAY = """
import subprocess, sys
from pathlib import Path
from fkjoin.cli import quiet
quiet.LOG_BYTES = 1000
with quiet.spark_log(quiet.log_file(Path(sys.argv[2]) if sys.argv[2:] else None)):
    subprocess.run(["sh", "-c", sys.argv[1]])
"""


def say(program: str, *log: str, terminal: bool = False, cwd: Path | None = None) -> str:
    """Run a command in which a process writes on standard error, and return what arrives there."""
    outer, inner = pty.openpty() if terminal else os.pipe()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen([sys.executable, "-c", SAY, program, *log], stderr=inner, cwd=cwd, env=environment)
    os.close(inner)
    said = b""
    try:
        while piece := os.read(outer, 4096):
            said += piece
    except OSError:  # so a terminal ends
        pass
    os.close(outer)
    assert run.wait() == 0
    return said.decode()


def test_a_log_goes_on_at_the_next_start_and_older_ones_are_kept_for_a_while(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    assert say("echo first >&2", str(log)) == ""
    assert say("echo second >&2; printf unfinished >&2", str(log)) == ""
    assert log.read_text() == "first\nsecond\nunfinished\n"
    say("for i in $(seq 1 400); do echo line number $i >&2; done", str(log))
    logs = [log, *(tmp_path / f"spark.log.{number}" for number in range(1, quiet.OLDER_LOGS + 1))]
    assert sorted(tmp_path.iterdir()) == sorted(logs), "the oldest are gone"
    assert all(path.stat().st_size <= 1000 for path in logs)
    lines = [line for path in reversed(logs) for line in path.read_text().splitlines()]
    assert lines == [f"line number {number}" for number in range(400 - len(lines) + 1, 401)]


def test_without_a_terminal_and_a_log_it_stays_on_standard_error(tmp_path: Path) -> None:
    assert say("echo hello >&2", cwd=tmp_path) == "hello\n"
    assert list(tmp_path.iterdir()) == []
    assert say("echo hello >&2", terminal=True, cwd=tmp_path) == ""
    assert (tmp_path / "spark.log").read_text() == "hello\n"
    assert log_file(tmp_path) == tmp_path


def fail(error: BaseException) -> None:
    with quiet_spark():
        os.write(2, b"of the JVM\n")
        raise error


def test_a_command_that_fails_shows_the_last_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for error, shown in ((RuntimeError(), "of the JVM\n"), (FkJoinError(), ""), (KeyboardInterrupt(), ""), (SystemExit(), "")):
        with pytest.raises(type(error)):
            fail(error)
        assert capfd.readouterr().err == shown


def test_a_log_that_cannot_be_is_refused(tmp_path: Path) -> None:
    says = "Spark's log cannot be written to .*: No such file or directory; --spark-log names another file"
    with pytest.raises(FkJoinError, match=says), quiet_spark(tmp_path / "nowhere" / "spark.log"):
        pass


def test_a_full_disk_holds_nobody_up(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_spark(Path("/dev/full")):
        os.write(2, b"lost\n" * 20_000)
    assert capfd.readouterr().err == ""


def test_errors_of_spark_are_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "spark.log"
    refused = IllegalArgumentException("[INVALID_CONF] 'many' is not a number\nSQLSTATE: 22022")
    for file, rest in ((log, f"Spark's log, {log}, has the rest"), (None, "Spark's log above has the rest")):
        with pytest.raises(FkJoinError, match=rf"^'many' is not a number\n{rest}$"), spark_log(file):
            raise refused
    for error in (FkJoinError("of fkjoin"), KeyError("a fault")):
        with pytest.raises(type(error)) as found, spark_log(None):
            raise error
        assert found.value is error

    monkeypatch.setattr(main, "app", MagicMock(side_effect=refused))
    monkeypatch.setattr(main, "end_when_told", lambda: None)
    with pytest.raises(SystemExit, match="1"):
        main.main()
    assert capsys.readouterr().err == "fkjoin: 'many' is not a number\n"
