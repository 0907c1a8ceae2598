"""Joins on a real broker: the traces in both deployments."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import fk_join
from fkjoin.kafka.internal import InternalTopics
from tests.support.replay.traces import TraceChange, read_trace, trace_files
from tests.support.sampling import sampled

from .broker import Broker
from .jobs import batch_join, joined_rows, running, send_changes, tables

pytestmark = pytest.mark.usefixtures("small_tables")


def all_traces(how: str) -> list[TraceChange]:
    """The events of all traces for ``how``, each trace with keys of its own."""
    events: list[TraceChange] = []
    for number, path in enumerate(path for path in trace_files() if path.name.startswith(how)):
        for event in read_trace(path).events:
            foreign_key = None if event.foreign_key is None else f"{number}|{event.foreign_key}"
            events.append(replace(event, key=f"{number}|{event.key}", foreign_key=foreign_key))
    return events


@pytest.mark.faults
@pytest.mark.parametrize(
    ("how", "deployment"), sampled(list(product(("inner", "left"), ("fused", "staged"))), [("inner", "staged")])
)
def test_the_traces_final_tables(spark: SparkSession, broker: Broker, tmp_path: Path, how: Any, deployment: Any) -> None:
    name = f"traces-{how}-{deployment}"
    broker.create(f"{name}-left", partitions=3)
    broker.create(f"{name}-right", partitions=2)
    broker.create(f"{name}-out", partitions=3)
    left, right = tables(spark, broker, name)
    joined = fk_join(left, right, "fk", how=how, name=name, deployment=deployment)
    events = all_traces(how)
    half = len(events) // 2
    with running(joined, f"{name}-out", broker, tmp_path) as job:
        for part in (events[:half], events[half:]):
            send_changes(broker, name, part)
            job.drain()
        assert job.counters().get("dead-letters", 0) == 0
    wanted = batch_join(events, how)
    assert joined_rows(broker, f"{name}-out") == wanted
    assert len(wanted) > 50
    if joined.stages:
        assert_partitioned(broker, name, joined.stages[0].topics)


def assert_partitioned(broker: Broker, name: str, topics: InternalTopics) -> None:
    """Registrations lie where the right rows do, and responses where the left rows do."""
    lefts = {message.key(): message.partition() for message in broker.read(f"{name}-left")}
    rights = {message.key(): message.partition() for message in broker.read(f"{name}-right")}
    registrations, responses = map(broker.read, topics.partitions)
    assert {(lefts[one.key()], one.partition()) for one in responses} == {(0, 0), (1, 1), (2, 2)}
    met = set()
    for message in registrations:
        key = message.key()
        foreign_key = key[4 : 4 + int.from_bytes(key[:4], "big")]
        met.add((rights.get(foreign_key, message.partition()), message.partition()))
    assert met == {(0, 0), (1, 1)}
