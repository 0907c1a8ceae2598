"""A broker that is gone for more than a minute while a batch is to be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table
from tests.support.queries import write_lines
from tests.support.sampling import EVERY
from tests.support.sessions import small

from .broker import Broker, Record

GONE_S = 75
"""Seconds of the outage: the producer's own limit is 60 s, and a task asks it for the topic some seconds late."""


@pytest.mark.faults
@pytest.mark.skipif(not EVERY, reason="it waits for more than a minute: make faults")
def test_batches_wait_for_a_broker_that_is_gone_for_a_minute(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """One batch is to be written to a topic, and another one to be read from a topic."""
    small(spark, tmp_path)
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
