"""Both deployments on a real broker: traces, a workload, and the races that lose updates elsewhere."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.kafka import Json, purge
from fkjoin.kafka.internal import InternalTopics
from fkjoin.kafka.wire import HEADERS
from fkjoin.sessions.settings import BUCKETS, EXCLUDED, INDEX_DIR, PARTITIONS
from integration.jobs import tables
from tests.support.replay.traces import TraceChange, read_trace, trace_files
from tests.support.sampling import sampled

from .broker import Broker, Record
from .jobs import Running, batch_join, delete, document, joined_rows, left_record, letters, right_record, running

RETAINED = "spark.sql.streaming.minBatchesToRetain"
DEPLOYMENTS = ("fused", "staged")
HOWS = ("inner", "left")


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(PARTITIONS, "2")
    spark.conf.set(BUCKETS, "2")
    spark.conf.set(INDEX_DIR, str(tmp_path / "index"))


def send(broker: Broker, name: str, events: list[TraceChange]) -> None:
    broker.send(f"{name}-left", [left_record(event) for event in events if event.left])
    broker.send(f"{name}-right", [right_record(event) for event in events if not event.left])


def all_traces(how: str) -> list[TraceChange]:
    """The events of all traces for ``how``, each trace with keys of its own."""
    events: list[TraceChange] = []
    for number, path in enumerate(path for path in trace_files() if path.name.startswith(how)):
        for event in read_trace(path).events:
            foreign_key = None if event.foreign_key is None else f"{number}|{event.foreign_key}"
            events.append(replace(event, key=f"{number}|{event.key}", foreign_key=foreign_key))
    return events


EVERY_WAY = list(product(HOWS, DEPLOYMENTS))
WAYS = [("inner", "staged"), ("left", "fused")]
"""A sample; ``make faults`` tries ``EVERY_WAY``.  Fused, of files: tests/api/test_joins.py."""


@pytest.mark.faults
@pytest.mark.parametrize(("how", "deployment"), sampled(EVERY_WAY, WAYS[:1]))
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
            send(broker, name, part)
            job.drain()
        assert job.counters().get("dead-letters", 0) == 0
    wanted = batch_join(events, how)
    assert joined_rows(broker, f"{name}-out") == wanted
    assert len(wanted) > 50
    if joined.stages:
        assert_partitioned(broker, name, joined.stages[0].topics)


def assert_partitioned(broker: Broker, name: str, topics: InternalTopics) -> None:
    """Registrations lie where the right rows do, and responses where the left rows do; each has the four headers."""
    homes = {message.key(): message.partition() for message in broker.read(f"{name}-left")}
    rights = {message.key(): message.partition() for message in broker.read(f"{name}-right")}
    registrations, responses = map(broker.read, topics.partitions)
    assert {(homes[message.key()], message.partition()) for message in responses} == {(0, 0), (1, 1), (2, 2)}
    met = set()
    for message in registrations:
        key = message.key()
        foreign_key = key[4 : 4 + int.from_bytes(key[:4], "big")]
        met.add((rights.get(foreign_key, message.partition()), message.partition()))
    assert met == {(0, 0), (1, 1)}
    wanted = [f"fkjoin.{header}" for header in HEADERS]
    assert all([header for header, _ in message.headers() or ()] == wanted for message in (*responses, *registrations))


def workload(rights: int, lefts: int, updates: int) -> list[TraceChange]:
    """Right rows, left rows, then updates, with missing foreign keys and deletes on both sides."""
    rng = random.Random(11)
    events: list[TraceChange] = []
    alive: dict[str, str | None] = {}

    def left(key: str, foreign_key: str | None, deleted: bool = False) -> None:
        alive[key] = foreign_key
        events.append(TraceChange(len(events), True, key, foreign_key, None if deleted else f"l{len(events)}", 0))

    def right(number: int, deleted: bool = False) -> None:
        events.append(TraceChange(len(events), False, f"c{number}", None, None if deleted else f"r{len(events)}", 0))

    def foreign_key() -> str | None:
        return f"c{rng.randrange(rights + rights // 20)}" if rng.random() < 0.97 else None

    for number in range(rights):
        right(number)
    for number in range(lefts):
        left(f"o{number}", foreign_key())
    for _ in range(updates):
        kind = rng.random()
        key = f"o{rng.randrange(lefts)}"
        if kind < 0.6:
            left(key, alive[key])
        elif kind < 0.8:
            left(key, foreign_key())
        elif kind < 0.88:
            left(key, None, deleted=True)
        else:
            right(rng.randrange(rights), deleted=kind > 0.97)
    return events


@pytest.mark.faults
@pytest.mark.parametrize(("how", "deployment"), sampled(EVERY_WAY, WAYS[1:]))
def test_a_workload_equals_the_batch_join(
    spark: SparkSession, broker: Broker, tmp_path: Path, deployment: Any, how: Any
) -> None:
    name = f"workload-{how}-{deployment}"
    broker.create(*(f"{name}-{end}" for end in ("left", "right", "out")), partitions=4)
    rights, lefts, updates = sampled((5_000, 20_000, 10_000), (1_000, 4_000, 2_000))
    events = workload(rights, lefts, updates)
    send(broker, name, events)
    left, right = tables(spark, broker, name, maxOffsetsPerTrigger=lefts // 2)
    joined = fk_join(left, right, "fk", how=how, name=name, deployment=deployment)
    with running(joined, f"{name}-out", broker, tmp_path) as job:
        job.drain()
    assert joined_rows(broker, f"{name}-out") == batch_join(events, how)


def races(keys: int) -> tuple[list[TraceChange], list[TraceChange]]:
    """Changes that come first, and changes that then come at once, of five histories with ``keys`` keys each."""
    before: list[TraceChange] = []
    after: list[TraceChange] = []

    def left(events: list[TraceChange], key: str, foreign_key: str | None, value: str | None) -> None:
        events.append(TraceChange(len(events), True, key, foreign_key, value, 0))

    def right(events: list[TraceChange], key: str, value: str | None) -> None:
        events.append(TraceChange(len(events), False, key, None, value, 0))

    for number in range(keys):
        key, a, b, missing = f"delete-beside-update-{number}", f"a{number}", f"b{number}", f"none{number}"
        right(before, a, "right")
        right(before, b, "other")
        left(before, key, a, "first")
        right(after, a, None)
        left(after, key, a, "second")
        key = f"delete-then-insert-{number}"
        left(before, key, b, "first")
        left(after, key, None, None)
        left(after, key, missing, "second")
        key = f"null-then-missing-{number}"
        left(before, key, b, "first")
        left(after, key, None, "second")
        left(after, key, missing, "third")
        key = f"delete-and-insert-null-{number}"
        left(before, key, b, "first")
        left(after, key, None, None)
        left(after, key, None, "second")
        key = f"a-b-a-{number}"
        left(before, key, b, "first")
        left(after, key, a, "second")
        left(after, key, b, "third")
        left(after, key, b, "third")
    return before, after


class Proxy:
    """A proxy that passes an internal topic's records on, delayed, some twice, and in another order."""

    def __init__(self, broker: Broker, source: str, target: str, seed: int) -> None:
        self._broker, self._source, self._target = broker, source, target
        self._rng = random.Random(seed)
        self._taken: set[tuple[int, int]] = set()
        self._waiting: list[Record] = []

    def deliver(self, share: float) -> None:
        """Take new records, and pass on that share of those that wait."""
        for message in self._broker.read(self._source):
            place = (message.partition(), message.offset())
            if place not in self._taken:
                self._taken.add(place)
                record = Record(message.key(), message.value(), message.headers() or (), message.partition())
                self._waiting += [record] * (2 if self._rng.random() < 0.3 else 1)
        self._rng.shuffle(self._waiting)
        going = round(len(self._waiting) * share)
        self._broker.send(self._target, self._waiting[:going])
        del self._waiting[:going]


def test_internal_topics_keep_their_records_and_a_new_query_needs_the_first_ones(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.create("whole-left", "whole-right", "whole-out", "whole-more", partitions=3)
    left, right = tables(spark, broker, "whole")

    def staged(application: str) -> Table:
        return fk_join(left, right, "fk", name="whole", deployment="staged", application=application)

    for name, value in {"partitions": "2", "replication.factor": "1", "segment.bytes": "1048576"}.items():
        spark.conf.set(f"spark.fkjoin.topic.{name}", value)
    try:
        joined, anew = staged("first"), staged("second")
        spark.conf.set("spark.fkjoin.topic.partitions", "none")
        with pytest.raises(TopologyError, match=r"^spark\.fkjoin\.topic\.partitions: 'none' is not a number from 1; write one"):
            staged("third")
    finally:
        for name in ("partitions", "replication.factor", "segment.bytes"):
            spark.conf.unset(f"spark.fkjoin.topic.{name}")
    events = [TraceChange(at, True, f"{at}", "a", f"v{at}", at) for at in range(1, 20)]

    def go_on(table: Table, topic: str, folder: str, *more: TraceChange) -> None:
        send(broker, "whole", list(more))
        events.extend(more)
        with running(table, topic, broker, tmp_path / folder) as job:
            job.drain()
        assert joined_rows(broker, topic) == batch_join(events, "inner")

    spark.conf.set(RETAINED, "1")
    send(broker, "whole", events)
    for value in ("A", "B", "C", "D"):
        go_on(joined, "whole-out", "first", TraceChange(0, False, "a", None, value, 0))
    registration, response = (f"first-whole-subscription-{kind}" for kind in ("registration", "response"))
    for topic in (registration, response):
        (asked,) = broker.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        found = asked.result()
        assert {name: found[name].value for name in ("retention.ms", "cleanup.policy", "segment.bytes")} == {
            "retention.ms": "-1",
            "cleanup.policy": "delete",
            "segment.bytes": "1048576",
        }
        assert len(broker.ends(topic)) == 2
    places = [tmp_path / "first" / name for name in ("whole-subscription", "resolve")]
    for wrong, match in (
        ([*places, tmp_path / "none"], r"none has no batch that is committed; purge when"),
        ([*places, tmp_path / "first" / "whole-rekey"], r"whole-rekey belongs to a query that reads none of .*; leave it out"),
        (places[1:], rf"none belongs to a query that reads {registration}; name those of all"),
    ):
        with pytest.raises(FkJoinError, match=match):
            purge(joined.stages, wrong)
    assert [len(broker.read(topic)) for topic in (registration, response)] == [19, 4 * 19]
    before = {topic: broker.ends(topic) for topic in (registration, response)}
    left = purge(joined.stages, places)
    assert left[registration] == before[registration]
    assert len(broker.read(response)) == sum(before[response].values()) - sum(left[response].values()) < 3 * 19
    missing = r"internal topic {} begins at offset \d+ of partition \d, .* give another application= .*, and all stages new"
    with pytest.raises(FkJoinError, match=missing.format(response)):
        joined.to_kafka("whole-more", broker.bootstrap, checkpoint=tmp_path / "new")
    with pytest.raises(FkJoinError, match=missing.format(registration)):
        joined.stages[1].start(tmp_path / "new-stage")
    go_on(joined, "whole-out", "first", TraceChange(0, False, "a", None, "E", 0))  # the checkpoints that are there go on
    go_on(anew, "whole-more", "second")
    spark.conf.unset(RETAINED)


@pytest.mark.faults
@pytest.mark.parametrize("how", sampled(HOWS, ["left"]))
def test_races_converge_when_internal_records_are_delayed_doubled_and_reordered(
    spark: SparkSession, broker: Broker, tmp_path: Path, how: Any
) -> None:
    """Each stage belongs to an application of its own, and proxies stand between their internal topics."""
    name = f"races-{how}"
    broker.create(f"{name}-left", f"{name}-right", f"{name}-out", partitions=4)
    left, right = tables(spark, broker, name)
    first, second, third = (
        fk_join(left, right, "fk", how=how, name=name, deployment="staged", application=application)
        for application in ("first", "second", "third")
    )
    registration, response = "subscription-registration", "subscription-response"
    broker.create(f"first-{name}-{registration}", partitions=1)
    with pytest.raises(
        TopologyError, match=r"internal topic .* has 1 partitions, 4 are needed.*: stop the stages .*, delete it"
    ):
        first.stages[0].topics.create()
    delete(broker, f"first-{name}-{registration}")
    for joined in (first, second, third):
        joined.stages[0].topics.create()
    proxies = [
        Proxy(broker, f"first-{name}-{registration}", f"second-{name}-{registration}", 1),
        Proxy(broker, f"first-{name}-{response}", f"third-{name}-{response}", 2),
        Proxy(broker, f"second-{name}-{response}", f"third-{name}-{response}", 3),
    ]
    before, after = races(50)
    queries = [
        first.stages[0].start(tmp_path / "rekey"),
        second.stages[1].start(tmp_path / "subscription"),
        third.to_kafka(f"{name}-out", broker.bootstrap, checkpoint=tmp_path / "resolve"),
    ]
    try:
        for events, shares in ((before, (1.0,)), (after, (0.3, 0.5, 1.0))):
            send(broker, name, events)
            queries[0].processAllAvailable()
            for share in shares:  # after a share of 1.0 nothing waits
                proxies[0].deliver(share)
                queries[1].processAllAvailable()
                for proxy in proxies[1:]:
                    proxy.deliver(share)
                queries[2].processAllAvailable()
        # One subscriber is left under each of these keys: a subscriber that has left them, or is stale, must get no answer.
        last = [TraceChange(0, False, f"a{number}", None, "back", 0) for number in range(50)]
        answered = Running(queries[1:2]).counters()["answers"]
        send(broker, name, last)
        queries[1].processAllAvailable()
        assert Running(queries[1:2]).counters()["answers"] == answered + 50
        proxies[2].deliver(1.0)
        queries[2].processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    assert joined_rows(broker, f"{name}-out") == batch_join([*before, *after, *last], how)


def test_joins_of_one_left_table_from_topic_to_topic(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """They run as one join, workers read the records, and positions are told as joins in a row tell them."""
    broker.create("sold", "buyers", "items", "out", "again", partitions=2)
    source = {"bootstrap_servers": broker.bootstrap, "key": "string"}
    sold = Table.from_kafka(spark, "sold", value=Json("buyer string, item string, n int"), **source)
    buyers, items = (Table.from_kafka(spark, name, value=Json("name string"), **source) for name in ("buyers", "items"))
    first = fk_join(sold, buyers, "buyer", joiner=["left.n", "left.item", "right.name as buyer"], name="first")
    both = fk_join(first, items, "item", "left", joiner=["left.n", "left.buyer", "right.name as item"], name="both")
    assert "joins-share-stages fired" in both.describe()

    def go_on(table: Table, topic: str, folder: Path) -> dict[str, int]:
        trigger = {"availableNow": True}
        query = table.to_kafka(topic, broker.bootstrap, checkpoint=folder, positions=True, trigger=trigger)
        query.awaitTermination()
        return Running([query]).counters()

    broker.send("buyers", [Record(b"a", document(name="Ann")), Record(b"b", document(name="Bo"))])
    broker.send("items", [Record(b"p", document(name="pen"))])
    broker.send("sold", [Record(b"%d" % at, document(buyer="a", item="pq"[at % 2], n=at)) for at in range(4)])
    broker.send("sold", [Record(b"0", document(buyer="b", item="p", n=9)), Record(b"1", None), Record(b"5", b"broken")])
    counted = go_on(both, "out", tmp_path / "ck")
    assert (counted["left-in"], counted["right-in"], counted["dead-letters"], counted["out"]) == (6, 3, 1, 3)
    broker.send("items", [Record(b"q", document(name="quill"))])
    broker.send("buyers", [Record(b"a", document(name="Anna"))])
    go_on(both, "out", tmp_path / "ck")
    assert {key: json.loads(value) for key, value in broker.table("out").items()} == {
        b"0": {"n": 9, "buyer": "Bo", "item": "pen"},
        b"2": {"n": 2, "buyer": "Anna", "item": "pen"},
        b"3": {"n": 3, "buyer": "Anna", "item": "quill"},
    }
    (letter,) = letters(both.dead_letters, tmp_path / "dead")
    assert letter.reason.startswith("value: not JSON that fits")
    spark.conf.set(EXCLUDED, "joins-share-stages")
    written = fk_join(first, items, "item", "left", joiner=["left.n", "left.buyer", "right.name as item"], name="both")
    assert "joins-share-stages did not fire" in written.describe()
    spark.conf.set(EXCLUDED, "")
    go_on(written, "again", tmp_path / "as-written")

    def places(topic: str) -> dict[bytes, str]:
        return {record.key(): dict(record.headers())["fkjoin-positions"] for record in broker.read(topic)}

    assert places("out") == places("again")
