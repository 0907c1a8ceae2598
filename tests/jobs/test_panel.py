"""The screen of ``fkjoin run``: stages of a start and reports on a job in, the lines of a terminal or of a log out."""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, Group

from fkjoin.checkpoint.progress import QueryPhase, doing_of, span
from fkjoin.errors import FkJoinError
from fkjoin.jobs.follower import _flow
from fkjoin.jobs.screen import Screen, Terminal, screen_on
from fkjoin.jobs.shown import Lines, panel
from fkjoin.metrics.history import History, Point
from fkjoin.metrics.report import Activity, JobReport, Lag, Mode, QueryReport
from fkjoin.sinks.counts import REPEATED
from tests.support.places import ROOT
from tools.panel_picture import picture

NOW = 1_800_000_000.0
"""08:00:00 of a day in January 2027."""

FLOW = "orders, customers → joined → regions → changes, regions"


def query(name: str, phase: QueryPhase = QueryPhase.PLANNED, since: float = 0.0, **more: Any) -> QueryReport:
    """A query at ``NOW``."""
    return QueryReport(name, now_ms=round(1000 * NOW), activity=Activity(phase, since), **more)


def done(number: int, rows: int, seconds: float, ended: float) -> dict[str, Any]:
    """Fields of a report after a batch."""
    batch, ended_ms = {"batch": number, "inputs": rows, "seconds": seconds}, round(1000 * ended)
    history = History()
    history.add(Point(ended_ms - round(1000 * seconds), ended_ms, rows, seconds, None, {}, {}, {}))
    return {"batch": batch, "ended_ms": ended_ms, "history": history}


def lag(records: int, at: float = NOW) -> Lag:
    return Lag({"orders": {"0": records}}, at)


WAITS = query("sink-changes", QueryPhase.WAITS, batches=13, rows=1203, lag=lag(0), **done(12, 3, 0.81, NOW - 250))
WORKS = query(
    "sink-regions", QueryPhase.BATCH, NOW - 4, batches=14, rows=120_300, lag=lag(31_000), **done(13, 1200, 2.1, NOW - 5)
)
WAITS.history.wait(round(1000 * NOW), 0)
WORKS.activity = WORKS.activity._replace(tasks=(12, 40))
FIRST = query("dead-letters-orders", QueryPhase.BATCH, NOW - 75)


def job(*queries: QueryReport, **more: Any) -> JobReport:
    """A job of queries, at the moment of the first."""
    now_ms = queries[0].now_ms
    about = {"began_ms": now_ms - 7_000_000, "name": "shop", "flow": FLOW, "notes": ("Spark's log is in spark.log",)}
    return JobReport(now_ms, {one.name: one for one in queries}, **about | more)


JOB = job(WAITS, WORKS, FIRST, query("sink-late"))


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def shown(report: JobReport, width: int) -> str:
    """The panel on a terminal without colors."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(Group(*panel(report)))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().splitlines())


def watched() -> JobReport:
    """A job at work, as the documents show it."""
    now = NOW + 13 * 3600 + 251
    waits = replace(WAITS, lag=lag(0, now), **done(12, 3, 0.81, now - 10))
    works = replace(WORKS, lag=lag(31_000, now), **done(12, 1200, 2.1, now - 5))
    works.activity = works.activity._replace(since=now - 4)
    works.totals = {"joined": {"dead-letters": 3}}
    waits.history.wait(round(1000 * now), 0)
    waits.now_ms = works.now_ms = round(1000 * now)
    return job(waits, works, began_ms=round(1000 * (now - 723)))


def test_the_documents_show_the_panel() -> None:
    pictures = ROOT / "docs" / "pictures"
    assert (pictures / "panel.svg").read_text() == picture(panel(watched())), "python -m tools.pictures draws it"


def test_a_lag_that_is_old_is_seen_and_a_job_of_files_has_none() -> None:
    assert "behind" in shown(job(WAITS), 140)
    assert "behind" not in shown(job(replace(WAITS, lag=Lag({}, NOW))), 140)
    assert "31,000 as of 07:59:10" in shown(job(WAITS, replace(WORKS, lag=lag(31_000, NOW - 50))), 140)
    assert "31,000 as of" not in shown(job(replace(WORKS, lag=lag(31_000, NOW - 20))), 140)


def test_at_the_end_there_is_how_much_was_done_and_what_went_wrong() -> None:
    stopped = Activity(QueryPhase.STOPPED)
    works = replace(WORKS, activity=stopped, totals={"joined": {"dead-letters": 3}})
    report = job(replace(WAITS, activity=stopped), works, mode=Mode.STOPPED, sinks={(REPEATED, "postgres shop.orders"): 2})
    assert shown(report, 80) == (
        "shop  stopped after 1 h 56 min\n"
        "orders, customers → joined → regions → changes, regions\n"
        "\n"
        "query         now      behind  batch   took  rows read\n"
        "sink-changes  stopped       0    #12  0.8 s      1,203\n"
        "sink-regions  stopped  31,000    #13  2.1 s    120,300\n"
        "\n"
        "since the start: 3 dead letters in joined; work on postgres shop.orders repeated\n"
        "2 times"
    )


MODES = {
    Mode.DONE: "shop  has read all that was there in 1 h 56 min",
    Mode.FAILED: "shop  failed after 1 h 56 min",
    Mode.CUT: "shop  ended at once, after 1 h 56 min; the next start repeats the batches at work",
}
"""Those of a job that stops or fails: tests/jobs/test_follower.py."""


def test_the_first_line_says_how_the_job_is() -> None:
    for mode, says in MODES.items():
        first, *others = shown(replace(JOB, mode=mode), 140).splitlines()
        rows = "\n".join(others)
        assert re.search("dead-letters-orders  first batch for 1 min 15 s .*\nsink-late +not started yet ", rows)
        assert first == says
        assert ("no errors, no dead letters since the start" in others) == (mode is not Mode.FAILED)


def test_an_arrow_leads_from_an_operator_to_one_that_reads_it_and_the_topology_is_one_line() -> None:
    assert shown(JOB, 50).splitlines()[1] == "orders, customers → joined → regions → changes, r…"
    sources, sinks = ["orders", "customers"], ["changes", "regions"]
    joined = "joined", ["orders", "customers"]
    assert _flow(sources, [joined, ("regions", ["joined"])], sinks) == FLOW
    assert _flow(sources, [joined, ("large", ["orders"])], sinks) == "orders, customers → joined, large → changes, regions"
    assert _flow(sources, [], sinks) == "orders, customers → changes, regions"


def test_times_are_said_in_two_units() -> None:
    times = {-0.1: "0 s", 0.44: "0.4 s", 9.96: "10 s", 59.4: "59 s", 59.9: "1 min", 190: "3 min 10 s", 3600: "1 h"}
    for seconds, says in (times | {8_059: "2 h 14 min", 273_700: "3 d 4 h"}).items():
        assert span(seconds) == says


def test_what_spark_says_of_a_query_between_triggers() -> None:
    """Its other words: tests/jobs/test_follower.py."""
    for data, does in ((False, QueryPhase.WAITS), (True, QueryPhase.DUE)):
        assert doing_of({"message": "Waiting for next trigger", "isTriggerActive": False, "isDataAvailable": data}) is does


def test_lines_of_a_log_say_the_start_at_once_and_the_rest_now_and_then() -> None:
    """The road of one query: start, first batch, work, idleness, a long batch, dead letters, stop."""
    lines = Lines()

    def said(after: float, known: QueryReport, mode: Mode = Mode.RUNS, letters: int = 0) -> list[str]:
        now_ms = round(1000 * (NOW + after))
        totals = {"joined": {"dead-letters": letters}} if letters else {}
        report = job(replace(known, now_ms=now_ms, totals=totals), mode=mode, began_ms=round(1000 * NOW))
        return list(lines.last(report) if mode is Mode.STOPPED else lines.news(report))

    assert said(0, query("sink-changes")) == []
    starts = query("sink-changes", QueryPhase.STARTS, NOW)
    assert said(0, starts) == ["sink-changes: starts"]
    assert said(2, starts) == []
    works = query("sink-changes", QueryPhase.BATCH, NOW + 3)
    assert said(3, works) == ["sink-changes: first batch begins"]
    assert said(4, works) == []
    assert said(64, works) == ["sink-changes: first batch for 1 min 1 s"]
    waits = query("sink-changes", QueryPhase.WAITS, batches=1, rows=5, **done(8, 5, 67, NOW + 70))
    assert said(70, waits) == ["sink-changes: first batch done, number 8: 5 rows in 1 min 7 s"]
    assert said(129, waits) == []
    more = {**done(10, 600, 0.5, NOW + 129), "batches": 3, "rows": 1205}
    waits = replace(waits, **more, lag=lag(40, NOW + 129))
    assert said(129, waits) == []
    assert said(130, waits) == [
        "sink-changes: 2 batches in 1 min: 1,200 rows, 20.0/s; the last, number 10, took 0.5 s; 40 behind"
    ]
    assert said(729, waits) == []
    assert said(730, waits) == ["sink-changes: waits for data since 08:02:09; 3 batches, 1,205 rows read since the start"]
    assert said(731, waits, letters=3) == ["since the start: 3 dead letters in joined"]
    assert said(732, waits, letters=4) == []
    stops = "stops when the batches at work are done; a second signal ends it at once"
    assert said(733, waits, Mode.STOPS, 4) == [stops]
    assert said(734, waits, Mode.STOPS, 4) == []
    stopped = replace(waits, activity=Activity(QueryPhase.STOPPED))
    assert said(735, stopped, Mode.STOPPED, 4) == [
        "since the start: 4 dead letters in joined",
        "sink-changes: 3 batches, 1,205 rows read",
        "shop stopped after 12 min 15 s",
    ]


def test_a_start_that_takes_long_is_said_again_with_what_it_waits_for() -> None:
    lines = Lines()
    activity = Activity(QueryPhase.STARTS, NOW, "asks the brokers for the end of topic orders")
    longer = "sink-changes: starts for 1 min: asks the brokers for the end of topic orders"
    for after, says in ((0, ["sink-changes: starts"]), (59, []), (60, [longer]), (61, [])):
        starts = QueryReport("sink-changes", round(1000 * (NOW + after)), activity=activity)
        assert list(lines.news(job(starts))) == says


_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def terminal(error: BaseException | None) -> str:
    """The text on a terminal after two stages of a start, of which the second may end with an error."""
    out = io.StringIO()
    with (
        contextlib.suppress(FkJoinError, KeyboardInterrupt, SystemExit),
        Terminal(Console(file=out, force_terminal=True)) as screen,
    ):
        screen.wait("reading job.toml")
        screen.begin("starting Spark at local[2]")
        screen.say("a [red] word")
        screen.begin("looking at tables")
        if error is not None:
            raise error
        screen.wait("stopping Spark")
    return _CONTROL.sub("", out.getvalue())


def test_each_stage_leaves_a_line_that_says_how_it_ended() -> None:
    stopped = r"– looking at tables  stopped after \d\.\d s\n"
    for error, last in (
        (None, r"✓ looking at tables  \d\.\d s\n"),
        (FkJoinError("no"), r"✗ looking at tables  \d\.\d s\n"),
        (KeyboardInterrupt(), stopped),
        (SystemExit(143), stopped),
    ):
        text = terminal(error)
        assert re.search(r"reading job\.toml  0 s", text), "while it lasts"
        assert not re.search("[✓✗–] (reading|stopping)", text)
        assert re.search(r"✓ starting Spark at local\[2\]  \d\.\d s\n", text)
        assert "a [red] word\n" in text, "text, and no markup"
        assert re.search(last, text)


def test_what_comes_after_a_job_that_was_killed_has_a_line_of_its_own() -> None:
    """The panel is on the screen still, and a shell writes its prompt where the cursor is."""
    out = io.StringIO()
    with Terminal(Console(file=out, force_terminal=True, width=80)) as screen:
        screen.watch(lambda: JobReport(9_000, {}, 0, name="shop"))
        assert re.search(r"Ctrl-C stops it after the batch at work *\n *$", _CONTROL.sub("", out.getvalue()))


def test_a_dumb_terminal_and_a_pipe_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert type(screen_on(Console(file=io.StringIO(), force_terminal=True))) is Screen
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(screen_on(Console(file=io.StringIO(), force_terminal=True)), Terminal)
    assert type(screen_on(Console(file=io.StringIO()))) is Screen


def test_lines_leave_standard_output_when_they_are_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    with screen_on(Console(force_terminal=False, width=20)) as screen:
        screen.begin("a stage of a start that is longer than a line")
        screen.aside()
        screen.begin("another")
    out, error = capsys.readouterr()
    assert re.fullmatch(r"\S+ \S+ a stage of a start that is longer than a line\n", out)
    assert re.fullmatch(r"\S+ \S+ another\n", error)
