"""The job image: as a user, on a root file system that is read-only."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.queries import write_lines

from .conftest import DOCKER, prepared

ROOT = DOCKER.parent
JOB = """
name = "orders"
checkpoint = "/data/checkpoint"
[spark]
"spark.master" = "local[2]"
"spark.ui.enabled" = false
"spark.sql.shuffle.partitions" = 1
"spark.fkjoin.index.dir" = "/data/index"
"spark.driver.extraJavaOptions" = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"
[tables.orders]
path = "/job/orders"
key = "id"
version = "lsn"
[tables.customers]
path = "/job/customers"
key = "customer"
version = "lsn"
[joins.joined]
left = "orders"
right = "customers"
extractor = "customer"
[sinks.out]
table = "joined"
path = "/data/out"
"""


def run(*command: object) -> str:
    done = subprocess.run(["docker", *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def name(docker: None) -> Iterator[str]:
    """Of a container and its volume, which are removed."""
    made = f"fkjoin-test-{uuid.uuid4().hex[:8]}"
    yield made
    subprocess.run(["docker", "rm", "--force", made], capture_output=True, check=False)
    subprocess.run(["docker", "volume", "rm", "--force", made], capture_output=True, check=False)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11, and these packages")
def test_a_job_runs_as_the_images_user_on_a_read_only_file_system(name: str, tmp_path: Path) -> None:
    """With the steps of the Dockerfile that matter, on its base: a whole build takes minutes."""
    steps = (DOCKER / "job" / "Dockerfile").read_text()
    user = re.search(r"^USER ([1-9]\d*)$", steps, re.MULTILINE)
    made = re.search(r"^RUN (useradd .*)$", steps, re.MULTILINE)
    assert user is not None
    assert made is not None
    base = prepared(str(DOCKER / "base.sh"))
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Dockerfile").write_text(f"FROM {base}\nRUN {made[1]}\nWORKDIR /data\nUSER {user[1]}\n")
    run("build", "--quiet", "--tag", "fkjoin-test", tmp_path / "image")
    job = tmp_path / "job"
    write_lines(job / "orders", "1", [{"id": 1, "customer": "c", "lsn": 1}])
    write_lines(job / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    (job / "job.toml").write_text(JOB)
    packages = Path(sysconfig.get_path("purelib"))
    how = ("--init", "--read-only", "--tmpfs", "/tmp:exec", "--env", "PYTHONPATH=/fkjoin:/packages")
    mounts = (f"{name}:/data", f"{job}:/job:ro", f"{packages}:/packages:ro", f"{ROOT / 'fkjoin'}:/fkjoin/fkjoin:ro")
    volumes = [one for mount in (*mounts, f"{ROOT / 'state'}:/fkjoin/state:ro") for one in ("--volume", mount)]
    run(
        "run",
        "--detach",
        "--name",
        name,
        *how,
        *volumes,
        "fkjoin-test",
        "python3",
        "-m",
        "fkjoin",
        "run",
        "/job/job.toml",
    )
    following = subprocess.Popen(
        ["docker", "logs", "--follow", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert following.stdout is not None
    batches = (json.loads(line) for line in following.stdout if line.startswith("{"))
    assert next(batches, {}).get("batch") == 0, run("logs", name)
    assert run("exec", name, "id", "-u").strip() == user[1]
    index = run("exec", name, "sh", "-c", "ls -d /data/index/*/checkpoint.json /tmp/fkjoin-run-*")
    assert "/tmp/fkjoin-run-" in index
    run("stop", "--time", "60", name)
    following.wait()
    assert run("inspect", "--format", "{{.State.ExitCode}}", name).strip() == "0"
    said = run("logs", name)
    assert "Using incubator modules" in said, "the JVM's log is on standard error"
