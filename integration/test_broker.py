"""Events at brokers and topics: topics that do not fit, aborted transactions, a restart, an outage.

Jobs that publish twice, and bounded previews of topics.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from fkjoin import FkJoinError, QueryError, Table, TopologyError, fk_join
from fkjoin.kafka import Json, admin
from fkjoin.kafka.internal import read_internal
from fkjoin.kafka.reading import records_of
from fkjoin.lowering.as_begun import topics_of
from fkjoin.metrics import watch
from fkjoin.sessions.settings import PARTITIONS
from fkjoin.sinks import preview
from fkjoin.spark.on_spark import on_spark
from tests.support.queries import write_lines
from tests.support.sinks import finished

from .broker import Broker, Record, Transactions
from .jobs import Running, document, from_topic, letters, rows, tables
from .machine import until

pytestmark = pytest.mark.usefixtures("least_tables", "ended_queries")


def test_a_topic_that_does_not_fit_is_refused(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Brokers that do not answer: test_run.py."""
    broker.create("there-left", "there-right", partitions=2)
    left, right = tables(spark, broker, "there")

    def staged() -> Table:
        return fk_join(left, right, "fk", name="all", deployment="staged", application="there")

    with pytest.raises(TopologyError, match=r"no topic 'there-lef' at .*; did you mean 'there-left'\?"):
        from_topic(spark, broker, "there-lef")
    joining = staged().stages[0].topics
    registration = next(iter(joining.partitions))
    broker.create(registration, partitions=1)
    few = r"internal topic .* has 1 partitions, but needs 2.*: stop the stages .*, delete the internal topic"
    with pytest.raises(TopologyError, match=few):
        joining.create()
    broker.delete(registration)
    joining.create()
    broker.send(registration, [Record(b"k", b"v", partition=0)])
    admin.delete_records(registration, broker.bootstrap, {}, {0: 1})
    with pytest.raises(FkJoinError, match=f"internal topic {registration} begins at offset 1 of partition 0"):
        staged().stages[1].start(tmp_path / "new")
    partitions = "spark.fkjoin.topic.partitions"
    spark.conf.set(partitions, "none")
    with pytest.raises(TopologyError, match=rf"^{re.escape(partitions)}: 'none' is not a number from 1; write one"):
        staged()
    spark.conf.unset(partitions)


def change(value: str) -> Record:
    return Record(b"k", document(value=value))


def test_only_committed_records_are_read_after_a_restart(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Aborted ones at a topic's end end a run; those after an open one are read when it is committed.

    Internal topics are read with the options of a table's topic.
    """
    broker.create("tx-in", "tx-out", partitions=1)
    transactions = Transactions(broker, "tx-in")
    transactions.commit(change("committed"))
    transactions.abort(change("aborted"), Record(b"k", None))
    table = from_topic(spark, broker, "tx-in", Json("value string"), options={"kafka.metadata.max.age.ms": 500})
    (connection,) = topics_of(table._planned)
    query = table.to_kafka("tx-out", broker.bootstrap, checkpoint=tmp_path / "ck")

    def drained() -> dict[bytes, Any]:
        """The table, when all that can be read is read and nothing else is a lag."""
        query.processAllAvailable()
        assert repr(query).endswith("; 0 behind")
        return {key: json.loads(value)["value"] for key, value in broker.table("tx-out").items()}

    assert drained() == {b"k": "committed"}
    broker.restart()
    opened = transactions.begin(change("late"))
    transactions.commit(change("later"))
    assert drained() == {b"k": "committed"}
    assert admin.offset_ranges(connection.topic, broker.bootstrap, connection.options) == {0: range(5)}
    opened.commit_transaction(30)
    assert drained() == {b"k": "later"}
    internal = rows(on_spark(spark, read_internal(spark, connection, "tx-in")), tmp_path / "internal")
    assert [json.loads(row.value)["value"] for row in internal] == ["committed", "late", "later"]
    broker.add_partitions("tx-in", 3)
    broker.send("tx-in", [Record(b"m", document(value="moved"), partition=2)])
    grown = {b"k": "later", b"m": "moved"}
    until("Spark learns of new partitions when it refreshes its metadata", lambda: drained() == grown, 120, 0.5)


def published(table: Table, topic: str, broker: Broker, folder: Path) -> dict[str, int]:
    """Write all that there is of the table to the topic, with positions, and return the counters."""
    where: Any = {"checkpoint": folder, "positions": True, "trigger": "available-now"}
    return Running([finished(table.to_kafka(topic, broker.bootstrap, **where))]).counters()


def positions(broker: Broker, topic: str) -> list[Any]:
    """The source positions in the headers of the topic's records."""
    return [json.loads(dict(record.headers())["fkjoin-positions"]) for record in broker.read(topic)]


def times(broker: Broker, topic: str) -> list[int]:
    return [record.timestamp()[1] for record in broker.read(topic)]


def test_what_a_job_upstream_publishes_twice_counts_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("raw", "clean", "seen", "clients", "mirror", partitions=1)
    fk = Json("fk string, n int")
    raw = from_topic(spark, broker, "raw", fk)
    broker.send("raw", [Record(b"a", document(fk="c", n=number)) for number in range(3)])
    broker.send("clients", [Record(b"c", b"name")])
    published(raw, "clean", broker, tmp_path / "first")
    broker.send("clean", [Record(record.key(), record.value(), record.headers()) for record in broker.read("clean")])

    def root(offset: int, topic: str = "raw", partition: int = 0, **more: Any) -> dict[str, Any]:
        return {"topic": topic, "partition": partition, "offset": offset, **more}

    passed_on, sent = positions(broker, "clean"), times(broker, "raw")
    assert passed_on == 2 * [[[root(offset, timestamp=time)]] for offset, time in enumerate(sent)]

    clean = from_topic(spark, broker, "clean", fk, roots=1, positions=True)
    published(clean, "seen", broker, tmp_path / "seen")
    cleaned = times(broker, "clean")
    chains = [chain for (chain,) in passed_on]
    own = [root(offset, "clean", timestamp=time) for offset, time in enumerate(cleaned)]
    assert positions(broker, "seen") == [[[*chain, last]] for chain, last in zip(chains, own, strict=True)]
    read = [json.loads(record.value())["_position"] for record in broker.read("seen")]
    unseen = [[{**place, "shown": None} for place in chain] for chain in chains]
    assert read == [root(at, "clean", chains=[chain]) for at, chain in enumerate(unseen)]

    joiner = ["left.n as n", "right.value as client"]
    clients = from_topic(spark, broker, "clients")
    joined = fk_join(clean, clients, "fk", name="positions", joiner=joiner)
    counted = published(joined, "mirror", broker, tmp_path / "join")
    assert (counted["left-in"], counted["stale-dropped"], counted["source-restarts"], counted["out"]) == (6, 3, 0, 1)

    moved = json.dumps([[root(0, "raw-2", 1), root(5, "between")]]).encode()
    unusable = [b"[[]]", b"[null]", b"no", json.dumps([[root(1)], [root(1)]]).encode(), json.dumps([[root(-1)]]).encode()]
    for header in (moved, *unusable):
        broker.send("clean", [Record(b"a", document(fk="c", n=7), [("fkjoin-positions", header)])])
    counted = published(joined, "mirror", broker, tmp_path / "join")
    assert (counted["source-restarts"], counted["dead-letters"], counted["out"]) == (1, len(unusable), 1)
    reasons = [row.reason for row in letters(joined.dead_letters, tmp_path / "letters")]
    assert all(reason.startswith("fkjoin-positions ") for reason in reasons)
    assert "has 2 roots, 1 expected" in reasons[3]

    first, second = (f"#{hashlib.md5(topic).hexdigest()[:8]}" for topic in (b"raw", b"raw-2"))
    client = root(0, "clients", timestamp=times(broker, "clients")[0])
    late = times(broker, "clean")[6]  # a root without a timestamp has that of its record
    assert positions(broker, "mirror") == [
        [[root(2, first, timestamp=sent[2])], [client]],
        [[root(0, second, 1, timestamp=late)], [client]],
    ]
    mirror = from_topic(spark, broker, "mirror", Json("n int, client string"), roots=2)
    read = [row._version for row in rows(mirror.changes, tmp_path / "mirror")]
    of_client = [client["timestamp"], 0, 0]
    assert read == [[sent[2], 0, 2, *of_client], [late, 1, 0, *of_client]]
    paced = raw.merge(from_topic(spark, broker, "seen", fk), name="paced", emit="periodic 1 hour")
    with pytest.raises(TopologyError, match="positions: paced has emit='periodic 1 hour', and rows that wait for"):
        paced.to_kafka("mirror", broker.bootstrap, checkpoint=tmp_path / "none", positions=True)


def test_a_topic_is_read_by_as_many_tasks_as_a_stage_has_partitions(spark: SparkSession, broker: Broker) -> None:
    """Options that set the number of tasks keep their effect."""
    broker.create("many-partitions", partitions=6)
    broker.send("many-partitions", [Record(None, b"x", partition=number) for number in range(6)])
    spark.conf.set(PARTITIONS, "2")
    found: list[tuple[int, int]] = []

    def count(rows: DataFrame, _: int) -> None:
        found.append((rows.rdd.getNumPartitions(), rows.count()))

    for more in ({}, {"minPartitions": "6"}):
        options = {"startingOffsets": "earliest", **more}
        records = on_spark(spark, records_of(spark, "many-partitions", broker.bootstrap, options))
        write = records.writeStream.trigger(availableNow=True)
        write.foreachBatch(count).start().awaitTermination()
    assert found == [(2, 6), (6, 6)]


def test_a_preview_reads_topics_and_makes_none(spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of tables whose options pace their queries."""
    broker.create("previewed-orders", "previewed-customers", partitions=1)
    broker.send("previewed-customers", [Record(f"c{at}".encode(), document(name=f"name {at}")) for at in range(3)])
    orders = [Record(f"o{at:03}".encode(), document(customer=f"c{at % 3}", amount=at)) for at in range(100)]
    broker.send("previewed-orders", orders)
    before = broker.topics()
    value, pace = Json("customer string, amount int"), {"maxOffsetsPerTrigger": 1, "minOffsetsPerTrigger": 1}
    source = from_topic(spark, broker, "previewed-orders", value, name="orders", options=pace)
    customers = from_topic(spark, broker, "previewed-customers", Json("name string"))
    joined = fk_join(source, customers, "customer", joiner=["left.amount", "right.name"], deployment="staged", name="seen")
    monkeypatch.setattr(preview, "_OF_TOPICS", {"maxOffsetsPerTrigger": 10})
    some = joined.preview(15).collect()
    assert len(some) == 15
    assert {row["amount"] for row in some} <= set(range(20))
    assert all(row["name"] == f"name {row['amount'] % 3}" for row in some)
    assert broker.topics() == before


def test_the_lag_and_brokers_that_do_not_answer(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """The options bound the time until the query fails."""
    broker.create("silent", partitions=1)
    broker.send("silent", [Record(str(number).encode(), b"1") for number in range(100)])
    bounded = {"maxOffsetsPerTrigger": 30, "fetchOffset.numRetries": 1}
    limits = {"kafka.default.api.timeout.ms": 4_000, "kafka.request.timeout.ms": 2_000, **bounded}
    table = from_topic(spark, broker, "silent", options=limits)
    metrics = watch(spark)
    where: Any = {"checkpoint": tmp_path / "ck", "query_name": "out"}
    first = table.to_parquet(tmp_path / "out", **where, trigger="1 hour")
    until("the first batch has ended", lambda: "out" in metrics.snapshot())
    assert "; 70 behind" in repr(first)
    first.stop()
    assert metrics.snapshot()["out"]["lag"] == {"silent": {"0": 70}}
    figures = metrics.prometheus().decode()
    assert 'fkjoin_lag_records{partition="0",query="out",topic="silent"} 70.0' in figures
    query = table.to_parquet(tmp_path / "out", **where)
    query.processAllAvailable()
    assert repr(query).endswith("; 0 behind")
    says = f"^query out failed: the brokers of topic silent at {broker.bootstrap} do not answer \\("
    with broker.gone(), pytest.raises(QueryError, match=says):
        query.awaitTermination(60)


GONE_S = 75
"""Seconds of the outage: the producer's own limit is 60 s, and a task asks it for the topic some seconds late."""


@pytest.mark.nightly
def test_batches_wait_for_a_broker_that_is_gone_for_a_minute(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """One batch is to be written to a topic, and another one to be read from a topic."""
    broker.create("outage-out", "outage-in", partitions=1)
    broker.send("outage-in", [Record(b"a", b"1")])
    (tmp_path / "rows").mkdir()
    files = Table.from_files(spark, tmp_path / "rows", key="id", version="lsn", schema="id string, lsn bigint", format="json")
    writing = files.to_kafka("outage-out", broker.bootstrap, checkpoint=tmp_path / "ck-out")
    topic = from_topic(spark, broker, "outage-in")
    reading = topic.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck-in")
    reading.processAllAvailable()
    with broker.gone():
        write_lines(tmp_path / "rows", "0", [{"id": "a", "lsn": 1}])
        assert not writing.awaitTermination(GONE_S), writing.exception()
    broker.send("outage-in", [Record(b"b", b"2")])
    writing.processAllAvailable()
    reading.processAllAvailable()
    assert [message.key() for message in broker.read("outage-out")] == [b"a"]
    assert sorted(row.key for row in spark.read.parquet(str(tmp_path / "out")).collect()) == ["a", "b"]
