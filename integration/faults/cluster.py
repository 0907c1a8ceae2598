"""A standalone Spark cluster on this machine: a master and workers of one core each, and a driver that may crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyspark

from fkjoin.sessions.settings import SHORT_LIVED
from integration.faults.victims import ZOMBIES_FILE
from integration.machine import Process, free_port
from tests.support.places import ROOT

SPARK_HOME = Path(pyspark.__file__).parent
JAVA = Path(__file__).with_name("CrashingFileManager.java")


def compiled(folder: Path) -> Path:
    """The crashing file manager's classes, compiled into the folder unless they are there."""
    if folder.exists():
        return folder
    command = ["javac", "-nowarn", "-cp", f"{SPARK_HOME}/jars/*", "-d", str(folder), str(JAVA)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return folder


class Standalone:
    """Master and workers in a folder; they and their executors are killed by ``stop``."""

    def __init__(self, home: Path, environment: dict[str, str], workers: int = 2) -> None:
        self._home, self._environment, port = home, environment, str(free_port())
        self.master = f"spark://127.0.0.1:{port}"
        self._processes = [self._daemon("master.Master", "--port", port)]
        for number in range(workers):
            about = ["-c", "1", "-m", "1g", "-d", home / f"worker-{number}"]
            self._processes.append(self._daemon("worker.Worker", *about, self.master))

    def _daemon(self, kind: str, *arguments: object) -> Process:
        command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"]
        here = ["--host", "127.0.0.1", "--webui-port", "0"]
        return Process(self._home, [*command, *here, *arguments], self._home, self._environment)

    def stop(self) -> None:
        for process in self._processes:  # their executors go with them
            process.kill()

    def executors(self) -> list[int]:
        """The processes of the executors' JVMs."""
        parents = {process.pid for process in self._processes}
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent in parents and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return found


class Cluster(Standalone):
    """One job after another, in folders of their own; everything is killed by ``stop``."""

    def __init__(self, home: Path, workers: int = 2) -> None:
        self.fault = home / "fault"
        self._classes = compiled(home / "classes")
        environment = os.environ | {
            "FKJOIN_FAULT": str(self.fault),
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_DIRS": str(home / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        super().__init__(home, environment, workers)

    def begin(self, folder: Path, job: str, **conf: str) -> None:
        """Take up a job (see ``driver``) in a folder of its own; ``conf``: settings of all its drivers."""
        self.folder = folder
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.executor.memory": "700m",
            "spark.executor.cores": "1",
            "spark.driver.extraClassPath": str(self._classes),
            "spark.executor.extraClassPath": str(self._classes),
            "spark.sql.streaming.checkpointFileManagerClass": "fkjoin.faults.CrashingFileManager",
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.task.maxFailures": "8",
            "spark.network.timeout": "15s",
            "spark.network.timeoutInterval": "3s",
            "spark.executor.heartbeatInterval": "3s",
            "spark.speculation": "true",
            "spark.speculation.multiplier": "3",
            "spark.speculation.minTaskRuntime": "3s",
            "spark.sql.shuffle.partitions": "2",
            "spark.fkjoin.buckets": "4",
            "spark.fkjoin.validate": "true",
            "spark.fkjoin.index.dir": str(folder / "index"),
        }
        about = {"master": self.master, "folder": str(folder), "conf": settings | conf, "job": job}
        (folder / "config.json").write_text(json.dumps(about))
        self._start()

    def _start(self) -> None:
        """Start the driver; it goes on from its checkpoint."""
        command = [sys.executable, "-m", "integration.faults.driver", self.folder / "config.json"]
        self.driver = Process(self.folder, command, self.folder, self._environment)

    def end(self) -> None:
        """Kill the job's driver; its executors go with it."""
        self.driver.kill()
        self.wake_zombies()
        self.fault.unlink(missing_ok=True)

    def wake_zombies(self) -> None:
        """Let processes that stand still go on."""
        zombies = self.fault.with_name(ZOMBIES_FILE)
        if zombies.exists():
            for process in map(int, zombies.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)
            zombies.unlink()

    def wait(self, goal: str, reached: Callable[[], Any], seconds: float = 240) -> None:
        """Poll, and start the driver again if it has died; a driver that dies twice has another reason."""
        deadline = time.monotonic() + seconds
        died = False
        while not reached():
            assert time.monotonic() < deadline, f"{goal}: not in {seconds} s\n{self.driver.output()}"
            if self.driver.has_ended():
                assert not died, f"{goal}: the driver does not stay\n{self.driver.output()}"
                died = True
                self.driver.kill()  # the JVM, whose Python is gone
                self._start()
            time.sleep(0.1)


WORKER_POINTS = ("read", "rekey", "subscription", "resolve", "index write", "log write", "pending file")


def written(folder: Path, key: str = "o", columns: Sequence[str] = ("amount", "name")) -> dict[str, Any]:
    """The table that the sink's batches lead to; fails on a change that changes nothing, and on one that cannot be."""
    table: dict[str, Any] = {}
    for path in sorted((folder / "out").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            before = table.get(row[key])
            if row["op"] == "delete":
                assert before is not None, (path.name, row)
                del table[row[key]]
            else:
                now = tuple(row.get(name) for name in columns)
                assert (row["op"] == "insert") == (before is None), (path.name, row)
                assert now != before, (path.name, row)
                table[row[key]] = now
    return table
