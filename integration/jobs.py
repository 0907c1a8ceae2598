"""Joins' queries in either deployment, and waiting until they have worked on all that was sent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import Table
from fkjoin.kafka import Json
from fkjoin.stages.counters import metrics_name
from tests.support.replay.traces import TraceChange

from .broker import Broker, Record
from .faults.cluster import ROOT


class Running:
    """The queries of a job, upstream ones first."""

    def __init__(self, queries: list[StreamingQuery]) -> None:
        self.queries = queries

    def drain(self) -> None:
        for query in self.queries:
            query.processAllAvailable()

    def counters(self) -> dict[str, int]:
        """The counters of all queries, summed up."""
        total: dict[str, int] = {}
        for query in self.queries:
            for progress in query.recentProgress:
                for operator, metrics in progress.observedMetrics.items():
                    if operator.startswith(metrics_name("")):
                        for name, value in metrics.asDict().items():
                            total[name] = total.get(name, 0) + (value or 0)
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
    left: dict[str, TraceChange] = {}
    right: dict[str, str | None] = {}
    for event in events:
        if event.left:
            left[event.key] = event
        else:
            right[event.key] = event.value
    found = {}
    for key, event in left.items():
        other = right.get(event.foreign_key) if event.foreign_key is not None else None
        if event.value is not None and (how == "left" or other is not None):
            found[key] = [event.value, other]
    return found


def left_record(event: TraceChange) -> Record:
    body = None if event.value is None else json.dumps({"fk": event.foreign_key, "value": event.value}).encode()
    return Record(event.key.encode(), body)


def right_record(event: TraceChange) -> Record:
    body = None if event.value is None else json.dumps({"value": event.value}).encode()
    return Record(event.key.encode(), body)


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
    found: list[Any] = []
    query = (
        frame.writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect()))
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def tables(spark: SparkSession, broker: Broker, name: str, **options: Any) -> tuple[Table, Table]:
    """Tables on the topics ``NAME-left`` and ``NAME-right``."""
    left = Table.from_kafka(
        spark, f"{name}-left", broker.bootstrap, key="string", value=Json("fk string, value string"), options=options
    )
    right = Table.from_kafka(
        spark, f"{name}-right", broker.bootstrap, key="string", value=Json("value string"), options=options
    )
    return left, right


def delete(broker: Broker, topic: str) -> None:
    """Delete the topic, and wait until it is gone."""
    broker.admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 30
    while topic in broker.admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def anew(broker: Broker, topic: str, partitions: int) -> None:
    """Delete the topic and create it again."""
    delete(broker, topic)
    broker.create(topic, partitions=partitions)


class Process:
    """A driver that may be told to crash; it, its JVM and workers are one process group."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self._folder = folder
        self._log = (self._folder / "out.txt").open("ab")
        self._fault = self._folder / "fault"
        environment = os.environ | {"FKJOIN_FAULT": str(self._fault)}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def arm(self, fault: str) -> None:
        """Let a process be killed at a point: ``point|before or after|victim``."""
        draft = self._folder / "fault.draft"
        draft.write_text(fault)
        draft.rename(self._fault)

    def struck(self) -> bool:
        """Tell whether the fault has happened."""
        return not self._fault.exists()

    def wait_for_its_end(self) -> None:
        """Wait until the job ends by itself, after its JVM was killed."""
        assert self._process.wait(60) != 0
        self.kill()

    def wait_for(self, what: str, reached: Callable[[], bool], pause_s: float = 0.5, limit_s: float = 240) -> None:
        deadline = time.monotonic() + limit_s
        while not reached():
            assert self._process.poll() is None, (self._folder / "out.txt").read_text()[-4000:]
            assert time.monotonic() < deadline, f"{what} is not reached: {(self._folder / 'out.txt').read_text()[-2000:]}"
            time.sleep(pause_s)

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stands_still(self) -> bool:
        return Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    def go_on(self) -> None:
        """Let the driver go on after it stood still."""
        os.killpg(self._process.pid, signal.SIGCONT)
