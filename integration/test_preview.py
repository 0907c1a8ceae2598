"""Previews of tables of topics: they read a bounded number of records, and make no topic for a staged table."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from fkjoin import fk_join
from fkjoin.kafka import Json
from fkjoin.sinks import preview

from .broker import Broker, Record
from .jobs import document, from_topic

pytestmark = pytest.mark.usefixtures("small_tables")


def test_a_preview_reads_the_beginning_of_topics_and_makes_none(
    spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("previewed-orders", "previewed-customers", partitions=1)
    broker.send("previewed-customers", [Record(f"c{at}".encode(), document(name=f"name {at}")) for at in range(3)])
    orders = [Record(f"o{at:03}".encode(), document(customer=f"c{at % 3}", amount=at)) for at in range(100)]
    broker.send("previewed-orders", [*orders, Record(b"o000", None)])
    before = broker.topics()
    value, pace = Json("customer string, amount int"), {"maxOffsetsPerTrigger": 1, "minOffsetsPerTrigger": 1}
    source = from_topic(spark, broker, "previewed-orders", value, name="orders", options=pace)
    customers = from_topic(spark, broker, "previewed-customers", Json("name string"))
    joined = fk_join(source, customers, "customer", joiner=["left.amount", "right.name"], deployment="staged", name="seen")
    sums = source.group_by("customer", name="sums", deployment="staged", emit="periodic 1 hour").sum("amount")
    assert {tuple(row) for row in sums.preview().collect()} == {(f"c{at}", sum(range(at, 100, 3))) for at in range(3)}
    monkeypatch.setattr(preview, "_OF_TOPICS", {"maxOffsetsPerTrigger": 10})
    some = joined.preview(15).collect()
    assert len(some) == 15
    assert {row["amount"] for row in some} <= set(range(20))
    assert all(row["name"] == f"name {row['amount'] % 3}" for row in some)
    assert broker.topics() == before
