"""``fkjoin run`` as a process of its own on a real broker: stopped, killed, restarted."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fkjoin.cli.doctor import examine
from fkjoin.cli.main import app
from fkjoin.errors import FkJoinError
from fkjoin.kafka import admin
from integration.faults.cluster import WORKER_POINTS
from integration.machine import Process
from tests.support.replay.traces import TraceChange

from .broker import Broker, Record
from .faults.cluster import compiled
from .jobs import batch_join, job_file, joined_rows, send_changes

TABLES = {"left": "fk string, value string", "right": "value string"}
JOB = """
spark."spark.master" = "local[2,4]"
spark."spark.driver.extraJavaOptions" = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"
dead_letters.topic = "{name}-dead"
[joins.joined]
left = "left"
right = "right"
extractor = "fk"
how = "left"
deployment = "{deployment}"
[sinks.out]
table = "joined"
topic = "{name}-out"
"""


FAULTS = """
spark."spark.driver.extraClassPath" = "{folder}/classes"
spark."spark.sql.streaming.checkpointFileManagerClass" = "fkjoin.faults.CrashingFileManager"
"""


SNAPSHOTS = """
tables.left.snapshot = "{folder}/left"
tables.right.snapshot = "{folder}/right"
"""


STRIKES = [
    *product(WORKER_POINTS, ("before", "after"), ["worker"]),
    *product(("offset log", "state commit", "offset commit"), ("before", "after"), ["jvm"]),
]


def running(job: Path) -> Process:
    """A process that runs the job."""
    compiled(job.parent / "classes")
    command = [sys.executable, "-m", "integration.faults.job", "run", str(job)]
    return Process(job.parent, [*command, "--spark-log", str(job.parent / "spark.log")])


@pytest.mark.nightly
@pytest.mark.parametrize("deployment", ["fused", "staged"])
def test_a_job_killed_between_and_within_batches_ends_equal_to_the_batch_join(
    broker: Broker, connector: str, tmp_path: Path, deployment: str, refused_here: Callable[..., Any]
) -> None:
    """Workers and the JVM are killed at points of the stages' work and of Spark's commits; tables begin with snapshots.

    A second start is refused.  Several sinks: integration/test_sink_faults.py.
    """
    name = f"killed-{deployment}"
    broker.create(*(f"{name}-{end}" for end in ("left", "right", "out", "dead")), partitions=2)
    more = SNAPSHOTS + f'spark."spark.jars" = "{connector}"' + JOB.replace("{deployment}", deployment)
    again = job_file(name, tmp_path, broker, TABLES, more).rename(tmp_path / "again.toml")
    job = job_file(name, tmp_path, broker, TABLES, FAULTS + more)
    rng = random.Random(5)
    events: list[TraceChange] = []
    sends, lefts = 0, 2000

    def send(size: int, unsent: int = 0) -> None:
        """Send changes on both sides but for the first ``unsent`` ones, and one record that cannot be used."""
        nonlocal sends
        sends += 1
        new = []
        for _ in range(size):
            left, deleted = rng.random() < 0.8, rng.random() < 0.1
            key = f"l{rng.randrange(lefts)}" if left else f"r{rng.randrange(lefts // 6)}"
            foreign_key = f"r{rng.randrange(lefts // 6 + lefts // 60)}" if left and not deleted else None
            new.append(TraceChange(0, left, key, foreign_key, None if deleted else f"v{rng.randrange(1 << 30)}", 0))
        send_changes(broker, name, new[unsent:])
        broker.send(f"{name}-left", [Record(b"bad", b"{")])
        events.extend(new)

    def equal() -> bool:
        return joined_rows(broker, f"{name}-out") == batch_join(events, "left")

    send(3 * lefts // 2, unsent=lefts // 4)
    take_snapshots(tmp_path, events[: lefts // 2])
    process = running(job)
    process.wait_for("the first table", equal)
    process.kill()  # between batches
    send(3 * lefts // 2)
    process = running(job)
    process.wait_for("the second table", equal)
    assert f"checkpoint: {tmp_path}/checkpoint is in use by process" in refused_here("run", again).err
    for point, when, victim in STRIKES:
        what = f"{victim} killed {when} {point}"
        process.arm(f"{point}|{when}|{victim}")
        send(3 * lefts // 4)
        process.wait_for(what, process.struck, pause_s=0.01)
        if victim == "jvm":
            process.wait_for_its_end()
            process = running(job)
        process.wait_for(f"{what}: the table", equal)
    dead = f"{name}-dead"
    process.wait_for("the dead letters", lambda: len({dead_place(m) for m in broker.read(dead)}) == sends)
    assert process.terminate() == 0
    assert {(m.key(), m.value()) for m in broker.read(dead)} == {(b"bad", b"{")}
    lines = [json.loads(line) for line in (tmp_path / "job.log").read_text().splitlines()]
    assert {"sink-out", "dead-letters-joined"} <= {line["query"] for line in lines}


def take_snapshots(folder: Path, events: list[TraceChange]) -> None:
    """Write both tables, as they are after the changes, to folders."""
    for side, columns in (("left", ["key", "fk", "value"]), ("right", ["key", "value"])):
        last = {event.key: event for event in events if event.left == (side == "left")}
        live = [event for event in last.values() if event.value is not None]
        (folder / side).mkdir()
        table = pa.table({"key": [event.key for event in live], "value": [event.value for event in live]})
        table = table.append_column("fk", [[event.foreign_key for event in live]])
        pq.write_table(table.select(columns), folder / side / "1.parquet")


def dead_place(message: Any) -> tuple[bytes, bytes]:
    """The place of a dead letter's record, which is the same if a crash delivers the letter again."""
    headers = dict(message.headers())
    assert headers["fkjoin.reason"].startswith(b"value: not JSON that fits")
    return headers["fkjoin.partition"], headers["fkjoin.offset"]


def test_offsets_that_are_gone_stop_the_job(broker: Broker, tmp_path: Path, fkjoin_here: Callable[..., str]) -> None:
    broker.create("gone-left", partitions=1)
    sink = 'trigger = "available-now"\nsinks.out = {table = "left", path = "{folder}/out"}'
    job = job_file("gone", tmp_path, broker, {"left": "fk string"}, sink)
    broker.send("gone-left", [Record(b"k", b'{"fk": "a"}')] * 3)
    fkjoin_here("run", job)
    broker.send("gone-left", [Record(b"k", b'{"fk": "b"}')] * 3)
    broker.admin.delete_records([TopicPartition("gone-left", 0, 5)])[TopicPartition("gone-left", 0)].result(30)
    says = "query sink-out failed: the topic no longer has offsets that were still to be read"
    with pytest.raises(FkJoinError, match=says):
        fkjoin_here("run", job)


EVENTS = """
trigger = "available-now"
dead_letters.topic = "seen-dead"
[events.clicks]
topic = "seen-clicks"
select = ["cast(key as string) as number", "cast(value as string) as page"]
[enrichments.seen]
table = "customers"
events = "clicks"
on = "concat('c', cast(number as int))"
how = "left"
[sinks.out]
table = "seen"
topic = "seen-out"
key = "number"
"""


def test_events_are_sent_once_with_rows(broker: Broker, tmp_path: Path, fkjoin_here: Callable[..., str]) -> None:
    broker.create("seen-customers", "seen-clicks", "seen-out", "seen-dead", partitions=2)
    job = job_file("seen", tmp_path, broker, {"customers": "name string"}, EVENTS)
    sent: list[tuple[str, str, str | None]] = []
    for name, numbers, expected in (
        ("Ada", ("1", "2", "1", "none"), [("1", "Ada"), ("1", "Ada"), ("2", None)]),
        (None, ("1",), [("1", None)]),
    ):
        row = None if name is None else json.dumps({"name": name}).encode()
        broker.send("seen-customers", [Record(b"c1", row)])
        broker.send("seen-clicks", [Record(number.encode(), b"p") for number in numbers])
        fkjoin_here("run", job)
        sent += [(number, "p", given) for number, given in expected]
        found = [(m.key().decode(), json.loads(m.value())) for m in broker.read("seen-out")]
        assert all(key == row["number"] for key, row in found)
        assert sorted(map(str, sent)) == sorted(str((key, row["page"], row.get("name"))) for key, row in found)
    (dead,) = broker.read("seen-dead")
    headers = dict(dead.headers())
    assert (json.loads(dead.value()), headers["fkjoin.table"]) == ({"number": "none", "page": "p"}, b"clicks")
    assert headers["fkjoin.reason"].startswith(b"enrich: concat('c', cast(number as int)): ")
    broker.anew("seen-clicks", partitions=2)
    broker.send("seen-clicks", [Record(b"1", b"p")])
    with pytest.raises(FkJoinError, match="topic seen-clicks was deleted and created again.* a new checkpoint"):
        fkjoin_here("run", job)


def test_the_doctor_on_a_broker(broker: Broker, connector: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor runs in the tests' session; tests/sessions/test_class_archive.py has it in one of its own."""
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    run = CliRunner().invoke(app, ["doctor", "--jars", connector, "--bootstrap-servers", broker.bootstrap])
    assert run.exit_code == 0, run.output
    said = [line.split(":")[0] for line in run.stdout.splitlines()]
    assert said == [
        f"ok  {what}"
        for what in ("Java", "PySpark", "pandas", "Spark session", "Kafka connector", "Python on the workers", "brokers")
    ]
    monkeypatch.setattr(admin, "_TIMEOUT_S", 1)
    brokers = examine("local[2]", "localhost:1", {})[-1]
    assert (brokers.subject, brokers.fine) == ("brokers", False)
    assert brokers.state.startswith("bootstrap_servers: no broker answers at localhost:1")
