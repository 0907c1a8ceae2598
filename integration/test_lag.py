"""The records of a topic that are left to read, while the query waits and while its broker is gone."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console

from fkjoin import QueryError, Table
from fkjoin.checkpoint import progress
from fkjoin.jobs.follower import Follower
from fkjoin.jobs.job_sections import JobSection
from fkjoin.jobs.screen import Screen
from fkjoin.kafka import end_offsets
from fkjoin.kafka.end_offsets import Cluster, Silence
from fkjoin.metrics import Metrics, watch
from fkjoin.metrics.page import ShownJob, status
from tests.support.sessions import small

from .broker import Broker, Record

PATIENCE_S = 60.0


JOB = JobSection.model_validate(
    {
        "name": "shop",
        "checkpoint": "ck",
        "kafka": {"bootstrap_servers": "localhost:9092"},
        "tables": {"silent": {"topic": "silent", "key": "string", "value": "string"}},
        "sinks": {"out": {"table": "silent", "path": "out"}},
    }
)


def until(there: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def silences(metrics: Metrics) -> Sequence[Silence]:
    return metrics._report().queries["sink-out"].left.silent


def asks() -> bool:
    return "fkjoin-end-offsets" in {thread.name for thread in threading.enumerate()}


def test_records_that_came_since_the_last_batch_are_left_to_read(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is neither joined nor capped, so Spark's own figure is 0 after each batch."""
    small(spark, tmp_path)
    monkeypatch.setattr(end_offsets, "EVERY_S", 0.5)
    monkeypatch.setattr(end_offsets, "ANSWER_S", 1)
    monkeypatch.setattr(progress, "OLD_S", 3.0)
    broker.create("behind", partitions=2)
    broker.send("behind", [Record(b"a", b"1")])
    table, metrics = Table.from_kafka(spark, "behind", broker.bootstrap, key="string", value="string"), watch(spark)
    rarely = {"processingTime": "1 hour"}
    query = table.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck", query_name="rare", trigger=rarely)

    def lag() -> int:
        return sum(sum(parts.values()) for parts in metrics.snapshot()["rare"]["lag"].values())

    try:
        until(lambda: "rare" in metrics.snapshot(), "the first batch")
        assert lag() == 0
        broker.send("behind", [Record(str(at).encode(), b"2") for at in range(100)])
        until(lambda: lag() == 100, "what came since the batch")
        until(lambda: repr(query).endswith("; 100 behind"), "the query says it, and that it is of this moment")
        prometheus = metrics.prometheus().decode()
        found = [float(line.split()[-1]) for line in prometheus.splitlines() if line.startswith("fkjoin_lag_records{")]
        assert sum(found) == 100
        with broker.gone():
            until(lambda: "; 100 behind as of " in repr(query), "the figure stays, with its age")
            assert lag() == 100
        until(lambda: repr(query).endswith("; 100 behind"), "it is of this moment again")
        assert asks()
        monkeypatch.setattr(end_offsets, "_WANTED_FOR_S", 0.1)
    finally:
        query.stop()
    until(lambda: not asks(), "nobody is asked for a query that has ended")
    assert lag() == 100, "the last figure stays"
    assert not asks()


def test_brokers_that_do_not_answer_are_named_by_the_terminal_the_page_the_query_and_its_failure(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The query looks for records all the time, and the options bound the time until it fails."""
    small(spark, tmp_path)
    broker.create("silent", partitions=2)
    broker.send("silent", [Record(b"a", b"1")])
    limits = {"kafka.default.api.timeout.ms": 20_000, "kafka.request.timeout.ms": 10_000, "fetchOffset.numRetries": 1}
    table = Table.from_kafka(spark, "silent", broker.bootstrap, key="string", value="string", options=limits)
    metrics, said = watch(spark), io.StringIO()
    query = table.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck", query_name="sink-out")
    screen = Screen(Console(file=said, width=300))
    follower = Follower(JOB, ["sink-out"], (), metrics=Metrics(), log=None, screen=screen)
    screen.watch(follower.report)
    follower.starts("sink-out", "opens its sources")
    try:
        query.processAllAvailable()
        until(lambda: "sink-out" in metrics.snapshot(), "the first batch")
        follower.look("sink-out", query)
        with broker.gone():
            until(lambda: silences(metrics), "the broker is silent")
            (silence,) = silences(metrics)
            assert (silence.topic, silence.brokers) == ("silent", (broker.bootstrap,))
            says = f"roker {broker.bootstrap} of topic silent has not answered since "
            assert says in repr(query)
            follower.look("sink-out", query)
            assert f" b{says}" in said.getvalue()
            health = status(ShownJob("shop"), metrics)["health"]
            assert health["state"] == "failing"
            assert says in health["words"]
            with pytest.raises(QueryError) as failed:
                query.awaitTermination(round(PATIENCE_S))
        first, *_ = str(failed.value).splitlines()
        assert first.startswith(f"query sink-out failed: the brokers of topic silent at {broker.bootstrap} do not answer (")
    finally:
        query.stop()


def test_brokers_that_have_no_such_topic_do_answer(
    spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's consumer waits for a topic that was deleted until its time is over.  The thread ends with the session."""
    monkeypatch.setattr(end_offsets, "EVERY_S", 0.1)
    monkeypatch.setattr(end_offsets, "ANSWER_S", 1)
    broker.create("deleted", partitions=1)
    broker.send("deleted", [Record(b"a", b"1")])
    cluster = Cluster(broker.bootstrap, {})
    ends, _ = cluster.read(["deleted"], PATIENCE_S)
    assert ends["deleted"].offsets == {0: 1}
    broker.admin.delete_topics(["deleted"])["deleted"].result(30)
    until(lambda: cluster._leaders == {"deleted": {}}, "it is noticed")
    assert cluster.read(["deleted"])[1] == []
    ends, silent = cluster.read(["none-of-that"], PATIENCE_S)
    assert (ends, silent) == ({}, [])
    assert asks()
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    until(lambda: not asks(), "nobody is asked without a session")
    cluster.read(["deleted"])
    assert not asks()
