"""The commands of the how-to on `spark-submit` with an archive, on a standalone cluster whose Python knows no fkjoin."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fkjoin.sessions.settings import SHORT_LIVED
from tests.support.documents import blocks
from tests.support.places import ROOT

from .broker import Broker, Record
from .faults.cluster import SPARK_HOME, Standalone
from .jobs import job_file
from .machine import Process

TABLES = {"orders": "customer string", "customers": "name string"}
JOB = f"""
trigger = "1 second"
spark."spark.executor.memory" = "700m"
spark."spark.executor.extraJavaOptions" = "{SHORT_LIVED}"
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
    """The commands of the section on a cluster."""
    texts = [block.text for block in blocks(ROOT / "docs" / "deploy.md")]
    return next(text for text in texts if "spark-submit" in text)


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
    job_file("archived", tmp_path, broker, TABLES, JOB)
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
    driver = Process(tmp_path, ["sh", "-eu", "-c", commands()], tmp_path, environment)

    def reaches(**names: str) -> None:
        def reached() -> bool:
            rows = broker.table("archived-out")
            return names == {key.decode(): json.loads(value)["name"] for key, value in rows.items()}

        driver.wait_for(str(names), reached, limit_s=600)

    try:
        reaches(o1="Ada")
        packed = subprocess.run(["tar", "tzf", tmp_path / "env.tar.gz"], capture_output=True, text=True, check=True).stdout
        assert "site-packages/fkjoin/" in packed
        assert "site-packages/pyspark/" not in packed
        victim = cluster.executors()[0]
        os.kill(victim, signal.SIGKILL)
        broker.send("archived-customers", [Record(b"c1", b'{"name": "Bea"}'), Record(b"c2", b'{"name": "Cy"}')])
        reaches(o1="Bea", o2="Cy")
        driver.wait_for("another one", lambda: len({*cluster.executors()} - {victim}) == 2)
    finally:
        driver.kill()
        cluster.stop()
