"""Joins on a real broker: the traces in both deployments; tombstones, headers, and records that cannot be used.

Keys of several columns: tests/spark/test_topic_records.py, test_topic_values.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import fk_join
from fkjoin.kafka import Json
from fkjoin.kafka.internal import InternalTopics
from tests.support.replay.traces import TraceChange, read_trace, trace_files
from tests.support.sampling import sampled

from .broker import Broker, Record
from .jobs import batch_join, document, from_topic, joined_rows, letters, running, send_changes, tables

pytestmark = pytest.mark.usefixtures("least_tables")


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


def test_bad_records_become_dead_letters(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Spark reads the orders, for their headers, which are carried; workers read the customers."""
    broker.create("bad-orders", partitions=1, max_message_bytes=str(20 << 20))
    broker.create("bad-customers", partitions=1)
    broker.create("bad-out", partitions=1, max_message_bytes=str(40 << 20))
    large = "x" * (10 << 20)
    headers = [("trace", b"\x01\x02"), ("trace", b"again")]
    orders = [
        Record(b"good", document(customer="c1", note="first")),
        Record(b"good", b"\xff\xfe"),
        Record(b"good", b"[1]"),
        Record(b"good", document(customer={"not": "text"}, amount="a")),
        Record(None, document(customer="c1")),
        Record(b"\xff", document(customer="c1")),
        Record(b"throws", document(customer="c1", note="throw")),
        Record(b"throws", document(customer="c1", note="fine again")),
        Record(b"no-key", document(note="no customer"), headers),
        Record(b"gone", document(customer="c1")),
        Record(b"gone", None),
        Record(b"large", document(customer="c1", note=large)),
        Record(b"null", b"null"),
    ]
    broker.send("bad-orders", orders)
    customers = {b"c1": document(name="Ada"), b"c2": b"{", b"\xff": b"{}", None: b"{}"}
    broker.send("bad-customers", [Record(key, value) for key, value in customers.items()])
    value = Json("customer string, amount int, note string")
    left = from_topic(spark, broker, "bad-orders", value, headers=True)
    right = from_topic(spark, broker, "bad-customers", Json("name string"))
    assert [table._plan.undecoded is None for table in (left, right)] == [True, False]

    def extract(_: str, row: Any) -> str | None:
        if row["note"] == "throw":
            raise ValueError("not today")
        return row["customer"]  # type: ignore[no-any-return]

    joined = fk_join(left, right, extract, how="left", name="bad")
    with running(joined, "bad-out", broker, tmp_path / "run", headers="left.headers") as job:
        job.drain()
        found = letters(joined.dead_letters, tmp_path / "dead")
        assert job.counters()["dead-letters"] == len(found) == 10
    reasons = ["value", "key", "null key", *["value"] * 3, "null key", "key", "extractor", "value"]
    assert [row.offset for row in found] == [1, 2, 3, 1, 2, 3, 4, 5, 6, 12]
    assert [row.topic for row in found] == ["bad-customers"] * 3 + ["bad-orders"] * 7
    assert [row.reason.split(":")[0] for row in found] == reasons
    assert found[8].reason == "extractor: ValueError: not today"
    for row in found:
        if row.topic == "bad-orders":
            assert (row.key, row.value) == (orders[row.offset].key, orders[row.offset].value)
    carried = {record.key(): record.headers() for record in broker.read("bad-out")}
    assert (carried[b"no-key"], carried[b"large"]) == (headers, None)
    table = {key.decode(): json.loads(value) for key, value in broker.table("bad-out").items()}
    assert {key: (row["left"]["note"], row["right"] and row["right"]["name"]) for key, row in table.items()} == {
        "good": ("first", "Ada"),
        "throws": ("fine again", "Ada"),
        "no-key": ("no customer", None),
        "large": (large, "Ada"),
    }
