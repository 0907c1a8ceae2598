"""Joins' queries in either deployment, and waiting until they have worked on all that was sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import Table
from fkjoin.kafka import Json
from fkjoin.stages.counters import metrics_name
from tests.support import oracle
from tests.support.oracle import Change
from tests.support.queries import run
from tests.support.replay.traces import TraceChange
from tests.support.sessions import STAGE_PARTS

from .broker import Broker, Record


class Running:
    """The queries of a job, upstream ones first."""

    def __init__(self, queries: list[StreamingQuery]) -> None:
        self.queries = queries

    def drain(self) -> None:
        for query in self.queries:
            query.processAllAvailable()

    def counters(self) -> dict[str, int]:
        """The counters of all queries, summed up."""
        total = Counter[str]()
        for progress in (progress for query in self.queries for progress in query.recentProgress):
            for operator, metrics in progress.observedMetrics.items():
                if operator.startswith(metrics_name("")):
                    total.update({name: value or 0 for name, value in metrics.asDict().items()})
        return total


@contextmanager
def running(joined: Table, topic: str, broker: Broker, folder: Path, **writing: Any) -> Iterator[Running]:
    """The job that keeps ``topic`` up to date; stopped in the end."""
    queries = [stage.start(folder / stage.name) for stage in joined.stages]
    try:
        queries.append(joined.to_kafka(topic, broker.bootstrap, checkpoint=folder / "resolve", **writing))
        yield Running(queries)
    finally:
        for query in queries:
            query.stop()


def batch_join(events: list[TraceChange], how: str) -> dict[str, Any]:
    """The joined table, ``[left, right]`` by key, from the final tables."""
    changes: list[Any] = []
    for at, event in enumerate(events):
        changes.append(Change(event.left, event.key, event.value, at, event.foreign_key))
    return {key: list(row) for key, row in oracle.batch_join(changes, how).items()}


def record(event: TraceChange) -> Record:
    fields = {"value": event.value} | ({"fk": event.foreign_key} if event.left else {})
    return Record(event.key.encode(), None if event.value is None else document(**fields))


def send_changes(broker: Broker, name: str, events: list[TraceChange]) -> None:
    """Send changes to the topics ``NAME-left`` and ``NAME-right``."""
    broker.send(f"{name}-left", [record(event) for event in events if event.left])
    broker.send(f"{name}-right", [record(event) for event in events if not event.left])


def joined_rows(broker: Broker, topic: str) -> dict[str, Any]:
    """The output topic, compacted, as ``batch_join`` gives it."""
    rows = {key.decode(): json.loads(value) for key, value in broker.table(topic).items()}
    return {key: [row["left"]["value"], row["right"] and row["right"]["value"]] for key, row in rows.items()}


def document(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def letters(frame: DataFrame | None, folder: Path) -> list[Any]:
    """The dead letters that there are by now, in order of their places."""
    assert frame is not None
    return sorted(rows(frame, folder), key=lambda row: (row.topic, row.partition, row.offset))


def rows(frame: DataFrame, folder: Path) -> list[Any]:
    """The rows that a streaming frame has by now."""
    return run(frame, folder).rows


def from_topic(spark: SparkSession, broker: Broker, topic: str, value: Any = "string", **options: Any) -> Table:
    """A table of a topic, whose keys are texts unless the options say otherwise."""
    about = {"key": "string", "value": value, **options}
    return Table.from_kafka(spark, topic, broker.bootstrap, **about)


def tables(spark: SparkSession, broker: Broker, name: str, **options: Any) -> tuple[Table, Table]:
    """Tables on the topics ``NAME-left`` and ``NAME-right``."""
    left = from_topic(spark, broker, f"{name}-left", Json("fk string, value string"), options=options)
    return left, from_topic(spark, broker, f"{name}-right", Json("value string"), options=options)


def job_file(name: str, folder: Path, broker: Broker, tables: dict[str, str], more: str) -> Path:
    """The file ``job.toml`` of a job with tables of the topics ``NAME-TABLE``, whose values are JSON.

    ``tables``: their columns.  ``more``: what the job does with them, in which ``{name}`` and ``{folder}`` are filled in.
    """
    text = f'''
name = "{name}"
checkpoint = "{folder}/checkpoint"
log = "{folder}/job.log"
kafka.bootstrap_servers = "{broker.bootstrap}"
spark."spark.ui.enabled" = false
spark."spark.sql.shuffle.partitions" = {STAGE_PARTS}
spark."spark.fkjoin.buckets" = {STAGE_PARTS}
spark."spark.fkjoin.index.dir" = "{folder}/index"
'''
    for table, columns in tables.items():
        text += f'tables.{table}.topic = "{name}-{table}"\n'
        text += f'tables.{table}.key = "string"\n'
        text += f'tables.{table}.value = {{format = "json", schema = "{columns}"}}\n'
    file = folder / "job.toml"
    file.write_text(text + more.replace("{name}", name).replace("{folder}", str(folder)))
    return file
