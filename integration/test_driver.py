"""``fkjoin.testing.Driver`` of tables of topics: staged operators, and versions that are roots; no topic is made."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.kafka import Json
from fkjoin.testing import CRASH, DUPLICATE, REORDER, Driver
from tests.support.sessions import small

from .broker import Broker


def test_staged_operators_are_driven_over_topics_in_memory(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """The table is a plain recomputation whatever happens to a batch, and its dead letters are those of the batches."""
    small(spark, tmp_path)
    broker.create("driven-orders", "driven-customers", partitions=2)
    before = set(broker.admin.list_topics(timeout=30).topics)
    value, about = Json("customer string, amount int"), {"bootstrap_servers": broker.bootstrap, "key": "string"}
    orders = Table.from_kafka(spark, "driven-orders", value=value, name="orders", **about)
    customers = Table.from_kafka(spark, "driven-customers", value=Json("name string"), name="customers", roots=2, **about)
    joiner = ["right.name", "left.amount", "60 div left.amount as part"]
    joined = fk_join(orders, customers, "customer", joiner=joiner, deployment="staged", application="driven", name="named")
    grouped = joined.group_by("name", name="sums", deployment="staged", application="driven")
    driver = Driver(grouped.agg(n=agg.count(), total=agg.sum("amount")))
    assert driver.inputs == ["orders", "customers"]
    rng, rows = random.Random(904), dict[str, dict[str, Any]](orders={}, customers={})
    for step in range(12):
        for _ in range(rng.randrange(1, 7)):
            name, key = rng.choice(["orders", "orders", "customers"]), rng.randrange(4)
            order = {"customer": f"c{rng.randrange(3)}", "amount": rng.randrange(1, 9)}
            row = order if name == "orders" else {"name": f"n{key % 2}"}
            rows[name].pop(key, None)
            if rng.random() < 0.2:
                driver.input(name).delete(f"{name[0]}{key}")
            else:
                driver.input(name).change(f"{name[0]}{key}", row)
                rows[name][key] = row
        driver.run((None, CRASH, DUPLICATE, REORDER)[step % 4])
        names = {f"c{key}": row["name"] for key, row in rows["customers"].items()}
        sums = defaultdict[str, list[int]](list)
        for row in rows["orders"].values():
            if row["customer"] in names:
                sums[names[row["customer"]]].append(row["amount"])
        assert driver.table == {name: {"n": len(some), "total": sum(some)} for name, some in sums.items()}, step
    assert driver.count["stale-dropped"] > 0
    assert driver.dead_letters == []
    driver.input("customers").change("c0", {"name": "n0"})
    driver.input("orders").change("o9", {"customer": "c0", "amount": 0})
    driver.input("orders").unusable("{", "no JSON")
    driver.run()
    assert [letter["reason"].partition(":")[0] for letter in driver.dead_letters] == ["no JSON", "joiner"]
    assert {row["name"] for row in driver.store("sums").all()} == set(driver.table)
    assert set(broker.admin.list_topics(timeout=30).topics) == before
