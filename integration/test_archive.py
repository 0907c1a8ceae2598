"""The commands of the how-to on `spark-submit` with an archive, on a standalone cluster whose Python knows no fkjoin."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fkjoin.sessions.settings import SHORT_LIVED

from .broker import Broker, Record
from .faults.cluster import ROOT, SPARK_HOME, Standalone

JOB = """
name = "archived"
checkpoint = "{folder}/checkpoint"
trigger = "1 second"
[spark]
"spark.ui.enabled" = false
"spark.executor.memory" = "700m"
"spark.executor.extraJavaOptions" = "{java}"
"spark.sql.shuffle.partitions" = 2
"spark.fkjoin.index.dir" = "{folder}/index"
[kafka]
bootstrap_servers = "{bootstrap}"
[tables.orders]
topic = "archived-orders"
key = "string"
value = {{format = "json", schema = "customer string"}}
[tables.customers]
topic = "archived-customers"
key = "string"
value = {{format = "json", schema = "name string"}}
[joins.joined]
left = "orders"
right = "customers"
extractor = "customer"
joiner = ["right.name"]
[sinks.out]
table = "joined"
topic = "archived-out"
"""


def commands() -> str:
    text = (ROOT / "docs" / "deploy.md").read_text()
    section = text.partition("## Spark cluster\n")[2].partition("\n## ")[0]
    found = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.nightly
def test_a_job_from_an_archive_goes_on_when_an_executor_is_killed(broker: Broker, tmp_path: Path) -> None:
    broker.create("archived-orders", "archived-customers", "archived-out")
    broker.send("archived-orders", [Record(b"o1", b'{"customer": "c1"}'), Record(b"o2", b'{"customer": "c2"}')])
    broker.send("archived-customers", [Record(b"c1", b'{"name": "Ada"}')])
    wheels, job = tmp_path / "wheels", tmp_path / "docker" / "job" / "job.py"
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT))
    subprocess.run([sys.executable, *build], check=True)
    job.parent.mkdir(parents=True)
    shutil.copy(ROOT / "docker" / "job" / "job.py", job)
    settings = {"folder": tmp_path, "bootstrap": broker.bootstrap, "java": SHORT_LIVED}
    (tmp_path / "job.toml").write_text(JOB.format(**settings))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    home = tmp_path / "cluster"
    home.mkdir()
    cluster = Standalone(home, environment)
    environment |= {
        "MASTER": cluster.master,
        "PATH": f"{SPARK_HOME / 'bin'}:{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}",
        "PIP_FIND_LINKS": " ".join([str(wheels), *os.environ.get("PIP_FIND_LINKS", "").split()]),
        "PIP_CONSTRAINT": str(ROOT / "requirements.lock"),
        "SPARK_SUBMIT_OPTS": SHORT_LIVED,
    }
    log = tmp_path / "driver.log"
    with log.open("wb") as output:
        command = ["sh", "-eu", "-c", commands()]
        driver = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=output, start_new_session=True)

    def wait(what: str, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 600
        while not until():
            assert driver.poll() is None, f"{what}: the driver has ended\n{log.read_text()[-6000:]}"
            assert time.monotonic() < deadline, f"{what}: not in time\n{log.read_text()[-6000:]}"
            time.sleep(0.2)

    def names() -> dict[str, str]:
        return {key.decode(): json.loads(value)["name"] for key, value in broker.table("archived-out").items()}

    try:
        wait("the first batch", lambda: names() == {"o1": "Ada"})
        packed = subprocess.run(["tar", "tzf", tmp_path / "env.tar.gz"], capture_output=True, text=True, check=True).stdout
        assert "site-packages/fkjoin/" in packed
        assert "site-packages/pyspark/" not in packed
        victim = cluster.executors()[0]
        os.kill(victim, signal.SIGKILL)
        broker.send("archived-customers", [Record(b"c1", b'{"name": "Bea"}'), Record(b"c2", b'{"name": "Cy"}')])
        wait("after an executor was killed", lambda: names() == {"o1": "Bea", "o2": "Cy"})
        wait("another executor", lambda: len(cluster.executors()) == 2 and victim not in cluster.executors())
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        cluster.stop()
