"""The panel of ``fkjoin run``: views of a job in, the lines of a terminal or of a log out."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from fkjoin.checkpoint.progress import QueryPhase, doing_of, span
from fkjoin.jobs.panel import Panel
from fkjoin.jobs.plain import Lines
from fkjoin.jobs.view import BatchView, Flow, JobView, Mode, QueryView, batches_of, rate_of
from tests.support.places import ROOT

NOW = 1_800_000_000.0
"""08:00:00 of a day in January 2027."""

FLOW = Flow(("orders", "customers"), (("joined", ("orders", "customers")), ("regions", ("joined",))), ("changes", "regions"))
WAITS = QueryView("sink-changes", QueryPhase.WAITS, NOW - 250, BatchView(12, 3, 0.81, NOW - 250), 0.01, 0, 13, 1203)
WORKS = QueryView(
    "sink-regions", QueryPhase.BATCH, NOW - 4, BatchView(13, 1200, 2.1, NOW - 5), 571.4, 31_000, 14, 120_300, (12, 40)
)
FIRST = QueryView("dead-letters-orders", QueryPhase.BATCH, NOW - 75)
JOB = JobView(
    "shop", FLOW, NOW - 7000, NOW, (WAITS, WORKS, FIRST, QueryView("sink-late")), notes=("Spark's log is in spark.log",)
)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def shown(view: JobView, width: int) -> str:
    """The panel on a terminal without colors."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(Panel(view))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_the_panel_says_what_each_query_does_and_since_when() -> None:
    assert shown(JOB, 140) == (
        "shop  runs for 1 h 56 min, since 06:03:20\n"
        "orders, customers → joined → regions → changes, regions\n"
        "\n"
        "query                now                               behind  rows/s  last batch   took  rows read\n"
        "sink-changes         waits for data since 07:55:50          0     0.0         #12  0.8 s      1,203\n"
        "sink-regions         batch 14 for 4 s, 12 of 40 tasks  31,000     571         #13  2.1 s    120,300\n"
        "dead-letters-orders  first batch for 1 min 15 s             –     0.0           –      –          0\n"
        "sink-late            not started yet                        –     0.0           –      –          0\n"
        "\n"
        "no errors, no dead letters since the start\n"
        "Ctrl-C stops it after the batch at work\n"
        "Spark's log is in spark.log"
    )


def test_eighty_columns_are_enough() -> None:
    assert shown(JOB, 80) == (
        "shop  runs for 1 h 56 min, since 06:03:20\n"
        "orders, customers → joined → regions → changes, regions\n"
        "\n"
        "query               now                             behind  rows/s  batch   took\n"
        "sink-changes        waits for data since 07:55:50        0     0.0    #12  0.8 s\n"
        "sink-regions        batch 14 for 4 s, 12 of 40      31,000     571    #13  2.1 s\n"
        "                    tasks\n"
        "dead-letters-orde…  first batch for 1 min 15 s           –     0.0      –      –\n"
        "sink-late           not started yet                      –     0.0      –      –\n"
        "\n"
        "no errors, no dead letters since the start\n"
        "Ctrl-C stops it after the batch at work\n"
        "Spark's log is in spark.log"
    )


def test_the_documents_show_the_panel() -> None:
    now = NOW + 13 * 3600 + 251
    queries = (
        replace(WAITS, since=now - 10, rate=4.2, last=BatchView(12, 3, 0.81, now - 10)),
        replace(WORKS, since=now - 4, last=BatchView(12, 1200, 2.1, now - 5)),
    )
    view = replace(JOB, began=now - 723, now=now, queries=queries, troubles=("3 dead letters in joined",))
    assert f"\n{shown(view, 80)}\n```\n" in (ROOT / "docs" / "watching.md").read_text()
    changes = QueryView("sink-changes", QueryPhase.DONE, now, BatchView(0, 8, 4.2, now), batches=1, rows=8)
    regions = QueryView("sink-regions", QueryPhase.DONE, now, BatchView(0, 8, 2.7, now), batches=1, rows=8)
    view = replace(view, began=now - 16, queries=(changes, regions), mode=Mode.DONE, troubles=())
    indented = "".join(f"    {line}".rstrip() + "\n" for line in shown(view, 80).splitlines())
    assert f"\n{indented}\n" in (ROOT / "docs" / "tutorial.md").read_text()


def test_a_job_of_files_has_no_column_for_what_it_is_behind() -> None:
    of_files = replace(JOB, queries=tuple(replace(query, behind=None) for query in JOB.queries))
    assert "behind" not in shown(of_files, 140)


def test_brokers_that_do_not_answer_and_a_lag_that_is_old_are_seen() -> None:
    silent = ("broker b1:9092 of topic orders has not answered since 07:59:10",)
    old = replace(WORKS, behind_at=NOW - 50)
    view = replace(JOB, queries=(WAITS, old), silent=silent)
    assert f"\n{silent[0]}\nCtrl-C" in shown(view, 140)
    assert "31,000 as of 07:59:10" in shown(view, 140)
    assert "31,000 as of" not in shown(replace(view, queries=(replace(old, behind_at=NOW - 20),)), 140)
    assert silent[0] not in shown(replace(view, mode=Mode.STOPPED), 140)
    lines = Lines()
    assert silent[0] in lines.news(view)
    assert lines.news(replace(view, now=NOW + 1)) == [], "once"
    assert lines.news(replace(view, now=NOW + 2, silent=())) == ["all brokers answer again"]


def test_at_the_end_there_is_how_much_was_done_and_what_went_wrong() -> None:
    wrong = ("3 dead letters in joined", "work on postgres shop.orders repeated 2 times")
    ended = tuple(replace(query, doing=QueryPhase.STOPPED) for query in JOB.queries[:2])
    assert shown(replace(JOB, mode=Mode.STOPPED, queries=ended, troubles=wrong), 80) == (
        "shop  stopped after 1 h 56 min\n"
        "orders, customers → joined → regions → changes, regions\n"
        "\n"
        "query         now                   last batch   took  batches  rows read\n"
        "sink-changes  stopped                      #12  0.8 s       13      1,203\n"
        "sink-regions  stopped                      #13  2.1 s       14    120,300\n"
        "\n"
        "since the start: 3 dead letters in joined; work on postgres shop.orders repeated\n"
        "2 times"
    )


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (Mode.STOPS, "shop  stops when the batches at work are done; Ctrl-C again ends it at once"),
        (Mode.FAILS, "shop  fails when the batches at work are done; Ctrl-C twice ends it at once"),
        (Mode.DONE, "shop  has read all that was there in 1 h 56 min"),
        (Mode.FAILED, "shop  failed after 1 h 56 min"),
        (Mode.CUT, "shop  ended at once, after 1 h 56 min; the next start repeats the batches at work"),
    ],
)
def test_the_first_line_says_how_the_job_is(mode: Mode, says: str) -> None:
    lines = shown(replace(JOB, mode=mode), 140).splitlines()
    assert lines[0] == says
    assert ("no errors, no dead letters since the start" in lines) == (mode is not Mode.FAILED)


def test_a_topology_that_is_too_long_for_a_line_is_counted() -> None:
    assert FLOW.line(55) == "orders, customers → joined → regions → changes, regions"
    assert FLOW.line(54) == "2 tables → 2 operators → 2 sinks"
    apart = replace(FLOW, made=(("joined", ("orders", "customers")), ("large", ("orders",))))
    assert apart.line(80) == "orders, customers → joined, large → changes, regions"
    assert replace(FLOW, made=()).line(10) == "2 tables → 2 sinks"


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (-0.1, "0 s"),
        (0.44, "0.4 s"),
        (4.04, "4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.9, "1 min"),
        (60, "1 min"),
        (190, "3 min 10 s"),
        (3600, "1 h"),
        (8_059, "2 h 14 min"),
        (273_700, "3 d 4 h"),
    ],
)
def test_times_are_said_in_two_units(seconds: float, says: str) -> None:
    assert span(seconds) == says


@pytest.mark.parametrize(
    ("message", "active", "data", "does"),
    [
        ("Initializing sources", False, False, QueryPhase.STARTS),
        ("Waiting for data to arrive", False, False, QueryPhase.WAITS),
        ("Getting offsets from FileStreamSource[file:/orders]", True, False, QueryPhase.ASKS),
        ("Waiting for next trigger", False, False, QueryPhase.WAITS),
        ("Waiting for next trigger", False, True, QueryPhase.DUE),
        ("Processing new data", True, True, QueryPhase.BATCH),
        ("Writing offsets to log", True, True, QueryPhase.BATCH),
    ],
)
def test_what_spark_says_of_a_query_in_words(message: str, active: bool, data: bool, does: QueryPhase) -> None:
    assert doing_of({"message": message, "isTriggerActive": active, "isDataAvailable": data}) is does


def test_a_rate_is_of_the_time_between_ends_of_batches_and_falls_while_a_query_waits() -> None:
    recent = [
        {"time": "2027-01-15T08:00:10.000Z", "batch": 2, "inputs": 100, "seconds": 0.5},
        {"time": "2027-01-15T08:00:00.000Z", "batch": 1, "inputs": 7, "seconds": 0.5},
        {"time": "2027-01-15T07:00:00.000Z", "batch": 0, "inputs": 7, "seconds": 0.5},
    ]
    batches = batches_of(recent)
    assert batches == [BatchView(1, 7, 0.5, NOW + 0.5), BatchView(2, 100, 0.5, NOW + 10.5)]
    assert [rate_of(batches, NOW + 10.5 + after) for after in (0, 10, 20, 1000)] == [10, 10, 5, 0.1]
    assert rate_of(batches[:1], NOW) == 14
    assert rate_of([], NOW) == 0


def test_lines_of_a_log_say_the_start_at_once_and_the_rest_now_and_then() -> None:
    """The road of one query: start, first batch, work, idleness, a long batch, dead letters, stop."""
    lines = Lines()

    def said(after: float, query: QueryView, mode: Mode = Mode.RUNS, *troubles: str) -> list[str]:
        now = NOW + after
        view = JobView("shop", FLOW, NOW, now, (query,), mode, troubles)
        return lines.last(view) if mode is Mode.STOPPED else lines.news(view)

    query = QueryView("sink-changes")
    assert said(0, query) == []
    query = replace(query, doing=QueryPhase.STARTS, since=NOW)
    assert said(0, query) == ["sink-changes: starts"]
    assert said(2, query) == []
    query = replace(query, doing=QueryPhase.BATCH, since=NOW + 3)
    assert said(3, query) == ["sink-changes: first batch begins"]
    assert said(4, query) == []
    assert said(64, query) == ["sink-changes: first batch for 1 min 1 s"]
    query = replace(query, doing=QueryPhase.WAITS, since=NOW + 70, last=BatchView(8, 5, 67, NOW + 70), batches=1, rows=5)
    assert said(70, query) == ["sink-changes: first batch done, number 8: 5 rows in 1 min 7 s"]
    assert said(129, query) == []
    query = replace(query, last=BatchView(10, 600, 0.5, NOW + 129), batches=3, rows=1205, behind=40)
    assert said(129, query) == []
    assert said(130, query) == [
        "sink-changes: 2 batches in 1 min: 1,200 rows, 20.0/s; the last, number 10, took 0.5 s; 40 behind"
    ]
    assert said(729, query) == []
    assert said(730, query) == ["sink-changes: waits for data since 08:01:10; 3 batches, 1,205 rows read since the start"]
    letters = "3 dead letters in joined"
    assert said(731, query, Mode.RUNS, letters) == [f"since the start: {letters}"]
    assert said(732, query, Mode.RUNS, "4 dead letters in joined") == []
    stops = "stops when the batches at work are done; a second signal ends it at once"
    assert said(733, query, Mode.STOPS, "4 dead letters in joined") == [stops]
    assert said(734, query, Mode.STOPS, "4 dead letters in joined") == []
    query = replace(query, doing=QueryPhase.STOPPED)
    assert said(735, query, Mode.STOPPED, "4 dead letters in joined") == [
        "since the start: 4 dead letters in joined",
        "sink-changes: 3 batches, 1,205 rows read",
        "shop stopped after 12 min 15 s",
    ]


def test_a_start_that_takes_long_is_said_again_with_what_it_waits_for() -> None:
    lines = Lines()
    query = QueryView("sink-changes", QueryPhase.STARTS, NOW, start="asks the brokers for the end of topic orders")

    def said(after: float) -> list[str]:
        return lines.news(JobView("shop", FLOW, NOW, NOW + after, (query,)))

    assert [said(after) for after in (0, 59, 60, 61)] == [
        ["sink-changes: starts"],
        [],
        ["sink-changes: starts for 1 min: asks the brokers for the end of topic orders"],
        [],
    ]


def test_at_the_end_all_is_said_that_was_not() -> None:
    done = replace(WAITS, doing=QueryPhase.DONE, batches=1, rows=1)
    view = replace(JOB, queries=(done, QueryView("sink-late")), mode=Mode.DONE)
    assert Lines().last(view) == ["sink-changes: 1 batch, 1 row read", "shop has read all that was there in 1 h 56 min"]
