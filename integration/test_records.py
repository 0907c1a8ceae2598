"""Records through the broker: tombstones, headers, records that cannot be used.

Keys of several columns: tests/spark/test_topic_records.py, test_topic_values.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import fk_join
from fkjoin.kafka import Json

from .broker import Broker, Record
from .jobs import document, from_topic, letters, running

pytestmark = pytest.mark.usefixtures("small_tables")


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
