"""The records of a topic that are left to read, and a broker that does not answer: for a while, and for too long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import QueryError, Table
from fkjoin.metrics import watch
from tests.support.queries import write_lines

from .broker import Broker, Record

pytestmark = pytest.mark.usefixtures("small_tables")
PATIENCE_S = 60
GONE_S = 75
"""Seconds of the outage: the producer's own limit is 60 s, and a task asks it for the topic some seconds late."""


def test_the_lag_is_what_a_bounded_batch_left_and_a_failure_names_the_brokers_that_do_not_answer(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The options bound the time until the query fails."""
    broker.create("silent", partitions=1)
    broker.send("silent", [Record(str(number).encode(), b"1") for number in range(100)])
    bounded = {"maxOffsetsPerTrigger": 30, "fetchOffset.numRetries": 1}
    limits = {"kafka.default.api.timeout.ms": 8_000, "kafka.request.timeout.ms": 4_000, **bounded}
    table = Table.from_kafka(spark, "silent", broker.bootstrap, key="string", value="string", options=limits)
    metrics = watch(spark)
    where: Any = {"checkpoint": tmp_path / "ck", "query_name": "out"}
    first = table.to_parquet(tmp_path / "out", **where, trigger="1 hour")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "out" not in metrics.snapshot():
            assert time.monotonic() < deadline, "the first batch has not ended"
            time.sleep(0.2)
        assert "; 70 behind" in repr(first)
    finally:
        first.stop()
    assert metrics.snapshot()["out"]["lag"] == {"silent": {"0": 70}}
    figures = metrics.prometheus().decode()
    assert 'fkjoin_lag_records{partition="0",query="out",topic="silent"} 70.0' in figures
    query = table.to_parquet(tmp_path / "out", **where)
    try:
        query.processAllAvailable()
        assert repr(query).endswith("; 0 behind")
        with broker.gone(), pytest.raises(QueryError) as failed:
            query.awaitTermination(PATIENCE_S)
        first_line, *_ = str(failed.value).splitlines()
        assert first_line.startswith(f"query out failed: the brokers of topic silent at {broker.bootstrap} do not answer (")
    finally:
        query.stop()


@pytest.mark.nightly
def test_batches_wait_for_a_broker_that_is_gone_for_a_minute(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """One batch is to be written to a topic, and another one to be read from a topic."""
    broker.create("outage-out", "outage-in", partitions=1)
    broker.send("outage-in", [Record(b"a", b"1")])
    (tmp_path / "rows").mkdir()
    files = Table.from_files(spark, tmp_path / "rows", key="id", version="lsn", schema="id string, lsn bigint", format="json")
    topic = Table.from_kafka(spark, "outage-in", broker.bootstrap, key="string", value="string")
    queries = [
        files.to_kafka("outage-out", broker.bootstrap, checkpoint=tmp_path / "ck-out"),
        topic.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck-in"),
    ]
    try:
        queries[1].processAllAvailable()
        with broker.gone():
            write_lines(tmp_path / "rows", "0", [{"id": "a", "lsn": 1}])
            assert not queries[0].awaitTermination(GONE_S), queries[0].exception()
        broker.send("outage-in", [Record(b"b", b"2")])
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    assert [message.key() for message in broker.read("outage-out")] == [b"a"]
    assert sorted(row.key for row in spark.read.parquet(str(tmp_path / "out")).collect()) == ["a", "b"]
