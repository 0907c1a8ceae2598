"""Records through the broker: tombstones, headers, records that cannot be used; Debezium's events: test_toast.py."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin.kafka import Json
from tests.support.sessions import small

from .broker import Broker, Record
from .jobs import document, letters, running


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)


def test_bad_records_become_dead_letters_with_exact_counts_and_good_ones_go_through(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Spark reads the orders, for their headers; workers read the customers."""
    broker.create("bad-orders", partitions=1, max_message_bytes=str(20 << 20))
    broker.create("bad-customers", partitions=1)
    broker.create("bad-out", partitions=1, max_message_bytes=str(40 << 20))
    large = "x" * (10 << 20)
    orders = [
        Record(b"good", document(customer="c1", note="first")),
        Record(b"good", b"\xff\xfe"),
        Record(b"good", b"[1]"),
        Record(b"good", document(customer={"not": "text"}, amount="a")),
        Record(None, document(customer="c1")),
        Record(b"\xff", document(customer="c1")),
        Record(b"throws", document(customer="c1", note="throw")),
        Record(b"throws", document(customer="c1", note="fine again")),
        Record(b"no-key", document(note="no customer")),
        Record(b"gone", document(customer="c1")),
        Record(b"gone", None),
        Record(b"large", document(customer="c1", note=large)),
        Record(b"null", b"null"),
    ]
    broker.send("bad-orders", orders)
    broker.send(
        "bad-customers", [Record(b"c1", document(name="Ada")), Record(b"c2", b"{"), Record(b"\xff", b"{}"), Record(None, b"{}")]
    )
    value = Json("customer string, amount int, note string")
    left = Table.from_kafka(spark, "bad-orders", broker.bootstrap, key="string", value=value, headers=True)
    right = Table.from_kafka(spark, "bad-customers", broker.bootstrap, key="string", value=Json("name string"))
    assert [table._plan.undecoded is None for table in (left, right)] == [True, False]

    def extract(_: str, row: Any) -> str | None:
        if row["note"] == "throw":
            raise ValueError("not today")
        found: str | None = row["customer"]
        return found

    joined = fk_join(left, right, extract, how="left", name="bad")
    with running(joined, "bad-out", broker, tmp_path / "run") as job:
        job.drain()
        found = letters(joined.dead_letters, tmp_path / "dead")
        assert job.counters()["dead-letters"] == len(found) == 10
    assert [(row.topic, row.offset, row.reason.split(":")[0]) for row in found] == [
        ("bad-customers", 1, "value"),
        ("bad-customers", 2, "key"),
        ("bad-customers", 3, "null key"),
        ("bad-orders", 1, "value"),
        ("bad-orders", 2, "value"),
        ("bad-orders", 3, "value"),
        ("bad-orders", 4, "null key"),
        ("bad-orders", 5, "key"),
        ("bad-orders", 6, "extractor"),
        ("bad-orders", 12, "value"),
    ]
    assert found[8].reason == "extractor: ValueError: not today"
    for row in found:
        if row.topic == "bad-orders":
            assert (row.key, row.value) == (orders[row.offset].key, orders[row.offset].value)
    rows = {key.decode(): json.loads(value) for key, value in broker.table("bad-out").items()}
    assert {key: (row["left"]["note"], row["right"] and row["right"]["name"]) for key, row in rows.items()} == {
        "good": ("first", "Ada"),
        "throws": ("fine again", "Ada"),
        "no-key": ("no customer", None),
        "large": (large, "Ada"),
    }


def test_a_record_is_one_dead_letter_however_often_its_table_is_read(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The table's changes have the timestamps of their records."""
    broker.create("twice", partitions=1)
    an_hour_ago = int(time.time() - 3600)
    broker.send("twice", [Record(b"a", document(boss="b"), timestamp_ms=an_hour_ago * 1000)])
    broker.send("twice", [Record(b"b", b"?"), Record(b"c", document(boss="throw"))])
    people = Table.from_kafka(spark, "twice", broker.bootstrap, key="string", value=Json("boss string"))

    def boss(_: str, row: Any) -> str:
        found: str = row["boss"]
        return {"b": "b"}[found]

    seen: list[Any] = []
    query = people.changes.writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect())).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "seen")).start().awaitTermination()
    assert [(row.key, row.boss) for row in seen] == [("a", "b"), ("c", "throw")]
    assert seen[0]._timestamp.timestamp() == an_hour_ago
    with_boss = fk_join(people, people, boss, name="with-boss")
    again = fk_join(with_boss, people, "left.boss", name="again")
    reasons = [row.reason for row in letters(again.dead_letters, tmp_path / "dead")]
    assert reasons == ["value: not JSON that fits struct<boss:string>", "extractor: KeyError: 'throw'"]


def test_a_query_told_to_fail_says_which_record_it_was(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("strict", "strict-out", partitions=1)
    broker.send("strict", [Record(b"k", document(n=1)), Record(b"k", b"?")])
    table = Table.from_kafka(spark, "strict", broker.bootstrap, key="string", value=Json("n int"), on_error="fail")
    assert table.dead_letters is None
    query = table.to_kafka("strict-out", broker.bootstrap, checkpoint=tmp_path, trigger={"availableNow": True})
    with pytest.raises(Exception, match=r"record strict-0 offset 1: value: not JSON that fits struct<n:int>"):
        query.awaitTermination()


@pytest.mark.nightly
def test_workers_make_the_records_of_a_topic_where_they_can(
    spark: SparkSession, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create("made-left", "made-right", "made-out", partitions=1)
    whole = document(fk="c", note='a "b"')
    broker.send("made-left", [Record(b"1", whole), Record(b"2", document(fk="nobody"))])
    broker.send("made-right", [Record(b"c", b"text")])
    left = Table.from_kafka(spark, "made-left", broker.bootstrap, key="string", value=Json("fk string", text="whole"))
    right = Table.from_kafka(spark, "made-right", broker.bootstrap, key="string", value="string")
    joined = fk_join(left, right, "fk", name="made")
    how = {"concat(left.whole, '+', right.value)": True, "upper(right.value)": False}
    for at, (value, by_workers) in enumerate(how.items()):
        writing: Any = {"checkpoint": tmp_path / str(at), "value": value, "trigger": {"availableNow": True}}
        query = joined.to_kafka("made-out", broker.bootstrap, **writing)
        query.awaitTermination()
        query.explain()
        assert ("MakeRecords" in capsys.readouterr().out) is by_workers, value
    made = [record.value() for record in broker.read("made-out") if record.key() == b"1"]
    assert made == [whole + b"+text", b"TEXT"]


def test_headers_are_carried_and_keys_of_several_columns_written(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("headed-left", "headed-right", "headed-out", partitions=2)
    key = document(shop=1, item="a")
    broker.send("headed-left", [Record(key, document(fk="c"), [("trace", b"\x01\x02"), ("trace", b"again")])])
    broker.send("headed-right", [Record(b"c", b"text")])
    left = Table.from_kafka(
        spark, "headed-left", broker.bootstrap, key=Json("shop int, item string"), value=Json("fk string"), headers=True
    )
    right = Table.from_kafka(spark, "headed-right", broker.bootstrap, key="string", value="string")
    joined = fk_join(left, right, "fk", name="headed")
    with running(
        joined, "headed-out", broker, tmp_path, headers="left.headers", value="concat(left.fk, '+', right.value)"
    ) as job:
        job.drain()
        broker.send("headed-right", [Record(b"c", None)])
        job.drain()
    first, last = broker.read("headed-out")
    assert (json.loads(first.key()), first.value()) == ({"shop": 1, "item": "a"}, b"c+text")
    assert first.headers() == [("trace", b"\x01\x02"), ("trace", b"again")]
    assert (last.key(), last.value()) == (first.key(), None)
