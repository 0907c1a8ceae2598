"""Reports on a job's queries: what each does, and since when; with queries that are not Spark's."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console, Group

from fkjoin.checkpoint.progress import QueryPhase, moment
from fkjoin.jobs.follower import Follower
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_sections import JobSection
from fkjoin.jobs.job_sinks import PlannedQuery
from fkjoin.jobs.runner import Stop, _run, _tables
from fkjoin.jobs.screen import Screen
from fkjoin.jobs.shown import panel
from fkjoin.metrics import Metrics
from fkjoin.metrics.page import ShownJob, status
from fkjoin.metrics.report import Mode, QueryReport
from fkjoin.sinks.retry import repeated
from tests.support.progress import idle, progress

WAITING = {"message": "Waiting for data to arrive", "isDataAvailable": False, "isTriggerActive": False}
ASKING = {"message": "Getting offsets from KafkaV2[Subscribe[orders]]", "isDataAvailable": False, "isTriggerActive": True}
WORKING = {"message": "Processing new data", "isDataAvailable": True, "isTriggerActive": True}

START = 1_767_225_600.0
"""The time at which the first batch of ``progress`` begins."""

SPEC = JobSection.model_validate(
    {
        "name": "shop",
        "checkpoint": "ck",
        "tables": {name: {"path": name, "key": "id", "version": "lsn"} for name in ("orders", "customers")},
        "joins": {"joined": {"left": "orders", "right": "customers", "extractor": "customer"}},
        "sinks": {"out": {"table": "joined", "path": "out"}},
    }
)


class Query:
    """A streaming query that says what it is told to."""

    def __init__(self) -> None:
        self.runId, self.isActive = "run", True
        self.status: dict[str, Any] = {**WAITING, "message": "Initializing sources"}
        self.recentProgress: list[Any] = []

    def done(self, event: Any) -> None:
        about = json.loads(event.json)
        event.batchId, event.durationMs = about["batchId"], about["durationMs"]
        self.recentProgress.append(event)

    def stop(self) -> None:
        self.isActive = False

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None


class Followed:
    """A follower of one query, at times that a test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START
        monkeypatch.setattr("fkjoin.jobs.follower.time.time", lambda: self.now)
        self.log, self.said = io.StringIO(), io.StringIO()
        self.query, screen = Query(), Screen(Console(file=self.said))
        self.metrics = Metrics()
        self.follower = Follower(SPEC, ["sink-out"], (), metrics=self.metrics, log=self.log, screen=screen)
        screen.watch(self.follower.report)
        self.follower.starts("sink-out", "prepares its checkpoint and out")

    def look(self, at: float) -> QueryReport:
        self.now = START + at
        self.follower.look("sink-out", cast(Any, self.query))
        return self.follower.report().queries["sink-out"]

    def on_page(self) -> dict[str, str]:
        """The page's words about the query's work."""
        work: dict[str, str] = status(ShownJob("shop"), self.metrics)["doing"]
        return work


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Followed:
    return Followed(monkeypatch)


def test_a_query_is_followed_from_its_start_through_a_batch_to_idleness(followed: Followed) -> None:
    assert followed.follower.report().flow == "orders, customers → joined → out"
    assert followed.look(0).phase is QueryPhase.STARTS
    assert followed.look(9).doing.startswith("starts for 9 s: ")
    followed.query.done(idle(11))
    assert followed.look(9).behind is None, "it has not ended a batch"
    followed.query.status = WORKING
    assert [followed.look(at).doing for at in (10, 11)] == ["first batch for 0 s", "first batch for 1 s"]
    followed.query.done(progress(11))
    followed.query.status = WAITING
    found = followed.look(11.8)
    assert found.doing == f"waits for data since {moment(START + 11.5, START)}", "since the end of its batch"
    assert (found.batches, found.rows, found.behind, found.read) == (1, 100, 14, 200)
    assert json.loads(followed.log.getvalue())["batch"] == 11
    followed.query.done(idle(12))
    assert followed.look(21.5).batches == 1, "it waits"
    followed.query.done(progress(12))
    assert followed.look(22).batches == 2
    assert [json.loads(line)["batch"] for line in followed.log.getvalue().splitlines()] == [11, 12]


def test_sources_that_do_not_answer_are_said_to_be_silent(followed: Followed) -> None:
    """A query that waits asks all the time, and says so every ten seconds."""
    followed.query.done(progress(0))
    followed.query.status = ASKING
    assert [followed.look(at).phase for at in (1, 10)] == [QueryPhase.WAITS] * 2
    followed.query.done(idle(1))
    assert [followed.look(at).phase for at in (11, 40)] == [QueryPhase.WAITS] * 2
    assert followed.look(41).phase is QueryPhase.ASKS
    assert followed.look(42).doing == "has no answer from its sources for 31 s"
    followed.query.status = WORKING
    assert followed.look(43).phase is QueryPhase.BATCH
    for at, does in ((44, ASKING), (60, WAITING), (89, ASKING)):
        followed.query.status = does
        assert followed.look(at).phase is QueryPhase.WAITS, "it answers between"


def test_a_start_whose_sources_do_not_answer_is_said_to_wait_for_them(followed: Followed) -> None:
    followed.query.status = ASKING
    assert [followed.look(at).phase for at in (1, 29, 30)] == [QueryPhase.STARTS, QueryPhase.STARTS, QueryPhase.ASKS]


def test_a_start_says_what_it_waits_for(followed: Followed) -> None:
    """The terminal and the page have the same words, also while a start blocks."""

    def says(at: float) -> str:
        words = followed.look(at).doing
        assert followed.on_page() == {"sink-out": words}
        return words

    followed.now = START + 2
    assert followed.follower.report().queries["sink-out"].doing == "starts for 2 s: prepares its checkpoint and out"
    assert followed.on_page() == {"sink-out": "starts for 2 s: prepares its checkpoint and out"}
    assert says(3) == "starts for 3 s: Spark plans it and opens its sources"
    for source, words in (
        ("KafkaV2[Subscribe[orders]]", "asks the brokers for the end of topic orders"),
        ("FileStreamSource[file:/data/orders]", "lists the files in /data/orders"),
        ("FileStreamSource[s3a://lake/orders]", "lists the files in s3a://lake/orders"),
        ("DeltaSource[/data/orders]", "asks DeltaSource[/data/orders] for new data"),
    ):
        followed.query.status = {**ASKING, "message": f"Getting offsets from {source}"}
        assert says(4) == f"starts for 4 s: {words}"
    followed.query.status = WORKING
    assert says(5) == "first batch for 0 s"


def test_batches_without_a_pause_begin_where_the_one_before_ended(followed: Followed) -> None:
    followed.query.status = WORKING
    followed.look(0)
    followed.query.done(progress(0))
    followed.look(0.7)
    assert [followed.look(at).doing for at in (2.4, 2.6)] == ["batch 1 for 1 s", "batch 1 for 2 s"]


def test_tasks_of_a_batch_are_counted_through_all_of_sparks_jobs(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number never falls when the next sink's job begins; the page hears what the terminal shows."""
    work: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr("fkjoin.jobs.follower._tasks", lambda query: work)
    followed.query.status = WORKING
    assert followed.look(0).activity.tasks is None
    work = {7: (3, 15)}
    assert followed.look(2).activity.tasks == (3, 15)
    work = {8: (0, 2)}
    assert followed.look(4).activity.tasks == (15, 17)
    assert followed.on_page() == {"sink-out": "first batch for 4 s, 15 of 17 tasks"}
    followed.query.done(progress(0))
    work = {9: (1, 4)}
    followed.look(5)
    assert followed.look(7).activity.tasks == (1, 4), "of the next batch alone"
    followed.query.status = WAITING
    followed.look(8)
    assert followed.on_page() == {}, "it works on nothing"
    followed.query.status = WORKING
    followed.look(9)
    assert followed.on_page() == {"sink-out": "batch 1 for 0 s"}
    followed.follower.turn(Mode.STOPPED)
    assert followed.on_page() == {}


def test_the_time_stands_still_when_a_job_has_ended(followed: Followed) -> None:
    shop = ShownJob("shop")
    assert status(shop, followed.metrics)["ended"] is None
    followed.now = START + 5
    followed.follower.turn(Mode.FAILED, "sinks.out.path: it is full")
    followed.now = START + 50
    report = followed.follower.report()
    assert (report.now, report.queries["sink-out"].phase) == (START + 5, QueryPhase.FAILED)
    end = status(shop, followed.metrics)["ended"]
    assert (end["state"], end["words"]) == ("failed", "failed after 5 s: sinks.out.path: it is full")


def test_rows_that_started_over_late_ones_and_dead_letters_are_said(followed: Followed) -> None:
    """Late ones only if they are most rows of a batch."""
    for number, counted in (
        (3, {"source-restarts": 1200, "dead-letters": 2, "late-dropped": 5, "rows-in": 10}),
        (4, {"late-dropped": 6, "rows-in": 10}),
    ):
        event = json.loads(progress(number).json)
        event["observedMetrics"]["fkjoin:joined"] |= counted
        followed.query.done(SimpleNamespace(timestamp=str(number), json=json.dumps(event)))
        followed.look(number + 1)
    said = followed.said.getvalue()
    assert "sink-out: batch 3: joined: 1,200 rows started over: their topic was created again" in said
    assert "batch 3: joined: 5 of 10" not in said
    assert "sink-out: batch 4: joined: 6 of 10 changes came to windows that were closed." in said
    assert followed.follower.report().troubles == ("2 dead letters in joined", "1,200 rows started over in joined")


def test_a_log_on_a_full_disk_is_named(followed: Followed, tmp_path: Path) -> None:
    says = "^log: /dev/full cannot be written to: No space left on device; make room on that disk, or name another file$"
    full = Path("/dev/full")
    with pytest.raises(OSError, match="No space"), full.open("w") as log, pytest.raises(JobError, match=says):
        followed.follower._write(log, "{}")  # closing it tries once more
    with (tmp_path / "another").open("w") as another:
        followed.follower._write(another, "{}")
    assert (tmp_path / "another").read_text() == "{}\n"


def test_brokers_are_asked_for_topics_alone() -> None:
    with_brokers = SPEC.model_dump(by_alias=True) | {"kafka": {"bootstrap_servers": "localhost:1"}}
    assert _tables(JobSection.model_validate(with_brokers)) == "tables orders, customers"
    letters = JobSection.model_validate(with_brokers | {"dead_letters": {"topic": "dead"}})
    assert _tables(letters) == "tables orders, customers, and asking the brokers at localhost:1"


class Running:
    """A job of two queries, its screen of lines, and the panels that a terminal would have shown."""

    def __init__(self) -> None:
        self.said, self.stop, self.panels = io.StringIO(), Stop(), list[str]()
        screen = Screen(Console(file=self.said, width=200))
        self.follower = Follower(SPEC, ["sink-a", "sink-b"], (), metrics=Metrics(), log=None, screen=screen)
        screen.watch(self.follower.report)

    def run(self, **starts: Callable[[], Any]) -> None:
        planned = [PlannedQuery(f"sink-{name}", "", "its target", start) for name, start in starts.items()]
        _run(planned, self.stop, self.follower, one_by_one=False)

    def show(self) -> None:
        console = Console(file=io.StringIO(), width=100)
        console.print(Group(*panel(self.follower.report())))
        self.panels.append(cast(io.StringIO, console.file).getvalue())

    def lines(self) -> list[str]:
        return [line[20:] for line in self.said.getvalue().splitlines()]


def test_a_start_that_waits_says_why_and_ends_when_the_job_is_to_stop() -> None:
    job, tries = Running(), 0

    def refused() -> Any:
        nonlocal tries
        tries += 1
        if tries == 3:
            job.stop.ask(2, None)
            job.show()
        raise ConnectionError("Connection refused, port 15999")

    def started() -> Any:
        return repeated("postgres of-a-start", refused, lambda _: True, 60)

    job.run(a=started, b=started)
    assert tries == 3
    reason = "the last time because of: Connection refused, port 15999"
    assert any(f"work on postgres of-a-start repeated 1 time, {reason}" in line for line in job.lines())
    assert "stops when the batches at work are done; a second signal ends it at once" in job.lines()
    (shown,) = job.panels
    assert "stops when the batches at work are done; Ctrl-C again ends it at once" in shown
    assert f"repeated 2 times, {reason}" in " ".join(shown.split())
    report = job.follower.report()
    assert (report.mode, report.queries["sink-a"].phase) == (Mode.STOPPED, QueryPhase.STOPPED)
    assert report.queries["sink-b"].phase is QueryPhase.PLANNED


def test_while_another_batch_runs_on_a_failure_is_said_and_two_signals_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job, failed, works = Running(), Query(), Query()
    failed.isActive, failed._why_stopped, failed._checkpoint = False, "it broke", "ck/a"  # type: ignore[attr-defined]
    works.status = WORKING

    def signal_comes(_: float) -> None:
        job.show()
        job.stop.ask(2, None)

    monkeypatch.setattr("fkjoin.jobs.runner.time.sleep", signal_comes)
    with pytest.raises(SystemExit):
        job.run(b=lambda: works, a=lambda: failed)
    assert job.lines()[-3:] == [
        "query sink-a failed: it broke",
        "fails when the batches at work are done; two signals end it at once",
        "stops when the batches at work are done; a second signal ends it at once",
    ]
    assert job.follower.report().mode is Mode.CUT
    assert "fails when the batches at work are done; Ctrl-C twice ends it at once" in job.panels[0]
    assert "stops when the batches at work are done; Ctrl-C again ends it at once" in job.panels[1]
    assert all("since the start: sink-a failed" in shown and "no errors" not in shown for shown in job.panels)


def test_each_query_stops_at_the_end_of_its_own_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one query works on a long batch, others begin no further ones."""
    job, slow, quick = Running(), Query(), Query()
    slow.status = quick.status = WORKING
    batches, ends, now = {slow: 0, quick: 0}, {slow: 50, quick: 1}, 0

    def passes(_: float) -> None:
        nonlocal now
        now += 1
        job.stop.asked = True
        for query, after in ends.items():
            if query.isActive and now % after == 0:
                batches[query] += 1
                query.done(progress(batches[query]))

    monkeypatch.setattr("fkjoin.jobs.runner.time.sleep", passes)
    job.run(a=lambda: slow, b=lambda: quick)
    assert job.follower.report().mode is Mode.STOPPED
    assert batches[slow] == 1
    assert batches[quick] <= 2, "one that ended as the stop was asked for, and the one at work"
