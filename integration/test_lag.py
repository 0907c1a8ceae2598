"""The records of a topic that are left to read, and brokers that do not answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import QueryError, Table
from fkjoin.metrics import watch
from tests.support.sessions import small

from .broker import Broker, Record

PATIENCE_S = 60


def test_the_lag_is_what_a_bounded_batch_left_and_a_failure_names_the_brokers_that_do_not_answer(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The options bound the time until the query fails."""
    small(spark, tmp_path)
    broker.create("silent", partitions=1)
    broker.send("silent", [Record(str(number).encode(), b"1") for number in range(100)])
    bounded = {"maxOffsetsPerTrigger": 30, "fetchOffset.numRetries": 1}
    limits = {"kafka.default.api.timeout.ms": 20_000, "kafka.request.timeout.ms": 10_000, **bounded}
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
