"""Events at brokers and topics: topics that do not fit, aborted transactions, a restart, jobs that publish twice."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin import FkJoinError, Table, TopologyError, fk_join
from fkjoin.kafka import Json, admin
from fkjoin.kafka.internal import read_internal
from fkjoin.kafka.reading import records_of
from fkjoin.lowering.as_begun import topics_of
from fkjoin.sessions.settings import EXCLUDED, PARTITIONS
from fkjoin.spark.on_spark import on_spark

from .broker import Broker, Record
from .jobs import Running, delete, document, joined_rows, letters, rows, running, tables

pytestmark = pytest.mark.usefixtures("small_tables")


def test_a_topic_that_is_not_there_or_does_not_fit_is_refused_before_a_query_starts(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("there-left", "there-right", partitions=2)
    left, right = tables(spark, broker, "there")

    def staged() -> Table:
        return fk_join(left, right, "fk", name="all", deployment="staged", application="there")

    with pytest.raises(TopologyError, match=r"no topic 'there-lef' at .*; did you mean 'there-left'\?"):
        Table.from_kafka(spark, "there-lef", broker.bootstrap, key="string", value="string")
    joining = staged().stages[0].topics
    registration = next(iter(joining.partitions))
    broker.create(registration, partitions=1)
    with pytest.raises(
        TopologyError, match=r"internal topic .* has 1 partitions, but needs 2.*: stop the stages .*, delete the internal topic"
    ):
        joining.create()
    delete(broker, registration)
    joining.create()
    broker.send(registration, [Record(b"k", b"v", partition=0)])
    admin.delete_records(registration, broker.bootstrap, {}, {0: 1})
    with pytest.raises(FkJoinError, match=f"internal topic {registration} begins at offset 1 of partition 0"):
        staged().stages[1].start(tmp_path / "new")
    with monkeypatch.context() as patch:
        patch.setattr(admin, "_TIMEOUT_S", 1)
        with pytest.raises(TopologyError, match="bootstrap_servers: no broker answers at localhost:1 within 1 s"):
            Table.from_kafka(spark, "there-left", "localhost:1", key="string", value="string")
    partitions = "spark.fkjoin.topic.partitions"
    spark.conf.set(partitions, "none")
    try:
        with pytest.raises(TopologyError, match=rf"^{re.escape(partitions)}: 'none' is not a number from 1; write one"):
            staged()
    finally:
        spark.conf.unset(partitions)


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


def test_only_committed_records_are_read_also_of_a_broker_restarted_and_a_topic_with_more_partitions(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Aborted ones at a topic's end end a run; those after an open one are read when it is committed.

    Internal topics are read with the options of a table's topic.
    """
    broker.create("tx-left", "tx-right", "tx-out", partitions=1)
    lefts = Transactions(broker, "tx-left")
    lefts.commit(document(fk="a", value="committed"))
    lefts.abort(document(fk="a", value="aborted"), None)
    broker.send("tx-right", [Record(b"a", document(value="right"))])
    left, right = tables(spark, broker, "tx", **{"kafka.metadata.max.age.ms": 500})
    (connection,) = topics_of(left._planned)

    def left_to_read(query: Any) -> int:
        assert " behind" in repr(query)
        return int(repr(query).rpartition("; ")[2].split(" behind")[0])

    with running(fk_join(left, right, "fk", name="tx"), "tx-out", broker, tmp_path) as job:
        job.drain()
        assert joined_rows(broker, "tx-out") == {"k": ["committed", "right"]}
        broker.restart()
        opened = lefts.begin(document(fk="a", value="late"))
        lefts.commit(document(fk="a", value="later"))
        job.drain()
        assert joined_rows(broker, "tx-out") == {"k": ["committed", "right"]}
        assert left_to_read(job.queries[0]) == 0, "what cannot be read yet is not a lag"
        assert admin.offset_ranges(connection.topic, broker.bootstrap, connection.options) == {0: range(5)}
        opened.commit_transaction(30)
        job.drain()
        assert joined_rows(broker, "tx-out") == {"k": ["later", "right"]}
        assert left_to_read(job.queries[0]) == 0, "nor is the mark at the end of a transaction"
        broker.add_partitions("tx-right", 3)
        broker.send("tx-right", [Record(b"a", document(value="moved"), partition=2)])
        deadline = time.monotonic() + 120
        while joined_rows(broker, "tx-out") != {"k": ["later", "moved"]} and time.monotonic() < deadline:
            time.sleep(0.5)  # Spark learns of new partitions with the next refresh of its metadata
            job.drain()
    assert joined_rows(broker, "tx-out") == {"k": ["later", "moved"]}
    asked = {"kafka.isolation.level": "read_uncommitted"}
    every = Table.from_kafka(spark, "tx-left", broker.bootstrap, key="string", value="string", options=asked)
    assert len(rows(every.changes, tmp_path / "every")) == 5
    internal = rows(on_spark(spark, read_internal(spark, connection, "tx-left")), tmp_path / "internal")
    assert [json.loads(row.value)["value"] for row in internal] == ["committed", "late", "later"]


def published(table: Table, topic: str, broker: Broker, folder: Path) -> dict[str, int]:
    """Write all that there is of the table to the topic, with positions, and return the counters."""
    query = table.to_kafka(topic, broker.bootstrap, checkpoint=folder, positions=True, trigger={"availableNow": True})
    query.awaitTermination()
    return Running([query]).counters()


@pytest.mark.nightly
def test_rows_know_where_their_records_were_read(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Workers and Spark tell it to filters, extractors and joiners."""
    broker.create("placed", "placed-clients", partitions=1)
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


@pytest.mark.nightly
def test_a_merge_says_where_its_rows_came_from(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """A reader takes the positions of both tables for a row's version (laws of it: tests/stages/test_merge.py)."""
    broker.create("merge-eu", "merge-us", "merge-out", partitions=1)
    about: Any = {"key": "string", "value": Json("n int")}
    eu, us = (Table.from_kafka(spark, f"merge-{name}", broker.bootstrap, **about) for name in ("eu", "us"))
    everywhere = eu.merge(us, name="everywhere")
    query = everywhere.to_kafka("merge-out", broker.bootstrap, checkpoint=tmp_path / "ck", positions=True)
    steps = [("us", b"a", document(n=1)), ("eu", b"a", document(n=2)), ("us", b"b", document(n=3)), ("eu", b"a", None)]
    for topic, key, value in steps:
        broker.send(f"merge-{topic}", [Record(key, value)])
        query.processAllAvailable()
    query.stop()
    times = {topic: [record.timestamp()[1] for record in broker.read(f"merge-{topic}")] for topic in ("eu", "us")}

    def root(topic: str, offset: int, **more: Any) -> list[dict[str, Any]]:
        return [{"topic": f"merge-{topic}", "partition": 0, "offset": offset, "timestamp": times[topic][offset], **more}]

    found = [(one.key(), json.loads(one.value())["n"], dict(one.headers())) for one in broker.read("merge-out")]
    assert [(key, n, json.loads(headers["fkjoin-positions"])) for key, n, headers in found] == [
        (b"a", 1, [None, root("us", 0, shown=True)]),
        (b"a", 2, [root("eu", 0, shown=True), root("us", 0)]),
        (b"b", 3, [None, root("us", 1, shown=True)]),
        (b"a", 1, [root("eu", 1), root("us", 0, shown=True)]),
    ]
    clean = Table.from_kafka(spark, "merge-out", broker.bootstrap, roots=2, positions=True, **about).materialize("clean")
    read = {row.key: (row.n, row._position.chains[1][0].shown) for row in rows(clean.changes, tmp_path / "clean")}
    assert read == {"a": (1, True), "b": (3, True)}
    for table, says in (
        (
            eu.merge(us, name="paced", emit="periodic 1 hour"),
            "positions: paced has emit='periodic 1 hour', and rows that wait for .*",
        ),
        (everywhere.filter("n > 0"), "positions: they are not available after an aggregate, a flat map, rekey or"),
    ):
        with pytest.raises(TopologyError, match=says):
            table.to_kafka("merge-out", broker.bootstrap, checkpoint=tmp_path / "none", positions=True)


@pytest.mark.nightly
def test_joins_that_run_as_one_say_where_rows_came_from_as_joins_in_a_row_do(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.create("sold", "buyers", "items", "as-one", "as-written", partitions=2)
    source = {"bootstrap_servers": broker.bootstrap, "key": "string"}
    sold = Table.from_kafka(spark, "sold", value=Json("buyer string, item string, n int"), **source)
    buyers, items = (Table.from_kafka(spark, name, value=Json("name string"), **source) for name in ("buyers", "items"))
    broker.send("buyers", [Record(b"a", document(name="Ann")), Record(b"b", document(name="Bo"))])
    broker.send("items", [Record(b"p", document(name="pen"))])
    broker.send("sold", [Record(b"%d" % at, document(buyer="a", item="pq"[at % 2], n=at)) for at in range(4)])
    broker.send("sold", [Record(b"0", document(buyer="b", item="p", n=9)), Record(b"1", None), Record(b"5", b"broken")])
    placed = {}
    for topic, excluded in (("as-written", "joins-share-stages"), ("as-one", "")):
        spark.conf.set(EXCLUDED, excluded)
        first = fk_join(sold, buyers, "buyer", joiner=["left.n", "left.item", "right.name as buyer"], name="first")
        both = fk_join(first, items, "item", "left", joiner=["left.n", "left.buyer", "right.name as item"], name="both")
        assert f"joins-share-stages {'did not fire' if excluded else 'fired'}" in both.describe()
        counted = published(both, topic, broker, tmp_path / topic)
        assert counted["dead-letters"] == 1
        assert {key: json.loads(value) for key, value in broker.table(topic).items()} == {
            b"0": {"n": 9, "buyer": "Bo", "item": "pen"},
            b"2": {"n": 2, "buyer": "Ann", "item": "pen"},
            b"3": {"n": 3, "buyer": "Ann", "item": None},
        }
        placed[topic] = {record.key(): dict(record.headers())["fkjoin-positions"] for record in broker.read(topic)}
    assert placed["as-one"] == placed["as-written"]


def test_what_a_job_upstream_publishes_twice_counts_once_and_another_root_starts_over(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.create("raw", "clean", "seen", "clients", "mirror", partitions=1)
    fk = Json("fk string, n int")
    raw = Table.from_kafka(spark, "raw", broker.bootstrap, key="string", value=fk)
    broker.send("raw", [Record(b"a", document(fk="c", n=number)) for number in range(3)])
    broker.send("clients", [Record(b"c", b"name")])
    published(raw, "clean", broker, tmp_path / "first")
    published(raw, "clean", broker, tmp_path / "again")

    def root(offset: int, topic: str = "raw", partition: int = 0) -> dict[str, Any]:
        return {"topic": topic, "partition": partition, "offset": offset}

    passed_on = [json.loads(dict(record.headers())["fkjoin-positions"]) for record in broker.read("clean")]
    times = [record.timestamp()[1] for record in broker.read("raw")]
    assert passed_on == 2 * [[[root(offset) | {"timestamp": time}]] for offset, time in enumerate(times)]

    clean = Table.from_kafka(spark, "clean", broker.bootstrap, key="string", value=fk, roots=1, positions=True)
    published(clean, "seen", broker, tmp_path / "seen")
    cleaned = [root(record.offset(), "clean") | {"timestamp": record.timestamp()[1]} for record in broker.read("clean")]
    seen = broker.read("seen")
    assert [json.loads(dict(record.headers())["fkjoin-positions"]) for record in seen] == [
        [[*chain, own]] for (chain,), own in zip(passed_on, cleaned, strict=True)
    ]
    assert [json.loads(record.value())["_position"] for record in seen] == [
        root(at, "clean") | {"chains": [[{**place, "shown": None} for place in chain]]} for at, (chain,) in enumerate(passed_on)
    ]

    clients = Table.from_kafka(spark, "clients", broker.bootstrap, key="string", value="string")
    joined = fk_join(clean, clients, "fk", name="positions", joiner=["left.n as n", "right.value as client"])
    counted = published(joined, "mirror", broker, tmp_path / "join")
    assert (counted["left-in"], counted["stale-dropped"], counted["source-restarts"], counted["out"]) == (6, 3, 0, 1)

    moved = json.dumps([[root(0, "raw-2", 1), root(5, "between")]]).encode()
    unusable = [b"[[]]", b"[null]", b"no", json.dumps([[root(1)], [root(1)]]).encode(), json.dumps([[root(-1)]]).encode()]
    headed = [Record(b"a", document(fk="c", n=7), [("fkjoin-positions", moved)])]
    headed += [Record(b"a", document(fk="c", n=8), [("fkjoin-positions", header)]) for header in unusable]
    broker.send("clean", headed)
    counted = published(joined, "mirror", broker, tmp_path / "join")
    assert (counted["source-restarts"], counted["dead-letters"], counted["out"]) == (1, len(unusable), 1)
    reasons = [row.reason for row in letters(joined.dead_letters, tmp_path / "letters")]
    assert all(reason.startswith("fkjoin-positions ") for reason in reasons)
    assert "has 2 roots, 1 expected" in reasons[3]

    (client,) = (root(0, "clients") | {"timestamp": record.timestamp()[1]} for record in broker.read("clients"))
    first, second = (f"#{hashlib.md5(topic).hexdigest()[:8]}" for topic in (b"raw", b"raw-2"))
    headed_at = broker.read("clean")[6].timestamp()[1]  # a root without a timestamp has that of the record with the header
    found = [json.loads(dict(record.headers())["fkjoin-positions"]) for record in broker.read("mirror")]
    assert found == [
        [[root(2, first) | {"timestamp": times[2]}], [client]],
        [[root(0, second, 1) | {"timestamp": headed_at}], [client]],
    ]
    mirror = Table.from_kafka(spark, "mirror", broker.bootstrap, key="string", value=Json("n int, client string"), roots=2)
    read = [row._version for row in rows(mirror.changes, tmp_path / "mirror")]
    assert read == [[times[2], 0, 2, client["timestamp"], 0, 0], [headed_at, 1, 0, client["timestamp"], 0, 0]]


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
