"""The topics between a job's stages, by the command line: drained or not, and purged."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import ConfigResource
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fkjoin.cli.main import app
from fkjoin.errors import FkJoinError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.kafka import purge

from .broker import Broker, Record
from .jobs import document, job_file

JOB = """
trigger = "available-now"
purge = "{purge}"
spark."spark.fkjoin.topic.partitions" = 1
spark."spark.fkjoin.topic.segment.bytes" = 1048576
dead_letters.path = "{folder}/letters"
[aggregates.counts]
of = "orders"
group_by = "customer"
columns = {n = "count()"}
deployment = "{deployment}"
[sinks.out]
table = "counts"
path = "{folder}/out"
"""


@pytest.fixture(autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    """Let no other test have the settings of these jobs' topics."""
    yield
    for name in ("partitions", "segment.bytes"):
        spark.conf.unset(f"spark.fkjoin.topic.{name}")


class Counting:
    """A job that counts orders by customer; its topic is made here, and runs start when the test says so."""

    topic = "drain-counts-repartition"

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self.spark, self.broker, self.folder, self.checkpoint = spark, broker, folder, folder / "checkpoint"
        broker.create("drain-orders", partitions=3)

    def write(self, deployment: str, purge: str = "never") -> None:
        text = JOB.replace("{deployment}", deployment).replace("{purge}", purge)
        self.file = job_file("drain", self.folder, self.broker, {"orders": "customer string"}, text)

    def send(self, *keys: str) -> None:
        records = [Record(key.encode(), document(customer="c")) for key in keys]
        self.broker.send("drain-orders", records)

    def job(self) -> Job:
        return Job(read_job(self.file), self.spark)

    def offsets(self) -> list[int | None]:
        return [record.offset() for record in self.broker.read(self.topic)]

    def counted(self) -> int:
        frame = self.spark.read.parquet(str(self.folder / "out"))
        return int(frame.agg({"n": "max"}).first()[0])  # type: ignore[index]


def test_what_all_queries_have_read_is_purged(
    spark: SparkSession, broker: Broker, tmp_path: Path, fkjoin_here: Callable[..., str]
) -> None:
    """A job is drained when nothing is left: its topic is not there yet, or all have read it, or it has no stages.

    A purge leaves what the oldest batch of a checkpoint may need, and the checkpoints that are there go on.  What is said of
    one that fails: tests/jobs/test_purging.py.
    """
    counting = Counting(spark, broker, tmp_path)

    def regroup(*keys: str) -> None:
        """Send orders, and run the first stage alone."""
        counting.send(*keys)
        counting.job().queries()[0].start().awaitTermination()

    def drained() -> tuple[int, str]:
        command = ["state", "drained", str(counting.file), "--spark-log", str(tmp_path / "log")]
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        return done.exit_code, done.stdout

    def left(records: int) -> str:
        lines = [f"{counting.topic}: {records} records are left for {query}" for query in ("sink-out", "dead-letters-counts")]
        return "\n".join([*lines, 'not drained; run the job with trigger = "available-now" until it ends', ""])

    counting.write("fused")
    assert drained() == (0, "drained: the job has no internal topics\n")
    with pytest.raises(FkJoinError, match="no join or aggregate has deployment = "):
        fkjoin_here("state", "purge", counting.file)
    counting.write("staged")
    nothing = 0, f"drained: no record is left in {counting.topic}\n"
    assert drained() == nothing
    fkjoin_here("run", "--check", counting.file)
    regroup("a", "b", "c")
    assert drained() == (1, left(3))
    with pytest.raises(FkJoinError, match="has no batch that is committed; purge when its query has read something"):
        fkjoin_here("state", "purge", counting.file)
    fkjoin_here("run", counting.file)
    regroup("d")

    assert counting.offsets() == [0, 1, 2, 3], 'purge = "never"'
    stages = counting.job().stages
    for wrong, says in (
        ([counting.checkpoint / "counts-regroup"], r"counts-regroup belongs to a query that reads none of .*; leave it out"),
        ([], rf"none belongs to a query that reads {counting.topic}; name the checkpoints of all"),
    ):
        with pytest.raises(FkJoinError, match=says):
            purge(stages, wrong)
    counting.write("staged", purge="1 hour")
    fkjoin_here("run", counting.file)
    assert counting.offsets() == [3], "a job that runs purges what no batch may need again when it begins"
    assert counting.counted() == 4, "the checkpoints that are there continue"
    assert f"{counting.topic}: partition 0 from 3\n" in fkjoin_here("state", "purge", counting.file)
    missing = rf"internal topic {counting.topic} begins at offset 3 of partition 0, .* give another application= .*, and give"
    with pytest.raises(FkJoinError, match=missing):
        counting.job().tables["counts"].to_parquet(tmp_path / "new", checkpoint=tmp_path / "new-checkpoint")
    more = tmp_path / "more.toml"
    more.write_text(f'{counting.file.read_text()}\n[sinks.more]\ntable = "counts"\npath = "{tmp_path}/more"\nformat = "json"\n')
    with pytest.raises(FkJoinError, match=rf"internal topic {counting.topic} begins at offset 3 .*/sink-more is new, so"):
        fkjoin_here("run", "--check", more)
    assert drained() == nothing

    of_topic = ConfigResource(ConfigResource.Type.TOPIC, counting.topic)
    settings = broker.admin.describe_configs([of_topic])[of_topic].result(30)
    wanted = {"retention.ms": "-1", "cleanup.policy": "delete", "segment.bytes": "1048576"}
    assert {name: settings[name].value for name in wanted} == wanted
    owner = {"host": socket.gethostname(), "process": os.getppid()}
    (counting.checkpoint / "counts-regroup/fkjoin-job.claim.99").write_text(json.dumps(owner))
    with pytest.raises(FkJoinError, match=f"counts-regroup is in use by process {os.getppid()} on .*: stop that job first"):
        drained()
