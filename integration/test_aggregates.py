"""Staged aggregates of topics: republished records, lost progress, dead letters; and driven in memory."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.kafka import Json
from fkjoin.testing import CRASH, DUPLICATE, REORDER, Driver

from .broker import Broker, Record
from .jobs import document, from_topic, letters, running

pytestmark = pytest.mark.usefixtures("small_tables")


class Shop:
    """Topics of orders and customers, and their rows."""

    def __init__(self, broker: Broker, spark: SparkSession, name: str) -> None:
        self.broker, self.spark, self.name, self.rng = broker, spark, name, random.Random(904)
        self.out = f"{name}-out"
        broker.create(f"{name}-orders", f"{name}-customers", self.out)
        self.rows: dict[str, dict[str, Any]] = {"orders": {}, "customers": {}}

    def table(self, name: str, columns: str, **more: Any) -> Table:
        return from_topic(self.spark, self.broker, f"{self.name}-{name}", Json(columns), name=name, **more)

    def orders(self) -> Table:
        return self.table("orders", "customer string, amount double").filter("amount >= 0")

    def by_region(self, deployment: Any, **customers: Any) -> Table:
        about: Any = {"deployment": deployment, "application": self.name, "name": "joined"}
        joined = fk_join(self.orders(), self.table("customers", "region string", **customers), "customer", **about)
        grouped = joined.group_by("right.region", name="regions", deployment="staged", application=self.name)
        return grouped.agg(orders=agg.count(), revenue=agg.sum("left.amount"), largest=agg.max("left.amount"))

    def again(self) -> dict[str, Any]:
        """Recompute ``by_region``."""
        groups = defaultdict(list)
        for order in self.rows["orders"].values():
            customer = self.rows["customers"].get(order["customer"])
            if order["amount"] >= 0 and customer is not None and customer["region"] is not None:
                groups[customer["region"]].append(order["amount"])
        return {
            region: {"orders": len(amounts), "revenue": pytest.approx(sum(amounts)), "largest": max(amounts)}
            for region, amounts in groups.items()
        }

    def change(self) -> tuple[str, str, dict[str, Any] | None]:
        """Change a row: the table, the key, and the row unless it is deleted."""
        if self.rng.random() < 0.7:
            name, key = "orders", f"o{self.rng.randrange(25)}"
            row = {"customer": f"c{self.rng.randrange(6)}", "amount": self.rng.choice([-1.0, 0.1, 0.2, 5.0])}
        else:
            name, key = "customers", f"c{self.rng.randrange(6)}"
            row = {"region": self.rng.choice(["north", "south", None])}
        self.rows[name].pop(key, None)
        if self.rng.random() < 0.2:
            return name, key, None
        self.rows[name][key] = row
        return name, key, row

    def send(self, *changes: tuple[str, str, dict[str, Any] | None]) -> None:
        for table in self.rows:
            records = [Record(key.encode(), row and document(**row)) for name, key, row in changes if name == table]
            self.broker.send(f"{self.name}-{table}", records)

    def written(self) -> dict[str, Any]:
        return {key.decode(): json.loads(value) for key, value in self.broker.table(self.out).items()}


def test_a_join_is_summed_up_from_topic_to_topic(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    """A row contributes to one group, however often it comes; a record that is not a change of KIP-904 is a dead letter.

    The fused aggregate is in tests/api/test_aggregates.py and integration/test_new_topics.py.
    """
    shop = Shop(broker, spark, "summed")
    topic = "summed-regions-repartition"
    with running(shop.by_region("fused"), shop.out, broker, tmp_path) as job:
        shop.send(*(shop.change() for _ in range(60)))
        job.drain()
        assert shop.written() == shop.again()
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
        shop.send(*(shop.change() for _ in range(20)))
        job.drain()
        assert shop.written() == shop.again()
        assert job.counters()["dead-letters"] == len(bad)
    reasons = sorted((letter.topic, letter.reason) for letter in letters(regions.dead_letters, tmp_path / "letters"))
    assert reasons == [
        (topic, "the value is empty: a change of KIP-904 ends with a flag"),
        (topic, "the value's last byte is not 0, 1 or 2 (KIP-904)"),
        (topic, "what the row contributes is not of the aggregate's columns"),
    ]


def test_staged_operators_are_driven_over_topics_in_memory(broker: Broker, spark: SparkSession) -> None:
    """The table is a plain recomputation whatever happens to a batch, also with versions that are roots; no topic is made."""
    shop = Shop(broker, spark, "driven")
    before = broker.topics()
    driver = Driver(shop.by_region("staged", roots=2))
    assert driver.inputs == ["orders", "customers"]
    for what in (None, CRASH, DUPLICATE, REORDER):
        for name, key, row in (shop.change() for _ in range(20)):
            if row is None:
                driver.input(name).delete(key)
            else:
                driver.input(name).change(key, row)
        driver.run(what)
        assert driver.table == shop.again(), what
    assert driver.count["stale-dropped"] > 0
    assert driver.dead_letters == []
    driver.input("orders").unusable("{", "no JSON")
    driver.run()
    assert [letter["reason"].partition(":")[0] for letter in driver.dead_letters] == ["no JSON"]
    assert len(list(driver.store("regions").all())) == len(driver.table)
    assert broker.topics() == before
