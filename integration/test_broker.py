"""Events at brokers and topics: aborted transactions, restarts, new partitions, jobs that publish twice."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, TopologyError, fk_join
from fkjoin.kafka import Json, admin
from fkjoin.kafka.internal import read_internal
from fkjoin.kafka.reading import records_of
from fkjoin.lowering.as_begun import topics_of
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS
from fkjoin.spark.on_spark import on_spark
from integration.jobs import tables
from tests.support.replay.traces import TraceChange
from tests.support.sampling import sampled

from .broker import Broker, Record
from .jobs import Running, batch_join, document, joined_rows, left_record, letters, right_record, rows, running


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(PARTITIONS, "2")
    spark.conf.set(BUCKETS, "2")
    spark.conf.set(INDEX_DIR, str(tmp_path / "index"))


def test_a_topic_that_is_not_there_and_a_broker_that_is_not(
    spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("there-orders", partitions=1)
    with pytest.raises(TopologyError, match=r"no topic 'there-order' at .*; did you mean 'there-orders'\?"):
        Table.from_kafka(spark, "there-order", broker.bootstrap, key="string", value="string")
    monkeypatch.setattr(admin, "_TIMEOUT_S", 1)
    with pytest.raises(TopologyError, match="bootstrap_servers: no broker answers at localhost:1 within 1 s"):
        Table.from_kafka(spark, "there-orders", "localhost:1", key="string", value="string")


class Transactions:
    """Transactions on a topic with one partition: a change of key ``k`` in each, by a producer of its own."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker, self._topic, self._number = broker, topic, 0

    def begin(self, *values: bytes | None) -> Producer:
        self._number += 1
        of_transaction = f"{self._topic}-{self._number}"
        producer = Producer({"bootstrap.servers": self._broker.bootstrap, "transactional.id": of_transaction, "log_level": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(self._topic, value, b"k")
        assert producer.flush(30) == 0
        return producer

    def commit(self, *values: bytes | None) -> None:
        self.begin(*values).commit_transaction(30)

    def abort(self, *values: bytes | None) -> None:
        self.begin(*values).abort_transaction(30)


@pytest.mark.faults
@pytest.mark.parametrize("deployment", sampled(["fused", "staged"], ["fused"]))
def test_only_committed_records_are_read_and_waited_for(
    spark: SparkSession, broker: Broker, tmp_path: Path, deployment: Any
) -> None:
    """Aborted ones at a topic's end end a run; those after an open one are read when it is committed."""
    name = f"tx-{deployment}"
    broker.create(f"{name}-left", f"{name}-right", f"{name}-out", partitions=1)
    lefts = Transactions(broker, f"{name}-left")
    lefts.commit(document(fk="a", value="committed"))
    lefts.abort(document(fk="a", value="aborted"), None)
    broker.send(f"{name}-right", [Record(b"a", document(value="right"))])
    left, right = tables(spark, broker, name)
    joined = fk_join(left, right, "fk", name=name, deployment=deployment, application="tx")
    (connection,) = topics_of(left._planned)

    def left_to_read(query: Any) -> int:
        assert " behind" in repr(query)
        return int(repr(query).rpartition("; ")[2].split(" behind")[0])

    with running(joined, f"{name}-out", broker, tmp_path) as job:
        job.drain()
        assert joined_rows(broker, f"{name}-out") == {"k": ["committed", "right"]}
        opened = lefts.begin(document(fk="a", value="late"))
        lefts.commit(document(fk="a", value="later"))
        job.drain()
        assert joined_rows(broker, f"{name}-out") == {"k": ["committed", "right"]}
        assert left_to_read(job.queries[0]) == 0, "what cannot be read yet is no lag"
        assert admin.offset_ranges(connection.topic, broker.bootstrap, connection.options) == {0: range(5)}
        opened.commit_transaction(30)
        job.drain()
        assert joined_rows(broker, f"{name}-out") == {"k": ["later", "right"]}
        assert left_to_read(job.queries[0]) == 0, "nor is the mark at the end of a transaction"
    asked = {"kafka.isolation.level": "read_uncommitted"}
    every = Table.from_kafka(spark, f"{name}-left", broker.bootstrap, key="string", value="string", options=asked)
    assert len(rows(every.changes, tmp_path / "every")) == 5


def test_an_internal_topic_is_read_as_its_table_is(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("tx-between", partitions=1)
    between = Transactions(broker, "tx-between")
    between.commit(b"committed")
    between.abort(b"aborted")
    table = Table.from_kafka(spark, "tx-between", broker.bootstrap, key="string", value="string")
    (connection,) = topics_of(table._planned)
    records = read_internal(spark, connection, "tx-between")
    found = rows(on_spark(spark, records), tmp_path / "read")
    assert [bytes(row.value) for row in found] == [b"committed"]


def test_a_broker_restarted_and_a_topic_with_more_partitions(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("moved-left", "moved-right", "moved-out", partitions=1)
    events: list[TraceChange] = []

    def round_of(number: int) -> None:
        new = [TraceChange(0, True, f"k{at}", f"a{(at + number) % 3}", f"left {number}", 0) for at in range(20)]
        new += [TraceChange(0, False, f"a{at}", None, f"right {number}" if at != number else None, 0) for at in range(3)]
        broker.send("moved-left", [left_record(event) for event in new if event.left])
        broker.send("moved-right", [right_record(event) for event in new if not event.left])
        events.extend(new)

    left, right = tables(spark, broker, "moved", **{"kafka.metadata.max.age.ms": 500})
    joined = fk_join(left, right, "fk", how="left", name="moved")
    with running(joined, "moved-out", broker, tmp_path) as job:
        round_of(0)
        job.drain()
        broker.restart()
        round_of(1)
        job.drain()
        broker.add_partitions("moved-left", 3)
        broker.add_partitions("moved-right", 2)
        round_of(2)
        job.drain()
        deadline = time.monotonic() + 120
        while joined_rows(broker, "moved-out") != batch_join(events, "left") and time.monotonic() < deadline:
            time.sleep(0.5)  # Spark learns of new partitions with the next refresh of its metadata
            job.drain()
    assert joined_rows(broker, "moved-out") == batch_join(events, "left")


def published(table: Table, topic: str, broker: Broker, folder: Path) -> dict[str, int]:
    """Write all that there is of the table to the topic, with positions, and return the counters."""
    query = table.to_kafka(topic, broker.bootstrap, checkpoint=folder, positions=True, trigger={"availableNow": True})
    query.awaitTermination()
    return Running([query]).counters()


def test_rows_know_where_their_records_were_read(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Workers and Spark tell it to filters, extractors and joiners, with the chains of a topic that has them."""
    broker.create("placed", "placed-clean", "placed-clients", "placed-out", partitions=1)
    broker.send("placed", [Record(key.encode(), document(fk="c")) for key in "abc"])
    broker.send("placed-clients", [Record(b"c", b"name")])
    about: Any = {"key": "string", "value": Json("fk string"), "positions": True}
    clients = Table.from_kafka(spark, "placed-clients", broker.bootstrap, key="string", value="string")
    joiner = ["left._position as place", "left._position.offset + 1 as next", "right.value as client"]
    place = {"topic": "placed", "partition": 0}
    frames = []
    for name, more in (("workers", {}), ("spark", {"headers": True})):
        orders = Table.from_kafka(spark, "placed", broker.bootstrap, name=name, **about, **more)
        assert orders.columns == ["key", "fk", *more, "_position"]
        extractor = "if(_position.topic = 'placed' and _position.partition = 0, fk, null)"
        joined = fk_join(orders.filter("_position.offset > 0"), clients, extractor, name=f"{name}-joined", joiner=joiner)
        frames.append(joined.changes.select(F.lit(name).alias("by"), "key", "place", "next", "client"))
    both = rows(frames[0].unionAll(frames[1]), tmp_path / "joined")
    read_at = [(row.by, row.key, row.place.asDict(), row.next, row.client) for row in both]
    assert sorted(read_at) == [
        (by, key, {**place, "offset": offset}, offset + 1, "name")
        for by in ("spark", "workers")
        for offset, key in enumerate("bc", 1)
    ]
    published(Table.from_kafka(spark, "placed", broker.bootstrap, **about), "placed-clean", broker, tmp_path / "publish")
    clean = Table.from_kafka(spark, "placed-clean", broker.bootstrap, roots=1, **about)
    read = {row.key: row._position.asDict(recursive=True) for row in rows(clean.changes, tmp_path / "clean")}
    times = [record.timestamp()[1] for record in broker.read("placed")]
    roots = [{**place, "offset": at, "timestamp": time, "shown": None} for at, time in enumerate(times)]
    assert read == {
        key: {"topic": "placed-clean", "partition": 0, "offset": at, "chains": [[roots[at]]]} for at, key in enumerate("abc")
    }
    written = [json.loads(record.value()) for record in broker.read("placed-clean")]
    assert written == [{"fk": "c", "_position": {**place, "offset": at}} for at in range(3)]


@pytest.mark.nightly
def test_a_merge_says_where_its_rows_came_from(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Workers and Spark make the records, and a reader takes the positions of both tables for a row's version."""
    broker.create("merge-eu", "merge-us", *(f"merge-{name}" for name in ("workers", "spark", "out")), partitions=1)
    about: Any = {"key": "string", "value": Json("n int")}
    eu, us = (Table.from_kafka(spark, f"merge-{name}", broker.bootstrap, **about) for name in ("eu", "us"))
    everywhere = eu.merge(us, name="everywhere")
    steps = [("us", b"a", document(n=1)), ("eu", b"a", document(n=2)), ("us", b"b", document(n=3)), ("eu", b"a", None)]
    ways: tuple[tuple[str, Any], ...] = (("workers", {}), ("spark", {"headers": "array()"}))
    queries = [
        everywhere.to_kafka(
            f"merge-{name}", broker.bootstrap, checkpoint=tmp_path / name, query_name=name, positions=True, **more
        )
        for name, more in ways
    ]
    for topic, key, value in steps:
        broker.send(f"merge-{topic}", [Record(key, value)])
        for query in queries:
            query.processAllAvailable()
    for query in queries:
        query.stop()
    times = {topic: [record.timestamp()[1] for record in broker.read(f"merge-{topic}")] for topic in ("eu", "us")}

    def root(topic: str, offset: int, **more: Any) -> list[dict[str, Any]]:
        return [{"topic": f"merge-{topic}", "partition": 0, "offset": offset, "timestamp": times[topic][offset], **more}]

    wanted = [
        (b"a", 1, [None, root("us", 0, shown=True)]),
        (b"a", 2, [root("eu", 0, shown=True), root("us", 0)]),
        (b"b", 3, [None, root("us", 1, shown=True)]),
        (b"a", 1, [root("eu", 1), root("us", 0, shown=True)]),
    ]
    for name, _ in ways:
        found = [(one.key(), json.loads(one.value())["n"], dict(one.headers())) for one in broker.read(f"merge-{name}")]
        assert [(key, n, json.loads(headers["fkjoin-positions"])) for key, n, headers in found] == wanted
    clean = Table.from_kafka(spark, "merge-workers", broker.bootstrap, roots=2, positions=True, **about).materialize("clean")
    read = {row.key: (row.n, row._position.chains[1][0].shown) for row in rows(clean.changes, tmp_path / "clean")}
    assert read == {"a": (1, True), "b": (3, True)}
    paced = eu.merge(us, name="paced", emit="periodic 1 hour")
    for table, says in (
        (paced, "positions: paced has emit='periodic 1 hour', and rows wait for .*; leave emit or positions out"),
        (everywhere.filter("n > 0"), "positions: a row that sums up others, has a new key, or is made of a merged one"),
    ):
        with pytest.raises(TopologyError, match=says):
            table.to_kafka("merge-out", broker.bootstrap, checkpoint=tmp_path / "none", positions=True)
    joined = fk_join(everywhere, us, "key", name="of-a-merge")  # operators see the merge's own versions
    found = {row.key: row._right_version for row in rows(joined.changes, tmp_path / "joined")}
    assert found == {"a": [times["us"][0], 0, 0], "b": [times["us"][1], 0, 1]}


def test_what_a_job_upstream_publishes_twice_counts_once_and_another_root_starts_over(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.create("raw", "clean", "clients", "mirror", "seen", partitions=1)
    fk = Json("fk string, n int")
    raw = Table.from_kafka(spark, "raw", broker.bootstrap, key="string", value=fk)
    broker.send("raw", [Record(b"a", document(fk="c", n=number)) for number in range(3)])
    broker.send("clients", [Record(b"c", b"name")])
    published(raw, "clean", broker, tmp_path / "first")
    published(raw, "clean", broker, tmp_path / "again")
    first = broker.read("raw")[0]

    def root(offset: int, topic: str = "raw", partition: int = first.partition()) -> dict[str, Any]:
        return {"topic": topic, "partition": partition, "offset": offset}

    passed_on = [json.loads(dict(record.headers())["fkjoin-positions"]) for record in broker.read("clean")]
    times = [record.timestamp()[1] for record in broker.read("raw")]
    assert passed_on == 2 * [[[root(offset) | {"timestamp": time}]] for offset, time in enumerate(times)]

    clean = Table.from_kafka(spark, "clean", broker.bootstrap, key="string", value=fk, roots=1)
    clients = Table.from_kafka(spark, "clients", broker.bootstrap, key="string", value="string")
    joined = fk_join(clean, clients, "fk", name="positions", joiner=["left.n as n", "right.value as client"])
    counted = published(joined, "mirror", broker, tmp_path / "join")
    assert (counted["left-in"], counted["stale-dropped"], counted["source-restarts"], counted["out"]) == (6, 3, 0, 1)

    moved = json.dumps([[root(0, "raw-2", 1), root(5, "between", 0)]]).encode()
    unusable = [b"[[]]", b"[null]", b"no", json.dumps([[root(1)], [root(1)]]).encode(), json.dumps([[root(-1)]]).encode()]
    headed = [Record(b"a", document(fk="c", n=7), [("fkjoin-positions", moved)])]
    headed += [Record(b"a", document(fk="c", n=8), [("fkjoin-positions", header)]) for header in unusable]
    broker.send("clean", headed)
    counted = published(joined, "mirror", broker, tmp_path / "join")
    assert (counted["source-restarts"], counted["dead-letters"], counted["out"]) == (1, len(unusable), 1)
    reasons = [row.reason for row in letters(joined.dead_letters, tmp_path / "letters")]
    assert all(reason.startswith("fkjoin-positions ") for reason in reasons)
    assert "has 2 roots, 1 expected" in reasons[3]

    place = broker.read("clients")[0]
    client = root(0, "clients", place.partition())
    stands_for = hashlib.md5(b"raw-2").hexdigest()[:8]
    first_root = hashlib.md5(b"raw").hexdigest()[:8]
    found = [json.loads(dict(record.headers())["fkjoin-positions"]) for record in broker.read("mirror")]
    timed = client | {"timestamp": place.timestamp()[1]}
    headed_at = broker.read("clean")[6].timestamp()[1]  # a root without a timestamp has that of the record with the header
    moved_root = root(0, f"#{stands_for}", 1) | {"timestamp": headed_at}
    assert found == [[[root(2, f"#{first_root}") | {"timestamp": times[2]}], [timed]], [[moved_root], [timed]]]
    mirror = Table.from_kafka(spark, "mirror", broker.bootstrap, key="string", value=Json("n int, client string"), roots=2)
    versions = [row._version for row in rows(mirror.changes, tmp_path / "mirror")]
    assert versions == [[times[2], 0, 2, timed["timestamp"], 0, 0], [headed_at, 1, 0, timed["timestamp"], 0, 0]]
    published(mirror, "seen", broker, tmp_path / "seen")
    last = json.loads(dict(broker.read("seen")[-1].headers())["fkjoin-positions"])
    passed = root(1, "mirror", 0) | {"timestamp": broker.read("mirror")[1].timestamp()[1]}
    assert last == [[moved_root, passed], [timed, passed]]


def test_a_topic_is_read_by_as_many_tasks_as_a_stage_has_partitions(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Options that set the number of tasks keep their effect."""
    broker.create("many-partitions", partitions=6)
    broker.send("many-partitions", [Record(None, b"x", partition=number) for number in range(6)])
    spark.conf.set(PARTITIONS, "2")
    for given, tasks in (({}, 2), ({"minPartitions": "6"}, 6), ({"maxRecordsPerPartition": "1"}, 6)):
        found: list[tuple[int, int]] = []
        read = records_of(spark, "many-partitions", broker.bootstrap, {"startingOffsets": "earliest", **given})
        records = on_spark(spark, read)
        writer = records.writeStream.foreachBatch(lambda rows, _: found.append((rows.rdd.getNumPartitions(), rows.count())))  # noqa: B023
        query = writer.option("checkpointLocation", str(tmp_path / str(len(given)) / str(tasks) / "-".join(given))).start()
        query.processAllAvailable()
        query.stop()
        assert found == [(tasks, 6)]
