"""Processes of a local session that are forked from one, beside those that are started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

from fkjoin.sessions import fork_server
from fkjoin.sessions.local_python import STARTER
from fkjoin.sessions.local_start import FORKS, LENGTH
from tests.support.places import ROOT
from tests.support.processes import ends, load

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere libraries do not outlive a fork")
INTERRUPTED = signal.getsignal(signal.SIGINT) != signal.SIG_IGN
"""True if Ctrl-C interrupts processes; it does not if the tests run in the background."""

PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture
def hangup(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set what this process and those that it starts do when their terminal closes."""
    before = signal.signal(signal.SIGHUP, request.param)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a module of ``tmp_path`` as Spark would, with a fork server of its own; ``PROGRAM`` is one."""
    (tmp_path / "program.py").write_text(dedent(PROGRAM))
    monkeypatch.setattr(fork_server, "_running", None)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    settled = {"PYTHONHASHSEED": "0", "PYTHONPATH": "/spark/python/lib/pyspark.zip"}
    address = fork_server.address(settled)
    assert address is not None
    load(address)

    def start(*arguments: str, forked: bool = True, **environment: str) -> subprocess.Popen[str]:
        given = os.environ | settled | {"FKJOIN_PYTHON": sys.executable, "PYTHONUNBUFFERED": "YES", "HOME": "here"}
        given |= ({FORKS: address} if forked else {}) | environment
        return subprocess.Popen([STARTER, "-m", *arguments], env=given, cwd=tmp_path, **PIPES)

    yield start
    end()
    assert not Path(address).parent.exists()


def running() -> Any:
    """The fork server that this process has started."""
    assert fork_server._running is not None
    return fork_server._running


def end() -> None:
    """Let go of the fork server that this process has started, and wait until it has ended."""
    os.kill(running().process, signal.SIGCONT)  # a test may have failed while it was stopped
    os.close(running().leash)
    os.waitpid(running().process, 0)


PROGRAM = """
    import os, signal, sys, time
    if __name__ == "__main__":
        signals = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM)]
        print(sys.argv[1:], sys.executable, os.getcwd(), sys.path[1:], __spec__.name, signals, hash("a"), *os.environ.items())
        ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        print(ignored, "pyarrow" in sys.modules, os.getppid(), os.getpid())
        print(sys.stdin.read(), file=sys.stderr)
        if "die" in sys.argv:
            os.kill(os.getpid(), 9)
        if "wait" in sys.argv:
            time.sleep(60)
        if "fail" in sys.argv:
            raise ValueError("of the program")
        sys.exit(3)
"""


@linux
@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN], indirect=True)
@pytest.mark.usefixtures("hangup")
def test_a_fork_is_what_a_process_would_be(forks: Callable[..., subprocess.Popen[str]]) -> None:
    ran = {}
    for forked in (True, False):
        process = forks("program", "a b", "", forked=forked)
        said, wrong = process.communicate("input")
        same, (_, imported, parent, itself) = said.splitlines()[0], said.splitlines()[1].split()
        ran[forked] = same, wrong, process.returncode
        assert (imported == "True") == (int(parent) == running().process) == (int(itself) != process.pid) == forked
    assert ran[True] == ran[False]
    assert ran[True][1:] == ("input\n", 3)


@linux
def test_a_worker_whose_connection_is_closed_has_nothing_to_say() -> None:
    """Spark closes it after an idle minute; what a worker wrote then could not be sent, and PySpark would print that."""
    program = """
        import io
        from fkjoin.sessions import fork_server
        fork_server.load()
        from pyspark.worker import main
        written = io.BytesIO()
        try:
            main(io.BufferedReader(io.BytesIO()), written)
        except SystemExit as ended:
            print(ended.code, written.getvalue())
        fork_server._while_open(lambda infile, _: print(infile.read()))(io.BufferedReader(io.BytesIO(b"a task")), written)
    """
    ran = subprocess.run([sys.executable, "-c", dedent(program)], check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["1 b''", "b'a task'"]


@linux
def test_a_fork_that_fails_or_is_killed_says_so(forks: Callable[..., subprocess.Popen[str]]) -> None:
    failed = forks("program", "fail")
    assert "ValueError: of the program" in failed.communicate("")[1]
    assert failed.returncode == 1
    died = forks("program", "die")
    died.communicate("")
    assert died.returncode == 128 + signal.SIGKILL
    unknown = forks("no_such_module")
    assert "No module named no_such_module" in unknown.communicate("")[1]
    assert unknown.returncode == 1


@linux
def test_who_kills_a_process_kills_its_fork(forks: Callable[..., subprocess.Popen[str]]) -> None:
    process = forks("program", "wait")
    assert process.stdout is not None
    process.stdout.readline()
    fork = int(process.stdout.readline().split()[-1])
    process.send_signal(signal.SIGINT)
    assert not ends(fork, within_s=0.5), "whoever interrupts the session ends it otherwise"
    process.kill()
    assert process.stdout.read() == "", "it has ended"
    assert ends(fork)


@linux
def test_there_is_no_fork_where_an_interpreter_would_start_otherwise(forks: Callable[..., subprocess.Popen[str]]) -> None:
    def parent(**environment: str) -> int:
        said, _ = forks("program", **environment).communicate("")
        return int(said.splitlines()[1].split()[2])

    server = running().process
    assert parent(MINE="1", PYTHON_WORKER_FACTORY_PORT="1", SPARK_HOME="there", MALLOC_ARENA_MAX="") == server
    others = {"PYTHONHASHSEED": "1", "PYTHONPATH": "elsewhere", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1", "LC_ALL": "C.ISO"}
    for name, value in others.items():
        assert parent(**{name: value}) == os.getpid(), name
    assert parent(PYTHONPATH="/spark/python/lib/pyspark.zip") == server, "archives are left out"


@linux
def test_without_a_fork_server_a_process_starts_as_it_is(forks: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as closed:  # a file, but nobody listens
        closed.bind(str(tmp_path / "closed"))
    for place in ("no such place", "closed"):
        process = forks("program", **{FORKS: str(tmp_path / place)})
        assert f"{not INTERRUPTED} False {os.getpid()} {process.pid}" in process.communicate("")[0]
        assert process.returncode == 3


@linux
def test_a_server_that_does_not_answer_is_not_waited_for_and_comes_too_late(
    forks: Callable[..., subprocess.Popen[str]],
) -> None:
    other = forks("program", "wait")
    assert other.stdout is not None
    other.stdout.readline()
    os.kill(running().process, signal.SIGSTOP)
    process = forks("program")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    assert process.stdout.readline() == f"{not INTERRUPTED} False {os.getpid()} {process.pid}\n"
    os.kill(running().process, signal.SIGCONT)
    assert process.communicate("") == ("", "\n"), "it has run once"
    assert process.returncode == 3
    assert f"True {running().process}" in forks("program").communicate("")[0]
    assert other.poll() is None, "what has been forked may take its time"
    other.kill()


@linux
@pytest.mark.parametrize("waits", [True, False])
def test_nothing_is_forked_for_who_has_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, waits: bool) -> None:
    forked: list[int] = []
    monkeypatch.setattr(os, "fork", lambda: forked.append(1) or 2**22 + 1)
    request = json.dumps({"arguments": ["this"], "environment": {}, "folder": "."}).encode()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as asking:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        asking.connect(str(tmp_path / "socket"))
        socket.send_fds(asking, [LENGTH.pack(len(request))], [0, 1, 2])
        asking.sendall(request)
        if not waits:
            asking.close()
        assert fork_server._Server(listening, signal.SIG_DFL)._answer() is None
    assert len(forked) == waits


@linux
def test_a_server_that_is_told_nonsense_goes_on(forks: Callable[..., subprocess.Popen[str]]) -> None:
    for nonsense in (b"", b"\0", b"\0\0\0\3abc", b"\0\0\0\2{}", b"\0\0\0\x62[]"):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(running().address)
            asking.sendall(nonsense)
    assert f"True {running().process}" in forks("program").communicate("")[0]


@linux
def test_a_server_ends_after_its_parent_and_its_forks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(dedent(PROGRAM))
    program = f"""
        import os, subprocess, sys
        from fkjoin.sessions import fork_server
        from tests.support.processes import load
        address = fork_server.address({{}})
        load(address)
        environment = os.environ | {{"FKJOIN_PYTHON": sys.executable, "{FORKS}": address, "PYTHONUNBUFFERED": "YES"}}
        command = [{str(STARTER)!r}, "-m", "program"]
        started = subprocess.Popen(command, env=environment, stdin=0, stdout=subprocess.PIPE, text=True)
        started.stdout.readline()
        print(address, *started.stdout.readline().split()[2:], flush=True)
        os.kill(os.getpid(), 9)
    """
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    parent = subprocess.Popen([sys.executable, "-c", dedent(program)], cwd=tmp_path, env=environment, **PIPES)
    assert parent.stdin is not None
    assert parent.stdout is not None
    address, server, fork = parent.stdout.readline().split()
    assert parent.wait() == -signal.SIGKILL
    assert not ends(int(fork), within_s=0.5), "it waits for input"
    assert Path(address).exists(), "and its server for it"
    parent.stdin.close()
    assert parent.stdout.read() == "", "all have closed it"
    assert ends(int(server))
    assert not Path(address).parent.exists()


@linux
def test_a_server_that_does_not_start_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fork_server, "_running", None)
    (tmp_path / "fkjoin.py").touch()
    monkeypatch.chdir(tmp_path)
    first = fork_server.address({})
    assert first is not None
    os.waitid(os.P_PID, running().process, os.WEXITED | os.WNOWAIT)
    environment = os.environ | {"FKJOIN_PYTHON": sys.executable, FORKS: first}
    subprocess.run([STARTER, "-m", "this"], env=environment, check=True)
    out, wrong = capfd.readouterr()
    assert out.startswith("The Zen of Python")
    assert wrong == ""
    assert fork_server.address({}) != first
    assert not Path(first).parent.exists()
    end()
    shutil.rmtree(Path(running().address).parent)


@linux
def test_one_server_for_all_that_start_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fork_server, "_running", None)
    first = fork_server.address({"A": "1"})
    assert first == fork_server.address({"A": "2", "SPARK_HOME": "there"}) is not None
    process = running().process
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert fork_server.address({}) == first, "processes have the environment that the session began with"
    second = fork_server.address({"PYTHONHASHSEED": "7"})
    assert second not in (first, None)
    os.waitpid(process, 0)  # nobody needs it
    os.kill(running().process, signal.SIGKILL)
    os.waitid(os.P_PID, running().process, os.WEXITED | os.WNOWAIT)
    third = fork_server.address({"PYTHONHASHSEED": "7"})
    assert third not in (second, None)
    end()
    monkeypatch.setattr(fork_server, "_running", None)
    place = tmp_path / ("long" * 40)
    place.mkdir()
    monkeypatch.setattr(fork_server, "own_folder", lambda: place)
    assert fork_server.address({}) is None, "addresses of sockets are short"
    assert not list(place.iterdir())
    monkeypatch.setattr(sys, "platform", "darwin")
    assert fork_server.address({}) is None


def test_what_workers_need_is_imported_before_they_are_forked() -> None:
    program = """
        import gc, os, sys
        from fkjoin.sessions import fork_server
        names = fork_server.NEEDED
        fork_server.NEEDED = ("fkjoin.no_such_module", *names)
        assert not set(names) & set(sys.modules)
        fork_server.load()
        assert set(names) <= set(sys.modules) and gc.get_freeze_count() > 10_000
        for _ in range(2):
            if not os.fork():
                import numpy
                os.write(1, f"{numpy.random.rand()}\\n".encode())
                os._exit(0)
            os.wait()
    """
    run = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True)
    assert len(set(run.stdout.split())) == len(run.stdout.split()) == 2, run.stdout


class Parent(StatefulProcessor):
    """Says which process its worker was forked from, and in a file where it was asked for its states."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def init(self, handle: Any) -> None:
        with self._file.open("a") as file:
            print(os.getppid(), file=file)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        list(rows)
        yield pd.DataFrame({"parent": [os.getppid()]})


@linux
@pytest.mark.spark
def test_all_processes_are_forked_of_one_and_from_its_folder(spark: SparkSession, tmp_path: Path) -> None:
    def described(_: Any) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"parent": [os.getppid()], "folder": [sys.path[0]]})

    ((parent, folder),) = spark.range(1, numPartitions=1).mapInArrow(described, "parent long, folder string").collect()
    asked = tmp_path / "asked"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("line\n")
    lines = spark.readStream.text(str(tmp_path / "in"))
    states = lines.groupBy("value").transformWithStateInPandas(Parent(asked), "parent long", "append", "None")
    query = states.writeStream.format("memory").queryName("parents").trigger(availableNow=True).start()
    query.awaitTermination()
    assert {other for (other,) in spark.table("parents").collect()} == {parent}, "the daemon of all workers"
    server, *workers = asked.read_text().split()
    assert int(server) == running().process
    assert set(workers) == {str(parent)}
    assert Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1] == server, "of which the daemon is"
    assert folder == "", "the one that it was started in"
