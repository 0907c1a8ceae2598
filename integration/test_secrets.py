"""Passwords stay where they were given: no output, log, picture, progress or file of a checkpoint has them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import Table
from fkjoin.analysis import topics
from fkjoin.jobs.job_file import read_job
from fkjoin.kafka import Json, admin, new_topics, writing
from fkjoin.sinks import Delta, Iceberg, Kafka
from integration.postgres import select
from tests.support.addresses import CANARY
from tests.support.job_files import PLAIN, job, write_rows
from tests.support.queries import write_lines
from tests.support.sessions import small

JOB = (
    PLAIN.partition("[joins.joined]")[0]
    + """
[aggregates.counted]
of = "orders"
group_by = "customer"
columns = {n = "count()"}
[sinks.shop]
table = "counted"
postgres = '''{dsn}'''
into = "shop.it"
[sinks.lake]
table = "counted"
path = "{folder}/delta"
format = "delta"
options = {AWS_SECRET_ACCESS_KEY = "CaNaRy17"}
"""
)


def test_a_job_shows_its_passwords_nowhere(
    dsn: str, tmp_path: Path, fkjoin_here: Callable[..., str], refused_here: Callable[..., Any]
) -> None:
    """The job runs, and later stops at a row; the server lets each client in, whatever the password.

    The log of a JVM of its own: tests/jobs/test_secrets.py.
    """
    write_rows(tmp_path)
    path = job(tmp_path, JOB.replace("{dsn}", make_conninfo(dsn, password=CANARY)))
    assert CANARY not in repr(read_job(path))
    shown = [fkjoin_here("run", path)]
    assert select(dsn) == [("c1", 1)]
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file != path]
    assert {"fkjoin.json", "job.log", "spark.log"} <= {file.name for file in files}
    assert [file for file in files if CANARY.encode() in file.read_bytes()] == []
    write_lines(tmp_path / "orders", "2", [{"id": "b", "customer": "c\0", "amount": 1, "lsn": 2}])
    said = refused_here("run", path)
    assert "query sinks-counted failed: a row cannot be in table shop.it: customer = 'c\\x00'" in said.err
    assert said.err.count("\n") == 4, "three lines, and one that names the log"
    shown += [*said, *(log.read_text() for log in tmp_path.glob("*.log"))]
    assert CANARY not in "".join(shown)


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
