"""Metrics of queries: from progress events, as Spark gives them, to JSON lines and Prometheus."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, PropertyMock

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQueryProgress

from fkjoin.checkpoint.progress import progress_since
from fkjoin.metrics import Listener, Metrics, watch
from fkjoin.metrics.page import _rates_on_arrows
from fkjoin.plan.describe.steps import Step, StepStage
from tests.support.places import ROOT
from tests.support.progress import idle, progress, taken

(GROUP,) = yaml.safe_load((ROOT / "docker/prometheus/rules.yml").read_text())["groups"]
RULES: list[dict[str, Any]] = GROUP["rules"]


def query_of(*kept: Any) -> tuple[Any, PropertyMock]:
    """A streaming query of which Spark keeps these events, and what counts how often all of them are asked for."""
    query, asked = MagicMock(lastProgress=[None, *kept][-1]), PropertyMock(return_value=list(kept))
    type(query).recentProgress = asked
    return query, asked


def batch(number: int) -> Any:
    return SimpleNamespace(batchId=number, durationMs={"addBatch": 1})


def test_progress_that_is_new() -> None:
    """All that Spark keeps is asked for only if more than the last is new: writing out a hundred takes it 0.1 s."""
    for kept, since, found, asked_for_all in (
        ((), -1, [], 0),
        ((0,), -1, [0], 0),
        ((4, 5, 6), 6, [], 0),
        ((4, 5, 6), 5, [6], 0),
        ((4, 5, 6), 4, [5, 6], 1),
        ((4, 5, 6), -1, [4, 5, 6], 1),
    ):
        query, asked = query_of(*map(batch, kept))
        assert [progress.batchId for progress in progress_since(query, since)] == found
        assert asked.call_count == asked_for_all
    waiting = idle(6)  # a query says that it waits under the number of its next batch
    query, _ = query_of(batch(4), batch(5), waiting)
    assert progress_since(query, 5) == []
    assert progress_since(query, 5, idle=True) == [waiting]
    assert progress_since(query, 6, idle=True) == []
    query, _ = query_of(batch(4), batch(5), waiting, batch(6))
    assert [progress.durationMs for progress in progress_since(query, 5)] == [{"addBatch": 1}]


def test_a_query_that_waits_is_no_batch_and_loses_nothing() -> None:
    """Spark says that it waits under the number of its next batch."""
    metrics = Metrics()
    assert metrics.take(idle(0), "sink-out") is None, "nothing is known yet"
    assert metrics.snapshot() == {}
    line = metrics.take(progress(0), "sink-out")
    assert line is not None
    before = metrics.prometheus().decode()
    assert metrics.take(idle(1), "sink-out") is None
    found = metrics.snapshot()["sink-out"]
    assert found["lag"] == {"orders": {"0": 0, "1": 0, "2": 9}}, "that continues"
    same = {name: value for name, value in line.items() if name not in ("lag", "lag_ms", "rates", "skip_rates")}
    assert {**found, **same} == found
    assert found["rates"].keys() == line["rates"].keys()
    assert (found["batches"], len(found["recent"])) == (1, 1)
    changed = set(metrics.prometheus().decode().splitlines()) - set(before.splitlines())
    lag = {"fkjoin_lag_records", "fkjoin_lag_timestamp_seconds"}
    assert {line.split("{")[0] for line in changed} == lag
    assert metrics.take(progress(1), "sink-out") is not None


def test_an_operator_that_is_silent_in_a_batch_keeps_its_totals() -> None:
    metrics = taken(0, query="q")
    about = json.loads(progress(1).json)
    about["observedMetrics"] = {}
    line = metrics.take_json(json.dumps(about), "q")
    assert line is not None
    assert line["totals"]["joined"]["left-in"] == 90
    assert (line["counters"], line["rates"]) == ({}, {})


def test_a_batch_as_json() -> None:
    metrics = taken(0, query="sink-out")
    line = metrics.take(progress(1), "sink-out")
    assert line == {
        "time": "2026-01-01T00:00:01.000Z",
        "query": "sink-out",
        "batch": 1,
        "inputs": 100,
        "seconds": 0.5,
        "counters": {"joined": {"left-in": 90, "right-in": 10, "out": 50, "stale-dropped": 1}},
        "totals": {"joined": {"left-in": 180, "right-in": 20, "out": 100, "stale-dropped": 2}},
        "rates": {"joined": {"left-in": 90.0, "right-in": 10.0, "out": 50.0, "stale-dropped": 1.0}},
        "skip_rates": {"joined": {"resolve": 3.0}},
        "phases": {"triggerExecution": 0.5, "addBatch": 0.4},
        "stages": {"joined": {"rekey": 0.2, "subscription": 0.5}},
        "state": {"joined": {"state-rows": 300, "state-bytes": 9000, "log-bytes": 12000, "index-bytes": 5000}},
        "lag": {"orders": {"0": 5, "1": 0, "2": 9}},
        "lag_ms": 1_767_225_601_000,
        "fan_out": {"joined": 7},
        "hot_keys": {},
    }
    json.dumps(line)
    assert [batch["batch"] for batch in metrics.snapshot()["sink-out"]["recent"]] == [1, 0]


def test_a_report_stays_as_it_is_while_batches_end() -> None:
    metrics = taken(0, query="sink-out")
    report, texts = metrics._report(), []
    for _ in range(2):
        query = report.queries["sink-out"]
        texts.append((query.snapshot(), query.history.columns(query.now_ms), query.health, query.read))
        metrics.take(progress(1, **{"hot-key": '"c"', "fan-out-max": 2000}), "sink-out")
    assert texts[0] == texts[1]
    assert metrics.snapshot()["sink-out"] != texts[0][0]


FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()
"""The beginning of the first batch."""


def test_rates_are_of_the_time_that_passed_and_fall_while_a_query_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the time that batches took: the first one, half a second, counts from its beginning."""
    metrics, now = Metrics(), FIRST
    monkeypatch.setattr("fkjoin.metrics.collector.time.time", lambda: now)

    def out() -> float:
        return metrics.snapshot()["3f9a"]["rates"]["joined"]["out"]

    assert metrics.take(progress(0))["rates"]["joined"]["out"] == 100.0
    assert metrics.take(progress(4))["rates"]["joined"]["out"] == 12.5
    for after, rate in ((0, 12.5), (4, 12.5), (8, 6.2), (100, 0.5)):
        now = FIRST + 4.5 + after
        assert out() == rate
    assert metrics.snapshot()["3f9a"]["skip_rates"] == {"joined": {"resolve": 0.0}}


def test_a_clock_that_goes_back_makes_no_rate_less_than_nothing() -> None:
    metrics = Metrics()
    metrics.take(progress(9))
    assert metrics.take(progress(3))["rates"] == {}


def test_sizes_are_those_of_a_batch_in_which_all_buckets_said_theirs() -> None:
    metrics = Metrics()
    metrics.take(progress(0))
    part = metrics.take(progress(1, buckets=2, **{"state-rows": 9, "state-bytes": 1}))
    assert part["state"]["joined"]["state-rows"] == 300
    whole = metrics.take(progress(2, **{"state-rows": 310}))
    assert whole["state"]["joined"]["state-rows"] == 310
    assert whole["query"] == "3f9a", "a query without a name goes by its id"


def test_the_last_ten_hot_keys_are_known() -> None:
    metrics = Metrics()
    for number in range(12):
        line = metrics.take(progress(number, **{"hot-key": f'"c{number}"', "fan-out-max": 2000 + number}))
    assert list(line["hot_keys"]["joined"].items()) == [(f'"c{number}"', 2000 + number) for number in range(2, 12)]
    assert line["fan_out"] == {"joined": 2011}


def test_a_silent_source_that_holds_windows_open_is_named_for_as_long_as_it_does() -> None:
    wanted = " Windows of joined stay open until customers has rows: its time is behind, and it has none now."
    metrics = Metrics()
    for batch, source, is_said in ((0, "customers", True), (1, None, False)):
        metrics.take(progress(batch, **{"holds-windows": source}), "sums")
        assert metrics._report().queries["sums"].health.words.endswith(wanted) == is_said
    metrics.take(progress(2, **{"holds-windows": "customers"}), "sums")
    metrics._end("sums", None)
    assert metrics._report().queries["sums"].health.words == "It has ended."


def test_prometheus_reads_it() -> None:
    metrics, before = Metrics(), time.time()
    metrics._start("a")
    metrics._start("b")  # a query without a batch
    metrics._end("b", "it failed")
    metrics.take(progress(0), "a")
    metrics.take(progress(1), "a")
    metrics._internal = {"shop-joined-subscription-response": 7}
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.prometheus().decode())
        for sample in family.samples
    }
    for query in ("a", "b"):
        assert before - 1 < found["fkjoin_query_start_time_seconds", query] < time.time() + 1
    assert found["fkjoin_batches_total", "a"] == 2
    assert found["fkjoin_input_rows_total", "a"] == 200
    assert found["fkjoin_stale_dropped_total", "a", "joined"] == 2
    assert found["fkjoin_stage_seconds_total", "a", "joined", "subscription"] == 0.5
    assert found["fkjoin_stage_idempotent_update_skip_total", "a", "joined", "resolve"] == 6
    assert found["fkjoin_batch_seconds", "a", "addBatch"] == 0.4
    assert found["fkjoin_lag_records", "0", "a", "orders"] == 5
    assert found["fkjoin_log_bytes", "a", "joined"] == 12000
    assert found["fkjoin_fan_out_max", "a", "joined"] == 7
    assert found["fkjoin_internal_topic_records", "shop-joined-subscription-response"] == 7


def test_what_flows_is_written_on_the_arrows() -> None:
    """A plain join is in tests/metrics/test_page_data.py."""
    counted = ("joined-rekey", "joined-subscription", "joined", "joined-answers-for-sums")
    stages = tuple(StepStage(name, "id", f"joined-{name}", counted_as=(name,)) for name in counted)
    join = Step("fk_join", "joined", "inner", (("left", "orders"), ("right", "customers")), (), stages)
    view = Step("view", "large", "", (("of", "joined"),), (), ())
    joined = {"joined": {"left-in": 180.0, "right-in": 20.0, "out": 100.0}}
    assert _rates_on_arrows([join, view], joined) == {
        ("fk_join joined", "left"): "180/s",
        ("fk_join joined", "right"): "20/s",
        ("view large", "of"): "100/s",
    }
    summed = {"sums-regroup": {"rows-in": 5.0}, "sums": {"rows-in": 4.0, "out": 1.0}}
    merged = {"joined-answers-for-sums": {"left-in": 7.0}, **summed}
    regroup = StepStage("regroup", "id", "sums-regroup", counted_as=("sums-regroup",))
    aggregate = StepStage("aggregate", "group", "sums-aggregate", counted_as=("sums",))
    sums = Step("aggregate", "sums", "", (("of", "joined"),), (), (regroup, aggregate))
    assert _rates_on_arrows([join, sums], merged) == {("fk_join joined", "left"): "7/s", ("aggregate sums", "of"): "5/s"}
    scatter = StepStage("scatter", "id", "all-scatter", counted_as=("all", "all-for-sums"))
    star = Step("fk_join", "all", "inner", (("left", "joined"), ("right", "regions")), (), (scatter,))
    rates = {"all": {"left-in": 6.0, "right-in": 5.0}}
    assert _rates_on_arrows([star], rates) == {("fk_join all", "left"): "6/s"}, "of all right tables together"
    narrow = {"all-for-sums": {"left-in": 6.0}}
    assert _rates_on_arrows([star], narrow) == {("fk_join all", "left"): "6/s"}
    both = Step("merge", "both", "", (("first", "joined"), ("then", "large")), (), ())
    assert _rates_on_arrows([both], {"both": {"rows-in": 5.0}, "large": {"out": 3.0}}) == {}
    staged = {"joined-rekey": {"left-in": 3.0}, "joined-subscription": {"right-in": 2.0}}
    assert _rates_on_arrows([join], staged) == {("fk_join joined", "left"): "3/s", ("fk_join joined", "right"): "2/s"}


def test_queries_of_a_session_are_watched(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a call for each number of an event: of a join there are some 500.  A listener can be taken away."""
    asked = []
    monkeypatch.setattr(StreamingQueryProgress, "fromJObject", asked.append)
    metrics, of_none = watch(spark), Metrics()
    listener = Listener(of_none)
    for _ in range(2):
        spark.streams.addListener(listener)
        spark.streams.removeListener(listener)
    rows = spark.readStream.format("rate").load().observe("fkjoin:rates", F.count("value").alias("rows-in"))
    query = rows.writeStream.format("noop").trigger(once=True).queryName("rated").start()
    query.awaitTermination()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # type: ignore[union-attr]
    line = metrics.snapshot()["rated"]
    (mine,) = query.recentProgress
    assert (line["batch"], line["inputs"], line["time"]) == (0, mine.numInputRows, mine.timestamp)
    assert asked == []
    assert of_none.snapshot() == {}


def test_the_dashboard_the_alerts_and_the_page_of_documentation_name_metrics_that_there_are() -> None:
    metrics = taken(0, query="a")
    there = {f"{family.name}{'_total' * (family.type == 'counter')}" for family in metrics.collect()}
    for path in ("docker/grafana/fkjoin.json", "docker/prometheus/rules.yml"):
        named = set(re.findall(r"\bfkjoin_\w+", (ROOT / path).read_text()))
        assert len(named) > 7
        assert named <= there, path
    table = (ROOT / "docs/watching.md").read_text().split("| Prometheus | what it is |")[1].split("\n\n")[0]
    assert set(re.findall(r"\bfkjoin_\w+", table)) == there


def test_each_alert_has_labels_that_its_metrics_have_and_says_what_to_do() -> None:
    metrics = taken(0, query="a")
    labels = {f"{one.name}{end}": set(one._labelnames) for one in metrics.collect() for end in ("", "_total")}
    for rule in RULES:
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) - {"job"}  # Prometheus adds it
        named = re.findall(r"fkjoin_\w+", rule["expr"])
        assert used <= set.intersection(*(labels[name] for name in named)) if named else not used, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "action", "runbook"}


def test_alerts_tell_jobs_apart_and_see_the_first_count_of_a_counter() -> None:
    """Two jobs may have a sink of one name.  A counter that begins with its first count does not increase by that."""
    counters = set[str]()
    for name, rule in ((rule["alert"], rule["expr"]) for rule in RULES):
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule):
            # a pod that is started again is another instance
            assert labels == ("job, query" if name == "FkjoinRestarts" else "job, instance, query"), name
        if (found := re.match(r"increase\((\w+)\[(\w+)\]\) > 0", rule)) is not None and name != "FkjoinSinkRetries":
            counter, time = found.groups()
            counters.add(counter)
            assert rule == f"{found[0]} or {counter} > 0 unless {counter} offset {time}", name
    assert len(counters) == 4


def test_the_interval_of_a_querys_trigger_is_how_long_it_may_be_silent() -> None:
    """A query of Spark Connect, and one without an interval, do not say it."""
    metrics = taken(0, query="sink-out")
    hourly = SimpleNamespace(trigger=lambda: SimpleNamespace(intervalMs=lambda: 3_600_000))
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: hourly))
    for run, of, seconds in (("first", query, 3600.0), ("second", SimpleNamespace(), 0.0)):
        metrics._learn_interval("sink-out", run, lambda of=of: of)  # type: ignore[misc]
        assert metrics._report().queries["sink-out"].history.interval_s == seconds
