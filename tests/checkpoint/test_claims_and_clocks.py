"""Claims on a checkpoint, by the test's clock: which query is refused, which takes over, and which notices that it lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from fkjoin.checkpoint import claim, claim_files
from fkjoin.checkpoint.batch_log import BatchLog, Mark
from fkjoin.checkpoint.claim import claimed, require_held
from fkjoin.checkpoint.claim_files import CLAIM_FILE, ClaimFiles
from fkjoin.errors import FkJoinError
from fkjoin.sinks import batches
from fkjoin.storage.arrow_files import without_spark
from fkjoin.storage.local_files import LocalFiles

SPARK = cast(SparkSession, None)

NEITHER: Callable[[], None] = lambda: None  # noqa: E731


class Clock:
    """Time that passes while the code sleeps; each second it calls what others do meanwhile."""

    def __init__(self) -> None:
        self.now, self.each_second = 1000.0, NEITHER

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        if int(self.now) > int(before):
            self.each_second()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(claim, "time", made)
    monkeypatch.setattr(claim, "_lapsed", set())
    return made


@pytest.fixture(autouse=True, params=["of this machine", "of an object store"])
def files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without a JVM; an object store cannot date them."""
    monkeypatch.setattr(claim_files, "checkpoint_files", lambda _, folder: without_spark(folder))
    if request.param == "of an object store":
        monkeypatch.setattr(LocalFiles, "local", None)
        monkeypatch.setattr(LocalFiles, "touch", lambda *_: False)


class Other:
    """Another process, of another machine unless it is said."""

    def __init__(self, folder: Path, host: str = "elsewhere", process: int = 7, **more: Any) -> None:
        self.files, self.hour = ClaimFiles(SPARK, str(folder)), 0
        self.said = json.dumps({"host": host, "process": process, "machine": f"kernel of {host}", **more}).encode()
        self.number = self.files.next()
        assert self.files.make(self.number, self.said)

    def renew(self) -> None:
        """By a clock of its own, which goes back."""
        self.hour -= 1
        file = Path(self.files.place.partition(":")[2]) / f"{CLAIM_FILE}.{self.number}"
        os.utime(file, (self.hour * 3600 + 1e9,) * 2)


def holder(folder: Path) -> dict[str, Any]:
    newest = ClaimFiles(SPARK, str(folder)).newest()
    return newest.owner if newest is not None and not newest.is_free else {}


def refused(folder: Path, says: str) -> None:
    with pytest.raises(FkJoinError, match=f"in use by process {says}: stop that job first"):
        claimed(SPARK, str(folder)).__enter__()


def test_a_claim_of_another_machine_is_refused_once_it_is_renewed_whatever_its_clock_says(tmp_path: Path, clock: Clock) -> None:
    other, begun = Other(tmp_path), clock.now
    clock.each_second = lambda: other.renew() if int(clock.now) % 10 == 0 else None
    refused(tmp_path, "7 on elsewhere")
    assert clock.now - begun <= 10
    assert holder(tmp_path)["host"] == "elsewhere"


def test_a_claim_that_has_not_changed_for_a_minute_of_ones_own_clock_is_taken_over(tmp_path: Path, clock: Clock) -> None:
    """For another one of that process the wait is two renewals long."""
    for name in ("one", "two"):
        Other(tmp_path / name)
    begun = clock.now
    with claimed(SPARK, str(tmp_path / "one")):
        assert holder(tmp_path / "one")["process"] == os.getpid()
        assert 60 <= clock.now - begun <= 61
        with claimed(SPARK, str(tmp_path / "two")):
            assert 80 <= clock.now - begun <= 82
    assert holder(tmp_path / "one") == holder(tmp_path / "two") == {}


def test_an_owner_that_lost_one_claim_and_lives_keeps_its_others(tmp_path: Path, clock: Clock) -> None:
    Other(tmp_path / "one")
    two = Other(tmp_path / "two")
    with claimed(SPARK, str(tmp_path / "one")):
        clock.each_second = lambda: two.renew() if int(clock.now) % 10 == 0 else None
        refused(tmp_path / "two", "7 on elsewhere")


def test_a_start_elsewhere_does_not_wait_for_one_that_waits(tmp_path: Path, clock: Clock) -> None:
    Other(tmp_path / "one")
    started = list[bool]()

    def start() -> None:
        with claimed(SPARK, str(tmp_path / "two")):
            pass

    def start_meanwhile() -> None:
        clock.each_second = NEITHER
        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        thread.join(5)
        started.append(not thread.is_alive())

    clock.each_second = start_meanwhile
    with claimed(SPARK, str(tmp_path / "one")):
        assert started == [True]


def test_a_claim_that_is_given_up_meanwhile_is_taken_at_once(tmp_path: Path, clock: Clock) -> None:
    other = Other(tmp_path)
    clock.each_second = lambda: other.files.give_up(other.number)
    (tmp_path / "metadata").touch()
    begun = clock.now
    with claimed(SPARK, str(tmp_path)):
        assert clock.now - begun <= 2
        assert holder(tmp_path)["process"] == os.getpid()


@pytest.mark.parametrize("text", ['{"host": "elsew', '{"process": 5}'])
def test_a_claim_whose_owner_was_killed_while_it_was_written_lapses_too(tmp_path: Path, clock: Clock, text: str) -> None:
    """The file does not say whose claim it is."""
    (tmp_path / f"{CLAIM_FILE}.3").write_text(text)
    begun = clock.now
    with claimed(SPARK, str(tmp_path)):
        assert 60 <= clock.now - begun <= 61
        assert holder(tmp_path)["process"] == os.getpid()


def test_of_two_that_take_over_a_claim_one_is_refused(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen that it lapsed, and the other one is faster by a moment."""
    Other(tmp_path)
    make, faster = ClaimFiles.make, list[Other]()

    def late(files: ClaimFiles, number: int, said: bytes) -> bool:
        if not faster:
            monkeypatch.setattr(ClaimFiles, "make", make)
            faster.append(Other(tmp_path, "third"))
            clock.each_second = faster[0].renew
        return make(files, number, said)

    monkeypatch.setattr(ClaimFiles, "make", late)
    refused(tmp_path, "7 on third")
    assert holder(tmp_path)["host"] == "third"


def test_one_that_comes_with_an_old_number_does_not_hold_it(tmp_path: Path) -> None:
    """It looked before others took the claim over, and their files before the last are deleted."""
    files = ClaimFiles(SPARK, str(tmp_path))
    number = files.next()
    Other(tmp_path)
    Other(tmp_path, "third")
    assert not files.make(number, b'{"host": "late", "process": 1}')
    assert holder(tmp_path)["host"] == "third"


def taken(folder: Path, held: claim._HeldClaim) -> Other:
    return Other(folder)


def overwritten(folder: Path, held: claim._HeldClaim) -> None:
    """An object store let two make the same file."""
    held.files.write(held.number, b'{"host": "elsewhere", "process": 7}')


def restored(folder: Path, held: claim._HeldClaim) -> Other:
    """A backup brings lower numbers back, and the checkpoint is started elsewhere."""
    (folder / f"{CLAIM_FILE}.{held.number}").unlink()
    (folder / f"{CLAIM_FILE}.1").write_text("" if held.files.folder.local else "{}")
    other = Other(folder)
    assert (folder / f"{CLAIM_FILE}.2").exists()
    return other


LOST = [(taken, False), (taken, True), (overwritten, False), (restored, False), (restored, True)]


@pytest.mark.parametrize(("lose", "given_up"), LOST)
def test_an_owner_that_stood_still_stops_its_queries_when_another_has_its_claim(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lose: Callable[..., Any], given_up: bool
) -> None:
    query = Mock(_why_stopped="")
    (tmp_path / "metadata").touch()
    for _ in range(3):
        Other(tmp_path, socket.gethostname(), os.getpid(), machine=claim._machine())
    with claimed(SPARK, str(tmp_path)) as held:
        held.queries.append(query)
        held.renew()
        assert not query.stop.called
        other = lose(tmp_path, held)
        if given_up:
            other.files.give_up(other.number)
        held.renew()
        assert query.stop.called
        assert "has taken over the claim on checkpoint" in query._why_stopped
        assert lose is not taken or given_up or "process 7 on elsewhere" in query._why_stopped
        assert "its queries in this process are stopped" in caplog.text
    assert holder(tmp_path).get("host") == (None if given_up else "elsewhere"), "it gives up its own claim only"


def test_a_query_that_does_not_end_does_not_keep_the_others_running(tmp_path: Path) -> None:
    """The batch of such a query waits for a place that does not answer."""
    hangs, ended = threading.Event(), threading.Event()
    queries: Any = [SimpleNamespace(stop=hangs.wait), SimpleNamespace(stop=ended.set)]
    with claimed(SPARK, str(tmp_path)) as held:
        held.queries.extend(queries)
        Other(tmp_path)
        renewing = threading.Thread(target=held.renew, daemon=True)
        renewing.start()
        assert ended.wait(5)
        hangs.set()
        renewing.join(30)


def test_a_host_that_gets_another_name_keeps_its_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claimed(SPARK, str(tmp_path)) as held:
        monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
        held.renew()
        assert held.taken is None


def test_a_batch_is_not_done_when_its_process_stood_still_and_has_lost_the_claim(tmp_path: Path, clock: Clock) -> None:
    """Spark would note in the other's checkpoint that it is done.  A process that did not stand still does not look."""
    require_held(SPARK, str(tmp_path))
    with claimed(SPARK, str(tmp_path)):
        Other(tmp_path)
        require_held(SPARK, f"{tmp_path}/")
        clock.now += 31
        with pytest.raises(FkJoinError, match="^process 7 on elsewhere has taken over the claim on checkpoint"):
            require_held(SPARK, f"{tmp_path}/")
        with pytest.raises(FkJoinError, match="has taken over the claim"):
            require_held(SPARK, f"file:{tmp_path}")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a batch of a number, and fails unless its number is 0."""
    monkeypatch.setattr(batches, "query_id", lambda *_: "q")
    monkeypatch.setattr(BatchLog, "mark", lambda _, number: Mark(number, 1))

    def sink(_: object, __: object, number: int) -> None:
        assert number == 0, "it was written"

    give = batches._writing(cast(Any, None), sink, str(tmp_path), None)
    return partial(give, cast(Any, SimpleNamespace(sparkSession=SPARK)))


def test_a_batch_is_not_written_without_the_claim(tmp_path: Path, clock: Clock, write: Any) -> None:
    """A sink that keeps no batches, such as a topic, would have it from both."""
    with claimed(SPARK, str(tmp_path)):
        write(0)
        Other(tmp_path)
        clock.now += 31
        with pytest.raises(FkJoinError, match="has taken over the claim"):
            write(1)


def test_a_batch_is_not_done_whose_claim_was_taken_over_while_it_was_written(tmp_path: Path, clock: Clock, write: Any) -> None:
    """``write`` gives the batch a time."""

    def sink(*_: object) -> None:
        Other(tmp_path)
        clock.now += 31

    give = batches._writing(cast(Any, None), cast(Any, sink), str(tmp_path), None)
    with claimed(SPARK, str(tmp_path)), pytest.raises(FkJoinError, match="has taken over the claim"):
        give(cast(Any, SimpleNamespace(sparkSession=SPARK)), 0)


def test_a_batch_without_a_time_is_not(monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    """No place would know it again."""
    monkeypatch.setattr(BatchLog, "mark", lambda _, number: Mark(number, None))
    with pytest.raises(FkJoinError, match="does not say when batch 7 began: restore it from a backup"):
        write(7)


def test_a_claim_that_somebody_has_deleted_or_emptied_is_written_again(tmp_path: Path) -> None:
    with claimed(SPARK, str(tmp_path)) as held:
        file = tmp_path / f"{CLAIM_FILE}.{held.number}"
        for spoil in (file.unlink, lambda: file.write_text("" if held.files.folder.local else "{}")):
            spoil()
            assert holder(tmp_path) == {}
            held.renew()
            assert holder(tmp_path)["process"] == os.getpid()
            assert held.taken is None


def test_a_process_here_is_asked_whether_it_lives(tmp_path: Path, clock: Clock, another: subprocess.Popen[bytes]) -> None:
    """The number of a process says nothing in another space of processes, such as another container with this host's name."""
    here, host, begun = {"machine": claim._machine()}, socket.gethostname(), clock.now
    other = Other(tmp_path, host, another.pid, **here)
    clock.now = (tmp_path / f"{CLAIM_FILE}.{other.number}").stat().st_mtime
    clock.each_second = other.renew
    refused(tmp_path, f"{another.pid} on {host}")
    another.kill()
    another.wait(30)
    begun, clock.each_second = clock.now, NEITHER
    for process in (another.pid, os.getpid()):
        with claimed(SPARK, str(tmp_path)):
            assert clock.now == begun
        Other(tmp_path, host, process, **here)
    elsewhere = Other(tmp_path, host, os.getpid(), machine="another space of processes")
    clock.each_second = elsewhere.renew
    refused(tmp_path, f"{os.getpid()} on {host}")
