"""Debezium's events, with times, decimals and values that PostgreSQL left out, through the broker."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin.kafka import Debezium
from tests.support.sessions import small

from .broker import Broker, Record
from .jobs import document, letters, running

TOAST = "__debezium_unavailable_value"
UNITS = {"at": "micros", "price": "base64"}


READERS = [pytest.param(False, id="workers"), pytest.param(True, id="expressions", marks=pytest.mark.nightly)]


@pytest.mark.parametrize("headers", READERS)
def test_the_table_keeps_what_an_event_lacks(spark: SparkSession, broker: Broker, tmp_path: Path, headers: bool) -> None:
    small(spark, tmp_path)
    left, right, out = (f"toast-{name}-{headers}".lower() for name in ("people", "towns", "out"))
    broker.create(left, right, out, partitions=1)

    def event(number: int, bio: str, price: Any, op: str = "u", before: Any = None) -> Record:
        after = {"id": number, "bio": bio, "town": 7, "at": 1690366967048491, "price": price}
        return Record(document(id=number), document(op=op, before=before, after=after))

    broker.send(left, [event(1, "long", "1234", "c"), event(2, TOAST, "1234"), event(3, "x", 5, "c")])
    broker.send(left, [event(1, TOAST, "AeI="), event(3, TOAST, "AeI=", before={"bio": "from before"})])
    broker.send(left, [event(4, "x", 5, "c"), Record(document(id=4), document(op="d")), Record(document(id=4), None)])
    town = document(schema={}, payload={"op": "c", "after": {"name": "Ulm"}})
    broker.send(right, [Record(document(schema={}, payload={"id": 7}), town)])
    schema = "id int, bio string, town int, at timestamp, price decimal(10,2)"
    key, value = Debezium("id int"), Debezium(schema, units=UNITS, unavailable="keep")
    people = Table.from_kafka(spark, left, broker.bootstrap, key=key, value=value, headers=headers)
    towns = Table.from_kafka(spark, right, broker.bootstrap, key=key, value=Debezium("name string"))
    columns = ["left.bio", "cast(left.at as string) as at", "left.price", "right.name"]
    joined = fk_join(people, towns, "town", joiner=columns, name=f"toast-{headers}".lower())
    with running(joined, out, broker, tmp_path / "run") as job:
        job.drain()
        broker.send(left, [event(1, TOAST, None)])
        job.drain()
        assert job.counters()["unavailable"] == 1
    found = {json.loads(key)["id"]: json.loads(value) for key, value in broker.table(out).items()}
    at = "2023-07-26 10:22:47.048491"
    assert found[1] == {"bio": "long", "at": at, "price": None, "name": "Ulm"}
    assert (found[3]["bio"], Decimal(str(found[3]["price"]))) == ("from before", Decimal("4.82"))
    assert sorted(found) == [1, 3]
    assert letters(joined.dead_letters, tmp_path / "dead") == []
