"""The topics between a job's stages, by the command line: drained or not, and purged."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fkjoin.cli.main import app
from fkjoin.errors import FkJoinError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job

from .broker import Broker, Record

JOB = """
name = "{name}"
checkpoint = "{folder}/checkpoint"
trigger = "available-now"
log = "{folder}/job.log"
purge = "{purge}"
[spark]
"spark.sql.streaming.minBatchesToRetain" = {retained}
"spark.sql.shuffle.partitions" = 2
"spark.fkjoin.index.dir" = "{folder}/index"
[kafka]
bootstrap_servers = "{bootstrap}"
[tables.orders]
topic = "{name}-orders"
key = "string"
value = {{format = "json", schema = "customer string"}}
[aggregates.counts]
of = "orders"
group_by = "customer"
columns = {{n = "count()"}}
deployment = "{deployment}"
[sinks.out]
table = "counts"
path = "{folder}/out"
[dead_letters]
path = "{folder}/letters"
"""
TOPIC = "drain-counts-repartition"


def test_a_job_is_drained_when_all_its_queries_have_read_its_internal_topics(
    spark: SparkSession, broker: Broker, tmp_path: Path, fkjoin_here: Callable[..., str]
) -> None:
    """A topic that is not there yet has nothing in flight, and a job without stages has no topics."""
    broker.create("drain-orders", partitions=1)
    job = tmp_path / "job.toml"

    def write(deployment: str) -> None:
        about = {"folder": tmp_path, "bootstrap": broker.bootstrap, "retained": 100, "purge": "never"}
        job.write_text(JOB.format(name="drain", deployment=deployment, **about))

    def send_and_regroup(*keys: str) -> None:
        """Send orders, and run the first stage alone."""
        broker.send("drain-orders", [Record(key.encode(), json.dumps({"customer": "c"}).encode()) for key in keys])
        regroup = Job(read_job(job), spark).queries()[0].start()
        regroup.awaitTermination()

    def drained() -> tuple[int, str]:
        command = ["state", "drained", str(job), "--spark-log", str(tmp_path / "log")]
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        return done.exit_code, done.stdout

    def left(records: int) -> str:
        lines = [f"{TOPIC}: {records} records are left for {query}" for query in ("sink-out", "dead-letters-counts")]
        return "\n".join([*lines, 'not drained; run the job with trigger = "available-now" until it ends', ""])

    write("fused")
    assert drained() == (0, "drained: the job has no internal topics\n")
    with pytest.raises(FkJoinError, match="no join or aggregate has deployment = "):
        fkjoin_here("state", "purge", job)
    write("staged")
    nothing = 0, f"drained: no record is left in {TOPIC}\n"
    assert drained() == nothing
    send_and_regroup("a", "b", "c")
    assert drained() == (1, left(3))
    with pytest.raises(FkJoinError, match="has no batch that is committed; purge when its query has read something"):
        fkjoin_here("state", "purge", job)
    fkjoin_here("run", job)
    assert drained() == nothing
    send_and_regroup("d")
    assert drained() == (1, left(1))
    fkjoin_here("run", job)
    assert drained() == nothing

    assert sum(broker.ends(TOPIC).values()) == 4
    assert [record.offset() for record in broker.read(TOPIC)] == [0, 1, 2, 3], 'purge = "never"'
    assert f"{TOPIC}: partition 0 from 3\n" in fkjoin_here("state", "purge", job), "the first batch may be gone back to"
    assert [record.offset() for record in broker.read(TOPIC)] == [3]
    assert drained() == nothing
    owner = {"host": socket.gethostname(), "process": os.getppid()}
    (tmp_path / "checkpoint/counts-regroup/fkjoin-job.claim.99").write_text(json.dumps(owner))
    with pytest.raises(FkJoinError, match=f"counts-regroup is in use by process {os.getppid()} on .*: stop that job first"):
        drained()


@pytest.mark.nightly
def test_a_job_that_runs_purges_what_all_its_stages_have_read_and_no_batch_may_need_again(
    spark: SparkSession, broker: Broker, tmp_path: Path, fkjoin_here: Callable[..., str]
) -> None:
    """Each run purges when it begins; the second to last batch of each query is kept.  A topic that refuses is said once."""
    broker.create("purged-orders", partitions=1)
    job, topic = tmp_path / "job.toml", "purged-counts-repartition"
    about = {"name": "purged", "folder": tmp_path, "bootstrap": broker.bootstrap, "deployment": "staged"}
    job.write_text(JOB.format(**about, retained=2, purge="1 hour"))

    def run(key: str) -> str:
        broker.send("purged-orders", [Record(key.encode(), json.dumps({"customer": "c"}).encode())])
        return fkjoin_here("run", job)

    def offsets() -> list[int | None]:
        return [record.offset() for record in broker.read(topic)]

    def counted() -> int:
        return int(spark.read.parquet(str(tmp_path / "out")).agg({"n": "max"}).first()[0])  # type: ignore[index]

    def oldest_kept() -> int:
        return min(int(path.name) for path in (tmp_path / "checkpoint/sink-out/offsets").glob("[0-9]*"))

    first = run("a")
    assert offsets() == [0]
    run("b")
    run("c")
    before = oldest_kept()
    run("d")
    (begin, *_) = offsets()
    assert before + 1 <= (begin or 0) <= oldest_kept() + 1, "each batch of this job has one record"
    assert counted() == 4
    newest = max((tmp_path / "checkpoint/sink-out/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    of_topic = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[compact])
    broker.admin.incremental_alter_configs([of_topic])[of_topic].result(30)
    says = f"internal topics are not purged: topic {topic}: the brokers did not delete its records: "
    assert says not in first
    assert run("e").count(says) == 1
    assert counted() == 5, "a batch that is repeated has its records"
