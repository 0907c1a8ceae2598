"""The example of a job from Debezium's events to PostgreSQL and a topic, with another trigger and the tests' connector."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import ROOT

from .broker import Broker, Record
from .jobs import document
from .postgres import select

ORDERS, CUSTOMERS, JOINED = "shop.public.orders", "shop.public.customers", "orders-with-customers"


def event(op: str, before: dict[str, Any] | None = None, **after: Any) -> Record:
    key = (before or after)["id"]
    return Record(document(id=key), document(op=op, before=before, after=after or None, source={"lsn": 1}))


def test_the_debezium_job(
    broker: Broker, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fkjoin_here: Callable[..., str]
) -> None:
    text = (ROOT / "examples" / "debezium" / "job.toml").read_text()
    job = tmp_path / "job.toml"
    lines = [line for line in text.splitlines() if not line.startswith("kafka = true")]
    job.write_text("\n".join(lines).replace('"2 seconds"', '"available-now"'))
    for name, value in {"CHECKPOINT": tmp_path / "checkpoint", "BROKER": broker.bootstrap, "TARGET": dsn}.items():
        monkeypatch.setenv(name, str(value))
    broker.create(ORDERS, CUSTOMERS, JOINED, partitions=1)
    broker.send(CUSTOMERS, [event("r", id=7, name="Ada")])
    broker.send(ORDERS, [event("c", id=n, customer_id=7, amount=10.0 * n) for n in (1, 2)])
    broker.send(ORDERS, [Record(b"not json", b"{}")])

    fkjoin_here("run", job)
    assert select(dsn, "select * from shop.orders_with_customers order by id") == [(1, 7, 10.0, "Ada"), (2, 7, 20.0, "Ada")]
    letters = [json.loads(line) for path in (tmp_path / "dead-letters").rglob("*.json") for line in path.open()]
    assert [letter["topic"] for letter in letters] == [ORDERS]

    broker.send(CUSTOMERS, [event("u", {"id": 7, "name": "Ada"}, id=7, name="Ada L.")])
    broker.send(ORDERS, [event("d", {"id": 2, "customer_id": 7, "amount": 20.0})])
    fkjoin_here("run", job)
    assert select(dsn, "select * from shop.orders_with_customers order by id") == [(1, 7, 10.0, "Ada L.")]
    found = {json.loads(key)["id"]: json.loads(value) for key, value in broker.table(JOINED).items()}
    assert found == {1: {"customer_id": 7, "amount": 10.0, "name": "Ada L."}}
