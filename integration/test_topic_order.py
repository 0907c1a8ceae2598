"""The order of a topic's changes, on a broker: grown topics, and versions of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError, fk_join
from fkjoin.kafka import Debezium, Json
from fkjoin.sinks import Kafka
from fkjoin.spark.on_spark import columns_of

from .broker import Broker, Record
from .jobs import document, from_topic, letters, rows

pytestmark = pytest.mark.usefixtures("least_tables")


def final(table: Table, folder: Path, *columns: str) -> dict[str, Any]:
    """The rows that are left when all changes there are have been read, batch by batch."""
    last = {row[0]: row for row in rows(table.changes, folder)}
    live = [row for row in last.values() if row._operation != "delete"]
    return {row[0]: tuple(row[name] for name in columns) for row in live}


def test_a_grown_topic_is_read_from_its_beginning(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Some of its keys moved to another partition with the records written after one was added."""
    topic = "grown"
    broker.create(topic, partitions=3)
    keys = [f"k{number}" for number in range(60)]
    broker.send(topic, [Record(key.encode(), document(n=round_)) for round_ in range(3) for key in keys])
    broker.add_partitions(topic, 4)
    broker.send(topic, [Record(key.encode(), document(n=100)) for key in keys])
    table = from_topic(spark, broker, topic, Json("n int"), options={"maxOffsetsPerTrigger": 120})
    assert final(table.group_by("n").count(), tmp_path / "count", "count") == {100: (60,)}


def event(op: str, row: dict[str, Any] | None, lsn: int, table: str = "t") -> bytes:
    source = {"lsn": lsn, "table": table}
    return document(payload={"op": op, "before": None, "after": row, "source": source})


def test_a_version_of_the_source_decides_whatever_the_offsets_say(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    topic = "by-lsn"
    broker.create(topic, partitions=2)
    sent = [
        ("a", event("c", {"id": "a", "n": 1}, 10), 0),
        ("a", event("u", {"id": "a", "n": 3}, 30), 1),
        ("a", event("u", {"id": "a", "n": 2}, 20), 0),
        ("b", event("d", None, 30), 0),
        ("b", event("c", {"id": "b", "n": 1}, 10), 0),
        ("c", document(op="c", after={"id": "c", "n": 1}), 0),
        ("d", event("c", {"id": "d", "n": 1}, 10), 0),
        ("d", event("u", {"id": "d", "n": 1}, 20, table="deleted"), 0),
    ]
    for key, value, partition in sent:
        broker.send(topic, [Record(document(id=key), value, partition=partition)])
    about = {
        "version": "source.lsn",
        "timestamp": "timestamp_millis(source.lsn)",
        "deleted": "source.table = 'deleted'",
    }
    columns = Debezium("id string, n int")
    table = from_topic(spark, broker, topic, columns, key=Debezium("id string"), **about)
    last = {row.id: row for row in rows(table.materialize("kept").changes, tmp_path / "kept")}
    (row,) = [row for row in last.values() if row._operation != "delete"]
    assert (row.id, row.n) == ("a", 3)
    version = row._version
    assert (version[0], len(version), row._timestamp.microsecond) == (30, 4, 30_000)
    (dead,) = letters(table.dead_letters, tmp_path / "dead")
    assert (dead.offset, dead.reason) == (4, "no version: source.lsn is null")


def test_a_topic_goes_on_from_a_snapshot_whoever_reads_it(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Its records are older and newer than the snapshot, and events of Debezium lack values that its rows have."""
    topic, place = "begun", str(tmp_path / "taken")
    broker.create(topic, partitions=2)
    toast = "__debezium_unavailable_value"
    sent = [
        ("a", event("c", {"id": "a", "n": 1, "bio": "old"}, 10), 1),
        ("a", event("u", {"id": "a", "n": 2, "bio": "long"}, 20), 1),
        ("b", event("d", None, 30), 0),
        ("b", None, 0),
        ("c", event("u", {"id": "c", "n": 3, "bio": toast}, 40), 0),
    ]
    for key, value, partition in sent:
        broker.send(topic, [Record(document(id=key), value, partition=partition)])
    taken = [("a", 2, "long"), ("b", 0, "gone"), ("c", 1, "kept"), ("d", 4, "never changed")]
    spark.createDataFrame(taken, "id string, n int, bio string").write.parquet(place)

    def table(columns: str = "id string, n int, bio string", unavailable: Any = "keep", **more: Any) -> Table:
        value = Debezium(columns, unavailable=unavailable)
        return from_topic(spark, broker, topic, value, key=Debezium("id string"), **more)

    workers = table(name="by-workers").with_snapshot(place)
    more = {"headers": True, "positions": True, "version": "source.lsn"}
    by_spark = table(name="by-spark", **more).with_snapshot(place)
    joiner = ["left.n as n", "left.bio as bio", "right.n as m", "right.bio as same"]
    both = final(fk_join(workers, by_spark, "id", joiner=joiner, name="both"), tmp_path / "both", "n", "bio", "m", "same")
    assert both == {"a": (2, "long") * 2, "c": (3, "kept") * 2, "d": (4, "never changed") * 2}

    stages = []
    for columns in ("id string, n int", "id string, n int, more string"):
        begun = table(columns, "problem").with_snapshot(place)
        stages += begun.group_by("n", name="staged", deployment="staged").count().stages
    start = {"trigger": {"availableNow": True}}
    with pytest.raises(TopologyError, match="begun has the column more string, and the files have none of that name"):
        stages[1].start(tmp_path / "stage", **start)
    for stage in stages:
        stage.start(tmp_path / "stage", **start).awaitTermination()
    with pytest.raises(TopologyError, match="with_snapshot: begun has roots=.*; give the snapshot to the source tables"):
        from_topic(spark, broker, topic, roots=1).with_snapshot(place)
    with pytest.raises(TopologyError, match="positions: by-spark has a snapshot, whose rows have no position in a topic"):
        Kafka("out", broker.bootstrap, positions=True).records(by_spark.materialize("kept")._plan)
    records = Kafka("out", broker.bootstrap).records(by_spark.materialize("kept")._plan)
    assert columns_of(spark, records).names == ["key", "value"]
