"""No process and no folder is left behind, however and whenever a command is ended."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from pyspark import SparkContext

from fkjoin.errors import FkJoinError
from fkjoin.jobs.ending import naming_the_end_of_the_jvm
from fkjoin.sessions import launch, own_folder
from tests.support.job_files import GOOD, job, write_rows
from tests.support.processes import Command, ends, linux
from tests.support.queries import write_lines
from tests.support.sampling import sampled

pytestmark = linux


MOMENTS = ("a shell of Spark's", "the JVM", "a session", "the first batch", "a batch", "the stop")
JVM_KILLED = (
    "fkjoin: the JVM was killed (SIGKILL), as systems do when memory runs out. Give the machine or the container more memory, "
)


def reached(moment: str, one: Command, folder: Path) -> Callable[[], object]:
    """Return a check that tells whether the moment has come."""
    commands = one.processes
    log = folder / "job.log"
    checks: dict[str, Callable[[], object]] = {
        "a shell of Spark's": lambda: re.search("spark-(submit|class)", str(commands())),
        "the JVM": lambda: one.java() is not None,
        "a session": lambda: (folder / "checkpoint").exists(),
        "the first batch": lambda: "first batch begins" in one.said.read_text(),
    }
    return checks.get(moment, lambda: log.exists() and log.stat().st_size)


def started(command: Callable[..., Command], folder: Path, text: str) -> Command:
    """Start a job that goes on, with a row in each of its tables."""
    write_rows(folder)
    text = text.replace("deleted = \"op = 'd'\"\n", "").replace('trigger = "available-now"\n', "")
    return command("run", str(job(folder, text)), "--spark-log", str(folder / "spark.log"))


SAMPLE = [("the JVM", signal.SIGKILL, True), ("the JVM", signal.SIGKILL, False), ("the JVM", signal.SIGINT, False)]
"""A few; ``make faults`` tries ``ALL``.  Of a batch and of the stop: tests/jobs/test_secrets.py."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ALL = [(moment, number, of_java) for moment in MOMENTS for number in SIGNALS for of_java in (False, True)]


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.parametrize(("moment", "number", "of_java"), sampled(ALL, SAMPLE))
def test_nothing_is_left_of_a_job(
    command: Callable[..., Command], tmp_path: Path, moment: str, number: int, of_java: bool
) -> None:
    """The signal goes to the command, or to its JVM."""
    text = GOOD.replace('"spark.fkjoin.index.dir" = "{folder}/index"\n', "")
    one = started(command, tmp_path, text)
    one.wait_for(moment, reached(moment, one, tmp_path))
    victim = one.java() if of_java else one.process.pid
    if victim is None:
        pytest.skip(f"{moment}: there is no JVM yet")
    if moment == "the stop":
        one.process.send_signal(signal.SIGTERM)
    if number == signal.SIGINT and not of_java:  # as a terminal does
        os.killpg(victim, number)
    else:
        os.kill(victim, number)
    if number == signal.SIGINT and of_java and moment != "the stop":  # the JVM leaves it to the command: the job goes on
        one.wait_for("a batch", reached("a batch", one, tmp_path))
        one.process.send_signal(signal.SIGTERM)
    one.ends()
    if (moment, number, of_java) == ("the JVM", signal.SIGINT, False):
        assert one.process.returncode == 130
    said = one.said.read_text()
    if not of_java or number == signal.SIGKILL:
        assert "Traceback" not in said
    if of_java and number == signal.SIGKILL and (one.process.returncode or moment != "the stop"):
        assert one.process.returncode == 1
        assert JVM_KILLED in said
        assert JVM_KILLED in (tmp_path / "spark.log").read_text()
    with patch("tempfile.tempdir", str(one.temporary)):
        for _ in range(100):  # a process that has no memory any more holds its files for a moment
            own_folder.sweep()  # as the next start does
            if not list(one.temporary.glob("fkjoin-run-*")):
                break
            time.sleep(0.1)
    kept = {path.name for path in one.temporary.iterdir()}
    assert kept <= {f"fkjoin-{os.getuid()}"}, "but indexes, which the next start continues with"


@pytest.mark.nightly
@pytest.mark.spark
def test_a_job_whose_workers_are_killed_says_so(command: Callable[..., Command], tmp_path: Path) -> None:
    """A local session without retries: the query fails, and continues when it is started again."""
    one = started(command, tmp_path, GOOD)
    one.wait_for("a batch", reached("a batch", one, tmp_path))
    for process, line in one.processes().items():
        if "pyspark.daemon" in line:
            os.kill(process, signal.SIGKILL)
    write_lines(tmp_path / "orders", "2", [{"id": "o2", "customer": "c1", "amount": 2, "lsn": 2}])
    one.ends()
    said = one.said.read_text()
    assert one.process.returncode == 1
    assert "Traceback" not in said
    # Spark asks its daemon for another worker, or reads from one of those that are gone.
    assert re.search(r"fkjoin: query sink-out failed: (Python worker exited unexpectedly|IOException: Stream closed)", said)
    assert "start the query again: it continues with this batch" in said


def test_how_a_jvm_has_ended_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a JVM that runs is what it is, as is one of a JVM that others have started."""
    error = ConnectionRefusedError()
    monkeypatch.setattr(launch, "_END_S", 0.01)
    for command, says in (
        ("kill -9 $$", JVM_KILLED.removeprefix("fkjoin: ")),
        ("kill -11 $$", "the JVM was ended by SIGSEGV. Read the end of Spark's log"),
        ("exit 3", "the JVM has ended with status 3. Read the end of Spark's log"),
    ):
        process = subprocess.Popen(["sh", "-c", f"read line; {command}"], stdin=subprocess.PIPE)
        monkeypatch.setattr(SparkContext, "_gateway", MagicMock(proc=process))
        assert launch.end_of_jvm(error) is None
        process.communicate(b"\n")
        assert str(launch.end_of_jvm(ValueError())).startswith(says)
        heard = list[str]()
        on_from = r"start again: a job continues from its checkpoint$"
        with pytest.raises(FkJoinError, match=on_from), naming_the_end_of_the_jvm(heard.append):
            raise error
        assert heard[0].startswith(says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    none = f"Java: there is none at JAVA_HOME, which is {tmp_path}, so that no session can start:"
    assert str(launch._failure(1)).startswith(f"{none} install a JDK")
    monkeypatch.setattr(SparkContext, "_gateway", None)
    with pytest.raises(ConnectionRefusedError), naming_the_end_of_the_jvm():
        raise error


def test_a_signal_ends_the_start_of_a_jvm(tmp_path: Path) -> None:
    """No hook of forks runs, in which Python would drop what a signal's handler raises."""
    (tmp_path / "bin").mkdir()
    shell = tmp_path / "bin" / "spark-submit"
    shell.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/process\nsleep 0.3\nkill -TERM $PPID\nexec sleep 600\n")
    shell.chmod(0o755)
    program = f"""
import os
from fkjoin.jobs.ending import end_when_told
from fkjoin.sessions import launch
launch.spark_home = lambda: {str(tmp_path)!r}
end_when_told()
os.register_at_fork(after_in_parent=lambda: print("a hook"))
try:
    launch.launch({{}})
except SystemExit as told:
    print(type(told).__name__)
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environment, timeout=60) == b"SystemExit\n"
    assert ends(int((tmp_path / "process").read_text()))
    assert list(tmp_path.glob("fkjoin-*")) == []


def test_a_folder_is_swept_once_all_that_hold_it_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM inherits the lock."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "fkjoin-0").mkdir()
    folder = own_folder.HeldFolder()
    assert folder.lock is not None
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[folder.lock])
    folder.let_go()
    own_folder.sweep()
    assert folder.path.is_dir(), "another process holds it"
    other.kill()
    other.communicate()
    with own_folder.held_folder() as mine:  # which sweeps
        assert not folder.path.exists()
        assert mine.stat().st_mode & 0o777 == 0o700
        assert len(mine.name) <= 40, "there is room for sockets"
    assert {path.name for path in tmp_path.iterdir()} == {"fkjoin-0"}


def test_folders_of_other_kernels_and_users_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own, (host, kernel) = own_folder.folder_prefix(), own_folder.machine()
    of_a_container = tmp_path / f"fkjoin-run-11111111-{kernel}-a"
    of_before_the_kernel = tmp_path / f"fkjoin-run-{host}-22222222-old"
    of_another_kernel = tmp_path / f"fkjoin-run-{host}-22222222-a"
    pipe, link = (tmp_path / f"{own}{name}" for name in ("pipe", "link"))
    for folder in (of_a_container, of_before_the_kernel, of_another_kernel):
        folder.mkdir()
    os.utime(of_before_the_kernel, (1, 1))
    os.mkfifo(pipe)
    link.symlink_to(of_another_kernel)
    with monkeypatch.context() as other:
        other.setattr(own_folder.os, "getuid", lambda: 12345)
        own_folder.sweep()
        assert len(list(tmp_path.iterdir())) == 5, "of another user"
    own_folder.sweep()
    assert {*tmp_path.iterdir()} == {of_another_kernel, pipe, link}


def test_a_folder_that_cannot_be_locked_is_left_to_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", MagicMock(side_effect=OSError(errno.ENOSYS, "no locks")))
    with own_folder.held_folder() as mine:
        own_folder.sweep()
        assert list(tmp_path.iterdir()) == [mine]
    assert list(tmp_path.iterdir()) == []


def test_one_jvm_is_started_for_two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Path] = []
    both = threading.Barrier(2)

    def started(_: object, folder: own_folder.HeldFolder, start: Path) -> object:
        assert start.parent == folder.path
        starts.append(start)
        return object()

    def initialized(gateway: Any) -> None:
        SparkContext._gateway = gateway

    def at_once(_: int) -> None:
        both.wait()
        launch.launch({})

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", MagicMock())
    monkeypatch.setattr(SparkContext, "_ensure_initialized", initialized)
    monkeypatch.setattr(launch, "_started", started)
    with monkeypatch.context() as submitted:
        submitted.setenv("PYSPARK_GATEWAY_PORT", "1")
        launch.launch({})
    assert (starts, list(tmp_path.iterdir())) == ([], []), "nor is a folder made"
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(at_once, range(2)))
    launch.launch({})
    assert len(starts) == 1
    (folder,) = tmp_path.iterdir()
    assert list(folder.iterdir()) == [], "files of the start are gone"


def test_the_users_temporary_folder_is_that_of_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java takes the last one of a command line; what other variables say comes before it."""
    options = "-Da=b -Djava.io.tmpdir=/elsewhere"
    names = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, shown in zip(names, ("", "", f'-Djava.io.tmpdir="/own" {options}'), strict=True):
        with monkeypatch.context() as told:
            told.setenv(name, options)
            assert launch._java_options(Path("/own"), is_local=False).strip() == shown
