"""The job of ``tests/golden/checkpoints/topics-1.tar.gz``: topics in two halves; a release made the checkpoint of the first.

``python -m integration.golden NAME`` writes ``tests/golden/checkpoints/NAME.tar.gz`` with the release at hand; see
``tests.support.golden``.
"""

from __future__ import annotations

import json
import random
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import Table, fk_join, session
from fkjoin.kafka import Json
from integration.broker import Broker, Record
from tests.support.golden import CHECKPOINTS

ORDERS, CUSTOMERS = "golden-orders", "golden-customers"
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.fkjoin.buckets": "2"}

Sent = tuple[str, str, dict[str, Any] | None]
"""A record: its topic, key and value."""


def log() -> list[Sent]:
    """All records, with updates, moves, nulls and tombstones."""
    rng = random.Random(904)
    sent: list[Sent] = []
    for number in range(300):
        who = f"c{rng.randrange(8)}"
        gone = rng.random() < 0.15
        if rng.random() < 0.3:
            sent.append((CUSTOMERS, who, None if gone else {"name": f"n{rng.randrange(4)}"}))
        else:
            customer = rng.choice((who, who, None))
            sent.append((ORDERS, f"o{rng.randrange(40)}", None if gone else {"customer": customer, "n": number}))
    return sent


def half(number: int) -> list[Sent]:
    """The first or second half (1 or 2) of the log."""
    whole = log()
    middle = len(whole) // 2
    return whole[:middle] if number == 1 else whole[middle:]


def send(broker: Broker, sent: list[Sent], partitions: int) -> None:
    """Write the records, each key to a partition that depends on how many there are."""
    for topic in (ORDERS, CUSTOMERS):
        records = [(key, value) for to, key, value in sent if to == topic]
        broker.send(
            topic,
            [
                Record(key.encode(), None if value is None else json.dumps(value).encode(), (), int(key[1:]) % partitions)
                for key, value in records
            ],
        )


def tables(spark: SparkSession, broker: Broker) -> dict[str, Table]:
    """A join and an aggregate of the topics."""
    orders = Table.from_kafka(spark, ORDERS, broker.bootstrap, key="string", value=Json("customer string, n int"))
    customers = Table.from_kafka(spark, CUSTOMERS, broker.bootstrap, key="string", value=Json("name string"))
    joiner = ["left.n as n", "right.name as name"]
    return {
        "join": fk_join(orders, customers, "customer", how="left", joiner=joiner, name="golden-join"),
        "count": orders.group_by("customer", name="golden-count").count(),
    }


def expected(sent: list[Sent]) -> dict[str, dict[Any, Any]]:
    """The tables after the records, by a batch computation."""
    final: dict[str, dict[str, dict[str, Any] | None]] = {ORDERS: {}, CUSTOMERS: {}}
    for topic, key, value in sent:
        final[topic][key] = value
    orders = {key: value for key, value in final[ORDERS].items() if value is not None}
    names = {key: value["name"] for key, value in final[CUSTOMERS].items() if value is not None}
    joined = {key: (value["n"], names.get(value["customer"])) for key, value in orders.items()}
    counted = Counter(value["customer"] for value in orders.values() if value["customer"] is not None)
    return {"join": joined, "count": dict(counted)}


def main(name: str) -> None:
    from integration.conftest import prepared

    root = Path(__file__).parent.parent / "docker"
    broker = Broker(prepared(str(root / "kafka" / "build.sh")))
    jars = sorted(Path(prepared(sys.executable, str(root / "jars.py"), "connector")).glob("*.jar"))
    broker.start()
    try:
        broker.create(ORDERS, CUSTOMERS, partitions=2)
        send(broker, half(1), 2)
        settings = {**SETTINGS, "spark.ui.enabled": "false", "spark.jars": ",".join(map(str, jars))}
        spark = session("fkjoin golden checkpoint", master="local[2]", settings=settings)
        with tempfile.TemporaryDirectory() as folder:
            for kind, table in tables(spark, broker).items():
                writer = table.changes.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint/{kind}")
                writer.trigger(availableNow=True).start().awaitTermination()
            with tarfile.open(CHECKPOINTS / f"{name}.tar.gz", "w:gz") as archive:
                archive.add(f"{folder}/checkpoint", "checkpoint")
    finally:
        broker.stop()


if __name__ == "__main__":
    main(sys.argv[1])
