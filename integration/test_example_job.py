"""Documents on a broker: the job from Debezium's events to PostgreSQL, programs of docs/first-job.md, a notebook.

A notebook of files: tests/api/test_examples.py.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType
from psycopg.conninfo import make_conninfo

from tests.support import notebooks
from tests.support.addresses import CANARY
from tests.support.documents import blocks
from tests.support.places import ROOT
from tests.support.sampling import EVERY
from tests.support.sessions import STAGE_PARTS

from .broker import Broker, Record
from .jobs import document
from .postgres import select

ADDRESS = "localhost:9092"
"""The broker of docs/first-job.md."""

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
    parts = f'"spark.sql.shuffle.partitions" = {STAGE_PARTS}\n"spark.fkjoin.buckets" = {STAGE_PARTS}'
    text = "\n".join(lines).replace('"spark.sql.shuffle.partitions" = 2', parts)
    job.write_text(text.replace('"2 seconds"', '"available-now"'))
    address = make_conninfo(dsn, password=CANARY)  # the server lets each client in
    for name, value in {"CHECKPOINT": tmp_path / "checkpoint", "BROKER": broker.bootstrap, "TARGET": address}.items():
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
    shown = fkjoin_here("run", job)
    assert select(dsn, "select * from shop.orders_with_customers order by id") == [(1, 7, 10.0, "Ada L.")]
    found = {json.loads(key)["id"]: json.loads(value) for key, value in broker.table(JOINED).items()}
    assert found == {1: {"customer_id": 7, "amount": 10.0, "name": "Ada L."}}
    assert CANARY not in shown
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"fkjoin.json", "spark.log"} <= {file.name for file in files}
    assert [file for file in files if CANARY.encode() in file.read_bytes()] == [], "nor is the password kept"


def test_the_programs_make_compacted_topics_and_write_their_records(broker: Broker, tmp_path: Path) -> None:
    found = list(blocks(ROOT / "docs" / "first-job.md"))
    topics, write = (block.text for block in found if block.language == "python")
    for name, program in (("topics.py", topics), ("write.py", write)):
        assert program.count(ADDRESS) == 1
        (tmp_path / name).write_text(program.replace(ADDRESS, broker.bootstrap))

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, ended.stderr

    assert run("write.py", "orders", "o1", "{}") == (1, "topic orders is not there: run topics.py first\n")
    assert "orders" not in broker.topics()
    (commands,) = (block.text for block in found if block.text.startswith("python topics.py"))
    for command in commands.splitlines():
        assert run(*shlex.split(command)[1:]) == (0, ""), command
    made = ["orders", "customers"]
    asked = broker.admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in made])
    policies = [settings.result(30)["cleanup.policy"].value for settings in asked.values()]
    assert policies == ["compact", "compact"]
    lines = re.findall(r"(\w+) (\w+) '(.*)'$", commands, re.MULTILINE)
    written = {(topic, key): json.loads(value) for topic, key, value in lines}

    def there() -> dict[tuple[str, str], object]:
        return {(name, key.decode()): json.loads(value) for name in made for key, value in broker.table(name).items()}

    assert there() == written
    assert run("write.py", "orders", "o3") == (0, "")
    assert there() == {place: record for place, record in written.items() if place != ("orders", "o3")}
    broker.delete(*made)


@pytest.mark.faults
@pytest.mark.skipif(not EVERY, reason="a notebook starts a JVM: make faults")
def test_from_debezium_to_delta(broker: Broker, connector: str, tmp_path: Path) -> None:
    expected = notebooks.shown(notebooks.kept("debezium_to_delta"))
    assert len(expected) > 2
    book = notebooks.executed("debezium_to_delta", tmp_path, {"kafka=True": f'jars="{connector}"'}, BROKER=broker.bootstrap)
    assert notebooks.shown(book) == expected
