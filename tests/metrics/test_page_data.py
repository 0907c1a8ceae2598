"""Data of the live page, without a browser: ``status.json`` and ``history.json``."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fkjoin.checkpoint.progress import QueryPhase
from fkjoin.metrics import Listener, Metrics
from fkjoin.metrics.page import ShownJob, history, status
from fkjoin.metrics.report import Activity
from fkjoin.plan.describe.steps import Step, StepStage
from fkjoin.sinks import counts
from fkjoin.stages import counters
from tests.support.places import ROOT
from tests.support.progress import idle, progress, taken

ORDERS = Step("source", "orders", "", (), (("from", "Kafka topic orders, by offset"),), ())
CUSTOMERS = Step("source", "customers", "", (), (("from", "stream of name, orders_made"),), ())
STAGES = (StepStage("rekey", "id", "joined-rekey", subtopologies=(1,), counted_as=("joined",)),)
JOINED = Step("fk_join", "joined", "inner", (("left", "orders"), ("right", "customers")), (("foreign key", "x"),), STAGES)
SINK = Step("sink", "joined", "topic out", (("of", "joined"),), (), ())
FIRST_MS = 1_767_225_600_000
"""The beginning of the first batch."""


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds after the first batch began."""
    monkeypatch.setattr("time.time", lambda: FIRST_MS / 1000 + 10)


def observed(batch: int, *names: str, dead: int = 0) -> str:
    """The event of a batch in which operators of these names have counted so many dead letters each."""
    about = json.loads(progress(batch).json)
    counted = about["observedMetrics"]["fkjoin:joined"] | {"dead-letters": dead}
    about["observedMetrics"] = {counters.metrics_name(name): counted for name in names}
    return json.dumps(about)


def test_a_job_without_a_batch_is_starting() -> None:
    metrics = Metrics()
    metrics._start("sink-out")
    found = status(ShownJob("shop", [ORDERS]), metrics)
    assert (found["queries"], history(metrics)["queries"]) == ({}, {})
    assert (found["health"]["state"], found["health"]["since_ms"]) == ("starting", found["now_ms"])
    assert list(found["health"]["queries"]) == ["sink-out"]
    assert found["dead_letters"] == {"place": None, "operators": {}, "sinks": {}, "last": []}
    assert 'data-step="source orders"' in found["picture"]


def test_the_page_has_when_the_job_started_and_what_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    assert status(ShownJob("shop"), metrics)["began_ms"] is None, "nobody knows it"
    metrics._start("sink-out")
    monkeypatch.setattr("time.time", lambda: FIRST_MS / 1000 + 70)
    metrics._start("sink-late")
    metrics._query("sink-out").activity = Activity(QueryPhase.BATCH, FIRST_MS / 1000 + 66)
    metrics._query("sink-late").activity = Activity(QueryPhase.WAITS, FIRST_MS / 1000)
    found = status(ShownJob("shop"), metrics)
    assert (found["began_ms"], found["now_ms"]) == (FIRST_MS + 10_000, FIRST_MS + 70_000), "the first query's start"
    assert found["doing"] == {"sink-out": "first batch for 4 s"}, "the headline tells of those that wait"
    metrics._began_ms = FIRST_MS
    metrics._start("sink-out")
    assert status(ShownJob("shop"), metrics)["began_ms"] == FIRST_MS, "a job has begun before its queries"


def test_the_map_leaves_rules_to_the_box_that_is_chosen() -> None:
    rule = "rule", "join-keeps-what-it-needs fired"
    joined = replace(JOINED, facts=(*JOINED.facts, rule))
    found = status(ShownJob("shop", [ORDERS, CUSTOMERS, joined]), Metrics())
    assert "foreign key: x" in found["picture"]
    assert "rule" not in found["picture"]
    assert rule in found["steps"][-1]["facts"]


def test_a_recent_batch_has_the_time_of_its_stages_alone() -> None:
    """Its bar on the page; the totals go on from batch to batch."""
    metrics = taken(0, 1)
    newest = metrics.snapshot()["sink-out"]["recent"][0]
    assert newest["stages"] == {"joined": {"rekey": 0.1, "subscription": 0.25}}
    assert metrics.snapshot()["sink-out"]["stages"] == {"joined": {"rekey": 0.2, "subscription": 0.5}}
    metrics.take_json(observed(2), "sink-out")
    assert metrics.snapshot()["sink-out"]["recent"][0]["stages"] == {}


def test_figures_of_this_moment_fall_while_no_batch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on the map, too."""
    metrics, shop = taken(9), ShownJob("shop", [ORDERS, CUSTOMERS, JOINED, SINK])

    def figures() -> tuple[float, list[str]]:
        found = status(shop, metrics)
        return found["health"]["queries"]["sink-out"]["read"], re.findall(r">([\d,]+/s)<", found["picture"])

    assert figures() == (200.0, ["180/s", "20/s", "100/s"]), "of the batch, half a second"
    monkeypatch.setattr("time.time", lambda: FIRST_MS / 1000 + 19.5)
    assert figures()[0] == 10.0
    metrics.take(idle(10), "sink-out")
    assert figures() == (0.0, ["0/s", "0/s", "0/s"])
    assert status(shop, metrics)["health"]["state"] == "healthy", "nine records came meanwhile"


def test_a_step_says_for_whom_its_stages_run() -> None:
    stages = (
        StepStage("rekey", "id", "joined-rekey", readers=("it", "sums"), subtopologies=(0, 1)),
        StepStage("resolve", "id", "joined", readers=("it",), subtopologies=(2,)),
    )
    *others, found = status(ShownJob("shop", [ORDERS, CUSTOMERS, replace(JOINED, stages=stages)]), taken(0))["steps"]
    assert [(step["id"], step["topics"]) for step in others] == [("source orders", ["orders"]), ("source customers", [])]
    assert found["facts"] == [
        ("foreign key", "x"),
        ("stage rekey", "repartition by id, runs 2 times, for it and sums"),
        ("stage resolve", "repartition by id"),
    ]


def test_the_operators_of_a_step_are_those_of_its_stages_whatever_they_are_called() -> None:
    """A table may be called as an operator that runs for a reader would be."""
    metrics = Metrics()
    names = ("joined", "joined-rekey", "joined-answers-for-sums", "joined-for-eu")
    metrics.take_json(observed(0, *names), "sink-out")

    def stage(number: int, *counted_as: str) -> StepStage:
        return StepStage("some", "id", f"store {number}", subtopologies=(number,), counted_as=counted_as)

    stages = stage(1, "joined-rekey", "joined-answers-for-sums"), stage(2, "joined", "not-yet")
    joined = replace(JOINED, stages=stages)
    other = Step("view", "joined-for-eu", "", (("of", "joined"),), (), (stage(3, "joined-for-eu"),))
    shown = status(ShownJob("shop", [ORDERS, CUSTOMERS, joined, other]), metrics)["steps"]
    assert {step["id"]: step["operators"] for step in shown[2:]} == {
        "fk_join joined": ["joined-rekey", "joined-answers-for-sums", "joined"],
        "view joined-for-eu": ["joined-for-eu"],
    }


def test_dead_letters_are_counted_and_a_sinks_last_ten_have_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    metrics.take_json(observed(0, "joined", dead=3), "sink-out")
    counts.count("postgres shop", counts.LEFT_OUT, 12, [f"id = {number}: too long" for number in range(12)])
    counts.count("postgres shop", counts.REPEATED, reasons=["refused"])
    found = status(ShownJob("shop", letters="topic dead"), metrics)["dead_letters"]
    assert (found["place"], found["operators"], found["sinks"]) == ("topic dead", {"joined": [3, 3]}, {"postgres shop": 12})
    assert [event["words"] for event in found["last"]] == [f"id = {number}: too long" for number in range(2, 12)]
    monkeypatch.setattr("time.time", lambda: FIRST_MS / 1000 + 2 * 3600)
    later = status(ShownJob("shop"), metrics)["dead_letters"]["operators"]
    assert later == {"joined": [0, 3]}, "none of the last hour"


def test_an_operator_that_runs_for_several_readers_or_in_several_queries_counts_its_dead_letters_once() -> None:
    metrics = Metrics()
    names = ("joined-for-sums", "joined-answers-for-out", "joined-regroup-for-both", "other-for-sums")
    metrics.take_json(observed(0, *names, dead=3), "sink-sums")
    metrics.take_json(observed(0, "joined", dead=2), "sink-out")
    found = status(ShownJob("shop", [ORDERS, CUSTOMERS, JOINED]), metrics)["dead_letters"]
    assert found["operators"] == {"joined": [3, 3], "other-for-sums": [3, 3]}, "no table is called other"


def test_reasons_of_dead_letters_are_there_once_each_with_their_last_time() -> None:
    """An operator names each batch's commonest reason; sinks name their own."""
    metrics = Metrics()
    for batch, reason in enumerate(["no JSON", "too deep", "no JSON", None]):
        about = json.loads(progress(batch, **{"dead-letter": reason}).json)
        about["observedMetrics"]["fkjoin:joined"]["dead-letters"] = 3
        for name in ("sink-out", "sink-sums"):
            metrics.take_json(json.dumps(about), name)
    counts.count("postgres shop", counts.LEFT_OUT, 1, ["too long"])
    found = status(ShownJob("shop", [ORDERS, CUSTOMERS, JOINED]), metrics)["dead_letters"]["last"]
    assert [(event["place"], event["words"], event["at_ms"]) for event in found] == [
        ("joined", "too deep", FIRST_MS + 1_500),
        ("joined", "no JSON", FIRST_MS + 2_500),
        ("postgres shop", "too long", FIRST_MS + 10_000),
    ]


def test_a_query_of_a_program_that_fails_says_so_and_is_well_after_a_new_start() -> None:
    metrics = Metrics()
    listener: Any = Listener(metrics)
    about = {"id": "3f9a", "runId": "1", "name": "totals"}
    listener.onQueryStarted(SimpleNamespace(**about))
    java = "[STREAM_FAILED] Query [id = 3f9a, runId = 1] terminated with exception: boom\n=== Streaming Query ===\nplan"
    listener.onQueryTerminated(SimpleNamespace(**about, exception=java))
    found = status(ShownJob("etl"), metrics)["health"]
    assert (found["state"], found["words"]) == ("failing", "It has failed: boom")
    listener.onQueryStarted(SimpleNamespace(**about | {"runId": "2"}))
    assert status(ShownJob("etl"), metrics)["health"]["state"] == "starting"
    listener.onQueryTerminated(SimpleNamespace(**about | {"runId": "2"}, exception=None))
    assert status(ShownJob("etl"), metrics)["health"]["state"] == "ended"


def test_every_counter_has_words_for_people_on_the_page() -> None:
    words = (ROOT / "fkjoin/data/words.js").read_text()
    named = re.search(r"COUNTERS = \{(.*?)\n\};", words, re.DOTALL)
    assert named is not None
    assert set(re.findall(r'^  "([\w-]+)":', named[1], re.MULTILINE)) == set(counters.ALL)
