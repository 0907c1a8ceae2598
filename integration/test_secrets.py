"""Passwords stay where they were given: no picture, plan or progress of a query has them.

Files and output of jobs: integration/test_example_job.py, tests/jobs/test_secrets.py.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import Table
from fkjoin.analysis import topics
from fkjoin.kafka import Json, admin, new_topics, writing
from fkjoin.sinks import Delta, Iceberg, Kafka
from tests.support.addresses import CANARY
from tests.support.sessions import small

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OPTIONS: dict[str, Any] = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": f'{LOGIN} required username="me" password="{CANARY}";',
    "kafka.ssl.truststore.location": "/nowhere",
    "kafka.ssl.truststore.password": CANARY,
    "kafka.ssl.keystore.key": CANARY,
    "kafka.default.api.timeout.ms": "400",
    "kafka.request.timeout.ms": "300",
}
"""Options of a topic at brokers that do not exist."""


def test_options_of_topics_and_storages_are_shown_without_their_secrets(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query does so as well whose brokers go away after it was built."""
    for module in (topics, writing, new_topics):
        monkeypatch.setattr(module, "require_topic", lambda *_: admin.Topic(1, None))
    small(spark, tmp_path)
    reading = {**OPTIONS, "fetchOffset.numRetries": 1}
    table = Table.from_kafka(spark, "t", "127.0.0.1:1", key="string", value=Json("n int"), options=reading)
    kept = table.materialize("kept")
    places = (
        Kafka("t", "127.0.0.1:1", options=OPTIONS),
        Delta("s3://bucket/table", {"AWS_SECRET_ACCESS_KEY": CANARY}),
        Iceberg("shop.it", options={"token": CANARY}),
    )
    shown = [repr(places), repr(table), repr(kept), repr(table._planned.call)]
    shown += [kept.describe(form) for form in ("text", "json", "mermaid")]
    how: Any = {"checkpoint": tmp_path / "ck", "trigger": {"availableNow": True}}
    query = kept.to_kafka("t", "127.0.0.1:1", options={**OPTIONS, "kafka.max.block.ms": "1"}, **how)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    shown += [str(caught.value), *traceback.format_exception(caught.value), str(query.lastProgress)]
    assert [text for text in shown if CANARY in text] == []
