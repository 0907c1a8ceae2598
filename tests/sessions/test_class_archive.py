"""Local sessions begin with the classes that ``fkjoin prepare`` has kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fkjoin.errors import FkJoinError
from fkjoin.sessions.class_archive import ARCHIVE_PLACE, archive, make, options
from fkjoin.sessions.java import quoted
from fkjoin.sessions.launch import _java_options

pytestmark = pytest.mark.nightly

_SESSION = """
import fkjoin
spark = fkjoin.session("archive", "local[1]", ui_enabled="false")
print("pid", spark._jvm.java.lang.ProcessHandle.current().pid())
print(open(f"/proc/{spark._jvm.java.lang.ProcessHandle.current().pid()}/maps").read())
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which classes are kept; no other variable says anything about them."""
    for name in ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    found = tmp_path / 'a folder, "quoted"' / "classes.jsa"
    monkeypatch.setenv(ARCHIVE_PLACE, str(found))
    return found


def test_options_have_the_file_unless_somebody_else_has_said_what_to_do(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the command line come later, and have precedence."""
    own, temporary = Path("/own"), '-Djava.io.tmpdir="/own"'
    assert _java_options(own, is_local=True) == f"{temporary} ", "there is no file yet"
    file.parent.mkdir()
    file.touch()
    ours = f"-XX:SharedArchiveFile={quoted(file)} -Xlog:disable"
    assert _java_options(own, is_local=False) == f"{temporary} "
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xshare:off")
    assert _java_options(own, is_local=True) == f"{temporary} {ours} -Xshare:off"
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        with monkeypatch.context() as other:
            other.setenv(name, "-XX:SharedArchiveFile=other")
            assert _java_options(own, is_local=True) == f"{temporary} -Xshare:off"


@pytest.mark.spark
def test_a_session_begins_with_what_another_has_kept(file: Path) -> None:
    assert make([sys.executable, "-c", _SESSION]) == file
    assert list(file.parent.iterdir()) == [file]
    run = subprocess.run([sys.executable, "-c", _SESSION], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("pid "), "the JVM says nothing of its own"
    assert str(file) in run.stdout


_EXAMINED = """
from fkjoin.cli.doctor import examine
print([(found.fine, found.state, found.advice) for found in examine("local[1]", "", {}) if found.subject == "Spark's classes"])
"""


@pytest.mark.spark
def test_the_doctor_speaks_of_a_file_that_is_not_right_and_a_session_starts_without_it(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"of another Java")
    found = f"{file} was made with another Java or Spark, so that sessions start without it"
    run = subprocess.run([sys.executable, "-c", _EXAMINED], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == repr([(False, found, "run `fkjoin prepare` again, or delete the file")])


def test_what_was_kept_remains_when_a_program_fails(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:SharedArchiveFile=of-an-earlier-Spark.jsa")
    file.parent.mkdir()
    file.write_bytes(b"kept")
    options = "import os; print(os.environ['SPARK_SUBMIT_OPTS']); raise SystemExit(3)"
    with pytest.raises(FkJoinError, match=r"left with status 3.*fkjoin doctor(?s:.*)\n-XX:ArchiveClassesAtExit="):
        make([sys.executable, "-c", options])
    with pytest.raises(FkJoinError, match="left with status 0"):
        make([sys.executable, "-c", "pass"])
    assert list(file.parent.iterdir()) == [file]
    assert file.read_bytes() == b"kept"


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv(ARCHIVE_PLACE, str(tmp_path / "a-file" / "classes.jsa"))
    with pytest.raises(FkJoinError, match=f"cannot be kept in .*set {ARCHIVE_PLACE} to a file that can be written"):
        make(["true"])
    monkeypatch.setenv(ARCHIVE_PLACE, "")
    with pytest.raises(FkJoinError, match=f"{ARCHIVE_PLACE} is empty.*unset it"):
        make(["true"])
    assert archive() is None
    assert options() == []
    monkeypatch.setenv(ARCHIVE_PLACE, "classes")
    assert archive() == Path.cwd() / "classes"
    monkeypatch.delenv(ARCHIVE_PLACE)
    assert archive() == Path(sys.prefix) / "share" / "fkjoin" / "classes.jsa"
