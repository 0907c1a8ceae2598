"""Staged aggregates of topics: republished records, lost progress, dead letters; and driven in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.kafka import Json
from fkjoin.testing import CRASH, DUPLICATE, REORDER, Driver
from tests.support.driven import feed
from tests.support.orders import History

from .broker import Broker, Record
from .jobs import document, from_topic, letters, running

pytestmark = pytest.mark.usefixtures("least_tables")


class Shop:
    """Topics of orders and customers, with changes of a history, whose files are not read."""

    def __init__(self, broker: Broker, spark: SparkSession, name: str, folder: Path) -> None:
        self.broker, self.spark, self.name, self.history = broker, spark, name, History(folder)
        self.out = f"{name}-out"
        broker.create(f"{name}-orders", f"{name}-customers", self.out)

    def table(self, name: str, columns: str, **more: Any) -> Table:
        return from_topic(self.spark, self.broker, f"{self.name}-{name}", Json(columns), name=name, **more)

    def by_region(self, deployment: Any, **more: Any) -> Table:
        orders = self.table("orders", "order_id string, customer_id string, amount double, items int")
        customers = self.table("customers", "customer_id string, region string", **more)
        placed = customers.filter("region is not null")
        about: Any = {"deployment": deployment, "application": self.name, "name": "joined"}
        joined = fk_join(orders, placed, "customer_id", **about)
        grouped = joined.group_by("right.region", name="regions", deployment="staged", application=self.name)
        return grouped.agg(orders=agg.count(), revenue=agg.sum("left.amount"), largest=agg.max("left.items"))

    def send(self, number: int) -> None:
        changes = self.history.write(number)
        for table in ("orders", "customers"):
            records = [Record(key.encode(), row and document(**row)) for name, key, row in changes if name == table]
            self.broker.send(f"{self.name}-{table}", records)

    def written(self) -> dict[str, Any]:
        return {key.decode(): json.loads(value) for key, value in self.broker.table(self.out).items()}

    def require(self, table: dict[str, Any]) -> None:
        """Assert that the table is a plain recomputation, which rounds sums."""
        rows = {}
        for region, row in table.items():
            revenue = row.get("revenue")
            rows[region,] = (row["orders"], revenue and round(revenue, 6), row["largest"])
        assert rows == self.history.by_region()


def test_a_join_is_summed_up_from_topic_to_topic(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    """A row contributes to one group, however often it comes; a record that is not a change of KIP-904 is a dead letter.

    The fused aggregate is in tests/api/test_aggregates.py and integration/test_new_topics.py.
    """
    shop = Shop(broker, spark, "summed", tmp_path)
    topic = "summed-regions-repartition"
    with running(shop.by_region("fused"), shop.out, broker, tmp_path) as job:
        shop.send(60)
        job.drain()
        shop.require(shop.written())
    # The first stage's memory of what it has read is lost: everything comes again, to a stage that was stopped and goes on.
    regions = shop.by_region("fused")
    query = regions.stages[0].start(tmp_path / "again")
    query.processAllAvailable()
    query.stop()
    before = len(broker.read(shop.out))
    with running(regions, shop.out, broker, tmp_path) as job:
        job.drain()
        assert job.counters()["stale-dropped"] > 0, "nothing came twice: the test tests nothing"
        assert len(broker.read(shop.out)) == before
        good = broker.read(topic)[0]
        bad = [Record(b"c1", b"nonsense"), Record(b"c1", None), Record(b"c1", b"xx\1", good.headers())]
        broker.send(topic, bad)
        shop.send(20)
        job.drain()
        shop.require(shop.written())
        assert job.counters()["dead-letters"] == len(bad)
    reasons = sorted((letter.topic, letter.reason) for letter in letters(regions.dead_letters, tmp_path / "letters"))
    assert reasons == [
        (topic, "the value is empty: a change of KIP-904 ends with a flag"),
        (topic, "the value's last byte is not 0, 1 or 2 (KIP-904)"),
        (topic, "what the row contributes is not of the aggregate's columns"),
    ]


def test_staged_operators_are_driven_over_topics_in_memory(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    """The table is a plain recomputation whatever happens to a batch, also with versions that are roots; no topic is made."""
    shop = Shop(broker, spark, "driven", tmp_path)
    before = broker.topics()
    driver = Driver(shop.by_region("staged", roots=2))
    assert driver.inputs == ["orders", "customers"]
    for what in (CRASH, DUPLICATE, REORDER):
        feed(driver, shop.history.write(20))
        driver.run(what)
        shop.require(driver.table)
    assert driver.count["stale-dropped"] > 0
    assert driver.dead_letters == []
    driver.input("orders").unusable("{", "no JSON")
    driver.run()
    assert [letter["reason"].partition(":")[0] for letter in driver.dead_letters] == ["no JSON"]
    assert len(list(driver.store("regions").all())) == len(driver.table)
    assert broker.topics() == before
