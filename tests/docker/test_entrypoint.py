"""The job image's entry point: what it starts for the arguments and variables that Spark on Kubernetes gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT

OWN = [f"EXECUTOR_{name}" for name in ("ID", "CORES", "MEMORY", "POD_IP", "POD_NAME")]
NAMES = ("DRIVER_URL", "APPLICATION_ID", "RESOURCE_PROFILE_ID", *OWN)
EXECUTOR = {f"SPARK_{name}": f"the {name}" for name in NAMES}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Programs that print their arguments, each in a line."""
    (tmp_path / "bin").mkdir()
    for name, does in {
        "tini": 'echo tini; [ "$1 $2" = "-s --" ]; shift 2; exec "$@"',
        "java": 'for one; do echo "$one"; done',
        "fkjoin": 'echo fkjoin; for one; do echo "$one"; done',
        "spark-submit": 'pwd; for one; do echo "$one"; done',
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def entered(home: Path, *arguments: str, **environment: str) -> list[str]:
    given = {"PATH": f"{home}/bin:/usr/bin:/bin", "SPARK_HOME": str(home)} | environment
    command = [str(ROOT / "docker" / "job" / "entrypoint.sh"), *arguments]
    run = subprocess.run(command, cwd=home, env=given, capture_output=True, text=True, check=True)
    tini, *rest = run.stdout.splitlines()
    assert tini == "tini"
    return rest


def test_a_driver_is_spark_submit_in_client_mode(programs: Path) -> None:
    given = ("--properties-file", "/opt/spark/conf/spark.properties", "local:///job.py", "run", "a job.toml")
    folder, *arguments = entered(programs, "driver", *given, SPARK_DRIVER_BIND_ADDRESS="10.0.0.6")
    assert folder == "/tmp", "what Spark fetches goes where it can be written"
    assert arguments == [
        *("--deploy-mode", "client"),
        *("--conf", "spark.driver.bindAddress=10.0.0.6"),
        *("--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.6"),
        *given,
    ]


def test_an_executor_is_sparks_backend_with_the_options_of_the_driver(programs: Path) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Done={number}" for number in range(12)} | {"SPARK_JAVA_OPT_2": "-Dtwo=two words"}
    found = entered(programs, "executor", **EXECUTOR, **options, SPARK_CONF_DIR="/opt/spark/conf")
    assert found[:12] == [options[f"SPARK_JAVA_OPT_{number}"] for number in range(12)], "in their order"
    assert found[12:16] == [
        "-Xmsthe EXECUTOR_MEMORY",
        "-Xmxthe EXECUTOR_MEMORY",
        "-cp",
        f"/opt/spark/conf:{programs}/jars/*:/tmp",
    ]
    assert found[16] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    values = dict(zip(found[17::2], found[18::2], strict=True))
    assert sorted(values.values()) == sorted(value for name, value in EXECUTOR.items() if name != "SPARK_EXECUTOR_MEMORY")
    assert values["--executor-id"] == "the EXECUTOR_ID"
    with pytest.raises(subprocess.CalledProcessError) as ended:
        entered(programs, "executor")
    assert "SPARK_EXECUTOR_MEMORY" in ended.value.stderr, "the variable that is lacking"


def test_all_else_is_a_command_of_fkjoin(programs: Path) -> None:
    assert entered(programs, "run", "a job.toml") == ["fkjoin", "run", "a job.toml"]
