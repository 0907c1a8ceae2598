"""Topologies of topics, among them staged ones, whose plans ``test_plans`` pins; see ``tests.plans``.

``python -m integration.plans [NAME…]`` writes the golden texts anew.
"""

from __future__ import annotations

import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import Table, fk_join, session
from fkjoin import aggregates as agg
from fkjoin.kafka import Debezium, Json
from fkjoin.rules import AGGREGATE_READS_ANSWERS, JOIN_READS_ANSWERS, WORKERS_EVALUATE_STEPS
from integration.broker import Broker
from tests.conftest import small
from tests.plans.topologies import Sources, Topologies
from tests.plans.write import Plans, write

GOLDEN = Path(__file__).parent / "golden_plans"
ORDERS, CUSTOMERS = "plans-orders", "plans-customers"
PARTITIONS = {ORDERS: 3, CUSTOMERS: 2}
TOPOLOGIES = Topologies()
topology = TOPOLOGIES.add


class Topics(Sources):
    """Tables of topics, which may be empty."""

    def __init__(self, spark: SparkSession, folder: Path, read: dict[str, Table], broker: Broker) -> None:
        super().__init__(spark, folder, read)
        self.broker = broker

    def topic(self, topic: str, value: Any, key: Any = "string", **more: Any) -> Table:
        return Table.from_kafka(self.spark, topic, self.broker.bootstrap, key=key, value=value, **more)

    @cached_property
    def bought(self) -> Table:
        return self.topic(ORDERS, Json("customer string, amount double, region string"))

    @cached_property
    def buyers(self) -> Table:
        return self.topic(CUSTOMERS, Json("name string, region string"))

    @cached_property
    def staged(self) -> Table:
        return fk_join(self.bought, self.buyers, "customer", "left", name="staged", deployment="staged", application="shop")


@topology(WORKERS_EVALUATE_STEPS)
def view_of_a_topic(of: Topics) -> Table:
    return of.bought.filter("amount > 1").map_values(["customer", "amount"]).materialize("kept")


@topology()
def join_of_topics(of: Topics) -> Table:
    return fk_join(of.bought, of.buyers, "customer", joiner=["left.amount", "right.name"])


@topology()
def join_of_topics_with_their_own_versions(of: Topics) -> Table:
    value = Json("customer string, lsn bigint, gone boolean, at bigint")
    orders = of.topic(ORDERS, value, version="lsn", deleted="gone", timestamp="at", name="versioned", on_error="skip")
    buyers = of.topic(CUSTOMERS, Json("name string, at bigint"), timestamp="at", headers=True, name="with-headers")
    return fk_join(orders, buyers, "customer", name="joined")


@topology()
def join_of_relayed_topics(of: Topics) -> Table:
    relayed = of.topic(ORDERS, Json("customer string"), roots=2, name="relayed", on_error="fail")
    return fk_join(relayed, of.topic(CUSTOMERS, Json("name string"), on_new_topic="start-over"), "customer", name="joined")


@topology(WORKERS_EVALUATE_STEPS)
def events_that_lack_values(of: Topics) -> Table:
    people = of.topic(
        ORDERS, Debezium("id int, bio string, town string", unavailable="keep"), Debezium("id int"), name="people"
    )
    return fk_join(people.filter("bio is not null"), of.buyers, "town", "left", name="joined")


@topology(WORKERS_EVALUATE_STEPS)
def aggregate_of_a_topic(of: Topics) -> Table:
    return of.bought.group_by("customer", name="sums").agg(orders=agg.count(), total=agg.sum("amount"))


@topology()
def staged_join(of: Topics) -> Table:
    return of.staged


@topology()
def staged_join_of_views_with_a_joiner(of: Topics) -> Table:
    large = of.bought.filter("amount > 1", name="large")
    about: dict[str, Any] = {"deployment": "staged", "application": "shop", "wire": "wrapper", "emit": "on-update"}
    return fk_join(
        large, of.buyers, "upper(customer)", joiner=["left.amount * 2 as twice", "right.name"], name="staged", **about
    )


@topology(AGGREGATE_READS_ANSWERS)
def staged_aggregate_of_a_staged_join(of: Topics) -> Table:
    grouped = of.staged.group_by("right.region", name="sums", deployment="staged", application="shop", upgrade_from="3.4")
    return grouped.agg(total=agg.sum("left.amount"))


@topology()
def staged_aggregate(of: Topics) -> Table:
    return of.bought.group_by("customer", name="counted", deployment="staged", application="shop").count()


@topology(JOIN_READS_ANSWERS)
def children_of_a_staged_join(of: Topics) -> Table:
    return of.buyers.with_children(of.staged, "left.customer", column="orders", name="book")


@topology()
def view_of_a_staged_join(of: Topics) -> Table:
    return of.staged.filter("left.amount > 1", name="seen")


def plans(spark: SparkSession, folder: Path, broker: Broker) -> Plans:
    """The plans of topologies of topics on a broker."""
    for topic, partitions in PARTITIONS.items():
        broker.create(topic, partitions=partitions)
    hidden = {broker.bootstrap: "BROKER"}
    return Plans(spark, folder, lambda read: Topics(spark, folder, read, broker), hidden)


def main(*names: str) -> None:
    from integration.conftest import prepared

    root = Path(__file__).parent.parent / "docker"
    broker = Broker(prepared(str(root / "kafka" / "build.sh")))
    jars = sorted(Path(prepared(sys.executable, str(root / "jars.py"), "connector")).glob("*.jar"))
    broker.start()
    try:
        spark = session(
            "fkjoin plans", master="local[2]", settings={"spark.ui.enabled": "false", "spark.jars": ",".join(map(str, jars))}
        )
        with tempfile.TemporaryDirectory() as folder:
            small(spark, Path(folder))
            write(plans(spark, Path(folder), broker), TOPOLOGIES, GOLDEN, *names)
    finally:
        broker.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
