"""The order of a topic's changes, on a broker: grown topics, and versions of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError, fk_join
from fkjoin.kafka import Debezium, Json
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS
from fkjoin.sinks import Kafka
from fkjoin.spark.on_spark import columns_of

from .broker import Broker, Record
from .jobs import document, letters, rows


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    for name, value in ((PARTITIONS, "2"), (BUCKETS, "2"), (INDEX_DIR, str(tmp_path / "index"))):
        spark.conf.set(name, value)


def final(table: Table, folder: Path, *columns: str) -> dict[str, Any]:
    """The rows that are left when all changes there are have been read, batch by batch."""
    found: dict[str, Any] = {}
    for row in rows(table.changes, folder):
        if row._operation == "delete":
            found.pop(row[0], None)
        else:
            found[row[0]] = tuple(row[name] for name in columns)
    return found


ONE_BATCH = pytest.param({}, id="one batch", marks=pytest.mark.nightly)


@pytest.mark.parametrize("options", [ONE_BATCH, pytest.param({"maxOffsetsPerTrigger": 80}, id="many batches")])
def test_a_grown_topic_is_read_from_its_beginning(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Some of its keys moved to another partition with the records written after one was added."""
    topic = f"grown-{len(options)}"
    broker.create(topic, partitions=3)
    keys = [f"k{number}" for number in range(60)]
    broker.send(topic, [Record(key.encode(), document(n=round_)) for round_ in range(3) for key in keys])
    broker.add_partitions(topic, 4)
    broker.send(topic, [Record(key.encode(), document(n=100)) for key in keys])
    table = Table.from_kafka(spark, topic, broker.bootstrap, key="string", value=Json("n int"), options=options)
    assert final(table.group_by("n").count(), tmp_path / "count", "count") == {100: (60,)}


def event(op: str, row: dict[str, Any] | None, lsn: int) -> bytes:
    return json.dumps({"payload": {"op": op, "before": None, "after": row, "source": {"lsn": lsn, "table": "t"}}}).encode()


@pytest.mark.nightly
def test_a_version_of_the_source_decides_whatever_the_offsets_say(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    topic = "by-lsn"
    broker.create(topic, partitions=2)
    key = {name: json.dumps({"id": name}).encode() for name in ("a", "b", "c")}
    broker.send(
        topic,
        [
            Record(key["a"], event("c", {"id": "a", "n": 1}, 10), partition=0),
            Record(key["a"], event("u", {"id": "a", "n": 3}, 30), partition=1),
            Record(key["a"], event("u", {"id": "a", "n": 2}, 20), partition=0),
            Record(key["b"], event("d", None, 30), partition=0),
            Record(key["b"], None, partition=0),
            Record(key["b"], event("c", {"id": "b", "n": 1}, 10), partition=0),
            Record(key["c"], b'{"op": "c", "after": {"id": "c", "n": 1}}', partition=0),
        ],
    )
    table = Table.from_kafka(
        spark,
        topic,
        broker.bootstrap,
        key=Debezium("id string"),
        value=Debezium("id string, n int"),
        version="source.lsn",
        timestamp="timestamp_millis(source.lsn)",
    )
    found = rows(table.materialize("kept").changes, tmp_path / "kept")
    (last,) = [row for row in found if row._operation != "delete"]
    assert (last.id, last.n) == ("a", 3)
    assert (last._version[0], len(last._version), last._timestamp.microsecond) == (30, 4, 30_000)
    (dead,) = letters(table.dead_letters, tmp_path / "dead")
    assert (dead.offset, dead.reason) == (5, "no version: source.lsn is null")


@pytest.mark.nightly
def test_a_topic_goes_on_from_a_snapshot_whoever_reads_it(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Its records are older and newer than the snapshot, and events of Debezium lack values that its rows have."""
    topic, place = "begun", str(tmp_path / "taken")
    broker.create(topic, partitions=2)
    key = {name: json.dumps({"id": name}).encode() for name in "abcd"}
    toast = "__debezium_unavailable_value"
    broker.send(
        topic,
        [
            Record(key["a"], event("c", {"id": "a", "n": 1, "bio": "old"}, 10), partition=1),
            Record(key["a"], event("u", {"id": "a", "n": 2, "bio": "long"}, 20), partition=1),
            Record(key["b"], event("d", None, 30), partition=0),
            Record(key["b"], None, partition=0),
            Record(key["c"], event("u", {"id": "c", "n": 3, "bio": toast}, 40), partition=0),
        ],
    )
    taken = [("a", 2, "long"), ("b", 0, "gone"), ("c", 1, "kept"), ("d", 4, "never changed")]
    spark.createDataFrame(taken, "id string, n int, bio string").write.parquet(place)

    def table(keep: bool = True, columns: str = "id string, n int, bio string", **more: Any) -> Table:
        value = Debezium(columns, unavailable="keep" if keep else "problem")
        return Table.from_kafka(spark, topic, broker.bootstrap, key=Debezium("id string"), value=value, **more)

    workers = table(name="by-workers").with_snapshot(place)
    more = {"headers": True, "positions": True, "version": "source.lsn"}
    by_spark = table(name="by-spark", **more).with_snapshot(place)
    joiner = ["left.n as n", "left.bio as bio", "right.n as m", "right.bio as same"]
    both = final(fk_join(workers, by_spark, "id", joiner=joiner, name="both"), tmp_path / "both", "n", "bio", "m", "same")
    assert both == {"a": (2, "long") * 2, "c": (3, "kept") * 2, "d": (4, "never changed") * 2}

    stages = [
        table(keep=False, columns=columns)
        .with_snapshot(place)
        .group_by("n", name="staged", deployment="staged")
        .count()
        .stages[0]
        for columns in ("id string, n int, bio string", "id string, n int, bio string, more string")
    ]
    with pytest.raises(TopologyError, match="begun has the column more string, and the files have none of that name"):
        stages[1].start(tmp_path / "stage", trigger={"availableNow": True})
    for stage in stages:
        stage.start(tmp_path / "stage", trigger={"availableNow": True}).awaitTermination()
    with pytest.raises(TopologyError, match="with_snapshot: begun has roots=.*; give the snapshot to the source tables"):
        table(keep=False, roots=1).with_snapshot(place)
    with pytest.raises(TopologyError, match="positions: by-spark has a snapshot, whose rows have no position in a topic"):
        Kafka("out", broker.bootstrap, positions=True).records(by_spark.materialize("kept")._plan)
    records = Kafka("out", broker.bootstrap).records(by_spark.materialize("kept")._plan)
    assert columns_of(spark, records).names == ["key", "value"]


def test_soft_deletes_are_ordered_by_the_version(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    topic = "soft"
    broker.create(topic, partitions=1)
    value = Json("n int, seq bigint, __deleted string")
    sent = [("a", 1, 1, "false"), ("b", 2, 1, "false"), ("a", 1, 2, "true"), ("b", 3, 3, None), ("b", 4, 2, "true")]
    broker.send(topic, [Record(key.encode(), document(n=n, seq=seq, __deleted=gone)) for key, n, seq, gone in sent])

    def table(**columns: Any) -> Table:
        return Table.from_kafka(spark, topic, broker.bootstrap, key="string", value=value, **columns)

    taken = [("c", 9, 0, "true"), ("d", 8, 0, "false")]
    schema = "key string, n int, seq bigint, __deleted string"
    spark.createDataFrame(taken, schema).write.parquet(str(tmp_path / "taken"))
    begun = table(version="seq", deleted="__deleted = 'true'", name="begun").with_snapshot(tmp_path / "taken")
    assert final(begun.materialize("kept"), tmp_path / "begun", "n") == {"b": (3,), "d": (8,)}
    with pytest.raises(TopologyError, match="version: soft has no column 'sek'; did you mean 'seq'?"):
        table(version="sek")
    with pytest.raises(TopologyError, match="timestamp: __deleted is string, a timestamp or bigint is needed"):
        table(timestamp="__deleted")
