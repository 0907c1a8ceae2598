"""Aggregates from topic to topic, fused and staged: republished records, crashes, a rolling upgrade, dead letters."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError, fk_join
from fkjoin import aggregates as agg
from fkjoin.kafka import Json
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS
from tests.support.sampling import EVERY, sampled

from .broker import Broker, Record
from .jobs import Running, letters

SERIAL = iter(range(1000))


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(PARTITIONS, "2")
    spark.conf.set(BUCKETS, "2")
    spark.conf.set(INDEX_DIR, str(tmp_path / "index"))


class Shop:
    """Topics of orders and customers, what was sent to them, and the aggregates that it comes to."""

    def __init__(self, broker: Broker) -> None:
        serial = next(SERIAL)
        self.broker, self.rng = broker, random.Random(904)
        self.orders_topic, self.customers_topic, self.out = (f"agg-{name}-{serial}" for name in ("orders", "customers", "out"))
        broker.create(self.orders_topic, self.customers_topic, self.out)
        self.orders: dict[str, Any] = {}
        self.customers: dict[str, Any] = {}
        self._waiting: dict[str, list[Record]] = defaultdict(list)

    def tables(self, spark: SparkSession) -> tuple[Table, Table]:
        place = self.broker.bootstrap
        orders = Table.from_kafka(spark, self.orders_topic, place, key="string", value=Json("customer string, amount double"))
        customers = Table.from_kafka(spark, self.customers_topic, place, key="string", value=Json("region string"))
        return orders.filter("amount >= 0"), customers

    def send(self, changes: int) -> None:
        """Random changes of both tables."""
        for _ in range(changes):
            if self.rng.random() < 0.7:
                row: Any = {"customer": f"c{self.rng.randrange(6)}", "amount": self.rng.choice([-1.0, 0.1, 0.2, 5.0])}
                self.order(f"o{self.rng.randrange(25)}", None if self.rng.random() < 0.2 else row)
            else:
                key, region = f"c{self.rng.randrange(6)}", self.rng.choice(["north", "south", None])
                self.customers[key] = row = None if self.rng.random() < 0.15 else {"region": region}
                self._change(self.customers_topic, key, row)
        self.flush()

    def order(self, key: str, row: Any) -> None:
        """A change of an order, to be sent with the next ``flush``."""
        self.orders[key] = row
        self._change(self.orders_topic, key, row)

    def _change(self, topic: str, key: str, row: Any) -> None:
        self._waiting[topic].append(Record(key.encode(), None if row is None else json.dumps(row).encode()))

    def flush(self) -> None:
        for topic, records in self._waiting.items():
            self.broker.send(topic, records)
        self._waiting.clear()

    def by_region(self) -> dict[str, Any]:
        groups = defaultdict(list)
        for order in self.orders.values():
            customer = self.customers.get(order["customer"]) if order is not None and order["amount"] >= 0 else None
            if customer is not None and customer["region"] is not None:
                groups[customer["region"]].append(order["amount"])
        return {
            region: {"orders": len(amounts), "revenue": pytest.approx(sum(amounts)), "largest": max(amounts)}
            for region, amounts in groups.items()
        }

    def written(self) -> dict[str, Any]:
        return {key.decode(): json.loads(value) for key, value in self.broker.table(self.out).items()}


COLUMNS: Any = {"orders": agg.count(), "revenue": agg.sum("left.amount"), "largest": agg.max("left.amount")}


@contextmanager
def running(table: Table, shop: Shop, folder: Path) -> Iterator[Running]:
    queries = [stage.start(folder / stage.name) for stage in table.stages]
    try:
        queries.append(table.to_kafka(shop.out, shop.broker.bootstrap, checkpoint=folder / "aggregate"))
        yield Running(queries)
    finally:
        for query in queries:
            query.stop()


@pytest.mark.faults
@pytest.mark.parametrize("deployment", sampled(["fused", "staged"], ["staged"]))
def test_a_join_is_summed_up_from_topic_to_topic(broker: Broker, spark: SparkSession, tmp_path: Path, deployment: Any) -> None:
    """Fused and staged alike; what a row contributes is in one group, however often it comes.

    In the staged deployment, what is no change of KIP-904 goes to the dead letters.  Fused, in a sample, too: of files
    tests/api/test_aggregates.py, of topics integration/test_new_topics.py.
    """
    shop = Shop(broker)
    topic = f"{shop.out}-regions-repartition"

    def build() -> Table:
        joined = fk_join(*shop.tables(spark), "customer", name="joined")
        return joined.group_by("right.region", name="regions", deployment=deployment, application=shop.out).agg(**COLUMNS)

    with running(build(), shop, tmp_path) as job:
        for changes in sampled((60, 20), (60,)):
            shop.send(changes)
            job.drain()
            assert shop.written() == shop.by_region()
    if deployment == "fused":
        return
    # The first stage's memory of what it has read is lost: everything comes again, to a stage that was stopped and goes on.
    regions = build()
    query = regions.stages[0].start(tmp_path / "again")
    query.processAllAvailable()
    query.stop()
    before = len(broker.read(shop.out))
    with running(regions, shop, tmp_path) as job:
        job.drain()
        assert job.counters()["stale-dropped"] > 0, "nothing came twice: the test tests nothing"
        assert len(broker.read(shop.out)) == before
        good = broker.read(topic)[0]
        bad = [Record(b"c1", b"nonsense"), Record(b"c1", None), Record(b"c1", b"xx\1", good.headers())]
        broker.send(topic, bad)
        shop.send(20)
        job.drain()
        assert shop.written() == shop.by_region()
        assert job.counters()["dead-letters"] == len(bad)
    reasons = sorted((letter.topic, letter.reason) for letter in letters(regions.dead_letters, tmp_path / "letters"))
    assert [reason for _, reason in reasons] == [
        "the value is empty: a change of KIP-904 ends with a flag",
        "the value's last byte is not 0, 1 or 2 (KIP-904)",
        "what the row contributes is not of the aggregate's columns",
    ]
    assert {name for name, _ in reasons} == {topic}


@pytest.mark.faults
def test_a_rolling_upgrade_in_two_restarts_loses_nothing_and_shows_nothing_in_between(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    """Writers of the old form, then readers of both, then writers of the new one: one record a change, KIP-904's way."""
    shop = Shop(broker)
    topic = f"{shop.out}-totals-repartition"

    def totals(upgrade_from: int | None) -> Table:
        orders, _ = shop.tables(spark)
        grouped = orders.group_by(
            "customer", name="totals", deployment="staged", application=shop.out, upgrade_from=upgrade_from
        )
        return grouped.agg(n=agg.count(), amount=agg.sum("amount"))

    def update(step: int) -> None:
        """Each order changes its amount and stays with its customer."""
        for number in range(12):
            shop.order(f"o{number}", {"customer": f"c{number % 2}", "amount": float(step)})
        shop.flush()

    flags: list[set[int]] = []
    seen = 0
    for step, upgrade_from in enumerate([0, 0, None], 1):
        with running(totals(upgrade_from), shop, tmp_path) as job:
            for part in (2 * step - 1, 2 * step)[0 if EVERY or step == 1 else 1 :]:
                update(part)
                job.drain()
        records = broker.read(topic)
        flags.append({message.value()[-1] for message in records[seen:]})
        seen = len(records)
        assert shop.written() == {f"c{number}": {"n": 6, "amount": 12.0 * step} for number in (0, 1)}
    assert flags[:2] == [{0, 1}, {0, 1}]
    assert 2 in {message.value()[-1] for message in broker.read(topic)}
    for key in (b"c0", b"c1"):
        counts = [json.loads(message.value())["n"] for message in broker.read(shop.out) if message.key() == key]
        complete = counts.index(6)
        assert min(counts[:complete], default=1) > 0
        assert set(counts[complete:]) == {6}, "an order was missing from its group for a moment"
    for wrong in ("3.4", 1, False):  # a release of Kafka Streams, this release's own wire version, and no number
        with pytest.raises(TopologyError, match=rf"upgrade_from: {wrong!r} is not an older wire version of .* \(0\); leave it"):
            totals(wrong)  # type: ignore[arg-type]


def test_records_behind_a_filter_can_be_dead_letters(broker: Broker, spark: SparkSession) -> None:
    thrown = fk_join(*Shop(broker).tables(spark), lambda key, row: row.customer, name="thrown").dead_letters
    assert thrown is not None
    assert thrown.columns[-1] == "reason"
