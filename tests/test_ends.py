"""No process and no folder is left behind, however and whenever a command is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fkjoin.spark import own_folder
from tests.test_fork_server import ends
from tests.test_job import GOOD, job
from tests.test_spark_engine import write_lines

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
pytestmark = linux

EVERY = bool(os.environ.get("FKJOIN_EVERY_FAULT"))
"""Set by ``make faults``: every signal at every moment, not a sample."""


class Command:
    """A command, with all processes that come of it; they have a variable of their own in common."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.temporary, self.said = folder / "tmp", folder / "said.txt"
        self.temporary.mkdir(exist_ok=True)
        self._mark = f"FKJOIN_TEST={uuid.uuid4()}".encode()
        name, _, value = self._mark.decode().partition("=")
        environment = os.environ | {"TMPDIR": str(self.temporary), name: value, "PYTHONUNBUFFERED": "1"}
        with self.said.open("wb") as out:
            command = [sys.executable, "-m", "fkjoin.cli", *arguments]
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)

    def processes(self) -> dict[int, str]:
        """Those that are there, with their command lines."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if line and self._mark in (place / "environ").read_bytes().split(b"\0"):
                    found[int(place.name)] = line
            except (OSError, ValueError):  # it has ended
                pass
        return found

    def java(self) -> int | None:
        """The JVM's process."""
        return next((number for number, line in self.processes().items() if "deploy.SparkSubmit" in line), None)

    def wait_for(self, what: str, reached: Callable[[], object]) -> None:
        for _ in range(12_000):
            if reached():
                return
            assert self.process.poll() is None, f"{what}: {self.said.read_text()[-3000:]}"
            time.sleep(0.005)
        raise AssertionError(f"{what} is not reached: {self.said.read_text()[-3000:]}")

    def ends(self) -> None:
        """Wait until all processes are gone; they fail who are not, long after they should be."""
        self.process.wait(60)
        for _ in range(600):
            if not (left := self.processes()):
                return
            time.sleep(0.1)
        raise AssertionError(f"left: {left}")

    def end_by_force(self) -> None:
        for number in self.processes():
            os.kill(number, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    made: list[Command] = []

    def start(*arguments: str) -> Command:
        made.append(Command(tmp_path, *arguments))
        return made[-1]

    yield start
    for one in made:
        one.end_by_force()


MOMENTS = ("a shell of Spark's", "the JVM", "a session", "a batch", "the stop")


def reached(moment: str, one: Command, folder: Path) -> Callable[[], object]:
    """Whether the moment is there."""
    commands = one.processes
    if moment == "a shell of Spark's":
        return lambda: any("spark-submit" in line or "spark-class" in line for line in commands().values())
    if moment == "the JVM":
        return lambda: one.java() is not None
    if moment == "a session":
        return lambda: (folder / "checkpoint").exists()
    return lambda: (folder / "job.log").exists() and (folder / "job.log").stat().st_size


SAMPLE = [
    ("a shell of Spark's", signal.SIGINT, False),
    ("the JVM", signal.SIGTERM, False),
    ("the JVM", signal.SIGKILL, False),
    ("a batch", signal.SIGKILL, False),
    ("a batch", signal.SIGKILL, True),
    ("the stop", signal.SIGINT, False),
]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ALL = [(moment, number, of_java) for moment in MOMENTS for number in SIGNALS for of_java in (False, True)]


@pytest.mark.spark
@pytest.mark.parametrize(("moment", "number", "of_java"), ALL if EVERY else SAMPLE)
def test_nothing_is_left_of_a_job(
    command: Callable[..., Command], tmp_path: Path, moment: str, number: signal.Signals, of_java: bool
) -> None:
    """The signal goes to the command, or to its JVM."""
    write_lines(tmp_path / "orders", "1", [{"id": n, "customer": "c", "amount": n, "lsn": 1, "op": "u"} for n in range(9)])
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    text = GOOD.replace('trigger = "available-now"\n', "").replace('"spark.fkjoin.index.dir" = "{folder}/index"\n', "")
    one = command("run", str(job(tmp_path, text)), "--spark-log", str(tmp_path / "spark.log"))
    one.wait_for(moment, reached(moment, one, tmp_path))
    if moment == "the stop":
        one.process.send_signal(signal.SIGTERM)
    victim = one.java() if of_java else one.process.pid
    if number == signal.SIGINT and not of_java:  # as a terminal does
        os.killpg(victim, number)
    elif victim is not None:
        os.kill(victim, number)
    one.ends()
    if not of_java:
        assert "Traceback" not in one.said.read_text()
    own_folder.sweep(one.temporary)  # as the next start does
    kept = {path.name for path in one.temporary.iterdir()}
    assert kept <= {f"fkjoin-{os.getuid()}"}, "but indexes, which the next start goes on with"


@pytest.mark.spark
def test_nothing_is_left_of_a_command_that_has_ended(command: Callable[..., Command], tmp_path: Path) -> None:
    from tests.conftest import TRACES

    trace = str(TRACES / "left-empty-string-keys.in.jsonl")
    one = command("replay", trace, "--engine", "spark", "--events-per-batch", "100", "--buckets", "1")
    one.wait_for("a JVM", lambda: one.java() is not None)
    one.ends()
    assert one.process.returncode == 0
    assert list(one.temporary.iterdir()) == []


@pytest.mark.parametrize("of_a_thread", [False, True])
def test_a_process_ends_with_its_parent_but_not_with_a_thread_of_it(of_a_thread: bool) -> None:
    program = f"""
import os, subprocess, sys, threading
from fkjoin.spark.launch import _bound_to
children, pipe = [], subprocess.PIPE
def start():
    command = ["sh", "-c", "head -c 5; exec sleep 600"]
    children.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, preexec_fn=_bound_to(os.getpid()), bufsize=0))
thread = threading.Thread(target=start)
thread.start() if {of_a_thread} else start()
while {of_a_thread} and len(os.listdir("/proc/self/task")) > 1:
    pass
children[0].stdin.write(b"alive")
print(children[0].pid, children[0].stdout.read(5).decode(), flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, said = parent.stdout.readline().split()
    assert said == "alive", "the thread has ended, not the process"
    parent.kill()
    parent.wait()
    if of_a_thread:  # a JVM sees that its input has ended
        os.kill(int(child), signal.SIGKILL)
    assert ends(int(child))


def test_a_folder_is_swept_once_its_owner_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = f"""
import sys, tempfile
tempfile.tempdir = {str(tmp_path)!r}
from fkjoin.spark.own_folder import own_folder
print(own_folder(), flush=True)
(own_folder() / "file").touch()
sys.stdin.read()
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    own_folder.sweep(tmp_path)
    assert folder.is_dir(), "its owner is there"
    owner.kill()
    owner.communicate()
    (tmp_path / "fkjoin-0").mkdir()
    with own_folder.held_folder() as mine:  # which sweeps
        assert not folder.exists()
        assert mine.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in tmp_path.iterdir()} == {"fkjoin-0"}


def test_a_folder_is_removed_when_its_process_ends(tmp_path: Path) -> None:
    program = "from fkjoin.spark.own_folder import own_folder as f; (f() / 'a').touch(); assert f() == f(); print(f())"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert Path(run.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []
