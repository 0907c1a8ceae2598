"""A broker that is gone for more than a minute while a batch is to be written."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from fkjoin import Table
from tests.conftest import small
from tests.test_spark_engine import write_lines

from .broker import Broker

GONE_S = 62
"""The producer's own limit is 60 s, where it has never seen the topic."""


def test_a_batch_waits_for_a_broker_that_is_gone_for_a_minute(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    small(spark, tmp_path)
    broker.create("outage", partitions=1)
    (tmp_path / "rows").mkdir()
    table = Table.from_files(spark, tmp_path / "rows", key="id", version="lsn", schema="id string, lsn bigint", format="json")
    query = table.to_kafka("outage", broker.bootstrap, checkpoint=tmp_path / "ck", trigger={"processingTime": "0 seconds"})
    try:
        with broker.gone():
            write_lines(tmp_path / "rows", "0", [{"id": "a", "lsn": 1}])
            assert not query.awaitTermination(GONE_S), query.exception()
        query.processAllAvailable()
    finally:
        query.stop()
    assert [message.key() for message in broker.read("outage")] == [b"a"]
