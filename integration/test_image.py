"""The job image: as a user, on a root file system that is read-only, alone and as Spark on Kubernetes starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from kubeflow_spark_api.models import SparkV1beta2SparkApplication

from fkjoin.jobs.job_file import read_job
from tests.support.queries import write_lines

from .conftest import DOCKER, prepared
from .pods import HOST, api, confined, docker, documents, of_pod

ROOT = DOCKER.parent
USER = "10001"
FAST = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"
JOB = """
name = "orders"
checkpoint = "/data/checkpoint"
log = "-"
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
[spark]
"spark.ui.enabled" = false
"spark.sql.shuffle.partitions" = 1
"spark.log.level" = "WARN"
"""
LOCAL = f"""
"spark.master" = "local[2]"
"spark.fkjoin.index.dir" = "/data/index"
"spark.driver.extraJavaOptions" = "{FAST}"
"""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11, and these packages"),
]


@pytest.fixture(scope="module")
def image(docker: None) -> str:
    return prepared(str(DOCKER / "job" / "build.sh"))


@pytest.fixture
def name(docker: None) -> Iterator[str]:
    """Name the containers and their volumes, and remove them at the end."""
    made = f"fkjoin-test-{uuid.uuid4().hex[:8]}"
    yield made
    subprocess.run(["docker", "rm", "--force", made, f"{made}-executor"], capture_output=True, check=False)
    listed = ["docker", "volume", "ls", "--quiet", "--filter", f"name={made}"]
    volumes = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split()
    subprocess.run(["docker", "volume", "rm", "--force", *volumes], capture_output=True, check=False)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with the files of two tables."""
    folder = tmp_path / "job"
    write_lines(folder / "orders", "1", [{"id": 1, "customer": "c", "lsn": 1}])
    write_lines(folder / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    return folder


def first_batch(name: str) -> subprocess.Popen[str]:
    """The container's standard output, read up to its first batch."""
    logs = ["docker", "logs", "--follow", name]
    following = subprocess.Popen(logs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert following.stdout is not None
    batches = (json.loads(line) for line in following.stdout if line.startswith("{"))
    assert next(batches, {}).get("batch") == 0, docker("logs", name)
    return following


def test_a_job_runs_as_the_images_user_on_a_read_only_file_system(image: str, name: str, job: Path) -> None:
    (job / "job.toml").write_text(JOB + LOCAL)
    how = ("--read-only", "--tmpfs", "/tmp:exec", "--volume", f"{name}:/data", "--volume", f"{job}:/job:ro")
    docker("run", "--detach", "--name", name, *how, image, "run", "/job/job.toml")
    following = first_batch(name)
    assert docker("exec", name, "id", "-u").strip() == USER
    assert docker("exec", name, "cat", "/proc/1/comm").strip() == "tini"
    index = docker("exec", name, "sh", "-c", "ls -d /data/index/*/checkpoint.json /tmp/fkjoin-run-*")
    assert "/tmp/fkjoin-run-" in index
    docker("stop", "--time", "60", name)
    following.wait()
    assert docker("inspect", "--format", "{{.State.ExitCode}}", name).strip() == "0"
    assert "Using incubator modules" in docker("logs", name), "the JVM's log is on standard error"


def test_driver_and_executor_run_as_the_operator_starts_them(image: str, name: str, job: Path, tmp_path: Path) -> None:
    """The manifest's command, settings, volumes and restrictions apply.  A container is the pod that Spark asks the API for."""
    application = documents()["SparkApplication"]
    spec, config = application["spec"], tmp_path / "config"
    config.mkdir()
    (config / "job.toml").write_text(JOB)
    volumes = {"orders-with-customers": name, "ConfigMap orders-with-customers": str(config)}
    extra = ["--volume", f"{job}:/job:ro"]
    with api() as (address, asked):
        settings = spec["sparkConf"] | {
            "spark.master": f"k8s://{address}",
            "spark.kubernetes.driver.master": address,
            "spark.kubernetes.submitInDriver": "true",
            "spark.kubernetes.driver.pod.name": "driver",
            "spark.kubernetes.executor.enableApiWatcher": "false",
            "spark.kubernetes.container.image": spec["image"],
            "spark.driver.host": HOST,
            "spark.driver.extraJavaOptions": FAST,
            "spark.executor.extraJavaOptions": FAST,
            "spark.executor.instances": "1",
            "spark.executor.cores": "2",
            "spark.executor.memory": "512m",
        }
        properties = tmp_path / "spark"
        properties.mkdir()
        (properties / "spark.properties").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        as_pods = ["--volume", f"{properties}:/opt/spark/conf:ro", "--env", "SPARK_CONF_DIR=/opt/spark/conf"]
        as_pods += ["--env", f"SPARK_DRIVER_BIND_ADDRESS={HOST}", "--env", "SPARK_LOCAL_DIRS=/tmp/local"]
        command = ["driver", "--properties-file", "/opt/spark/conf/spark.properties"]
        command += ["--class", "org.apache.spark.deploy.PythonRunner", spec["mainApplicationFile"], *spec["arguments"]]
        how = confined(application, "driver", name, volumes)
        docker("run", "--detach", "--name", name, *how, *as_pods, *extra, image, *command)
        executor = f"{name}-executor"

        def kubelet() -> None:
            group = spec["executor"]["podSecurityContext"]["fsGroup"]
            given, arguments = of_pod(asked.get(), executor, group)
            how = confined(application, "executor", executor, volumes)
            docker("run", "--detach", "--name", executor, *how, *given, *extra, image, *arguments)

        threading.Thread(target=kubelet, daemon=True).start()
        following = first_batch(name)
        assert docker("exec", executor, "sh", "-c", "cat /proc/1/comm; id -u; ls /index/*/checkpoint.json").split()[:2] == [
            "tini",
            USER,
        ]
        assert docker("exec", name, "stat", "-c", "%u", "/data/checkpoint").strip() == USER
        docker("stop", "--time", "60", name)
        following.wait()


def test_the_manifest_is_one_that_the_operator_takes(tmp_path: Path) -> None:
    """The operator's own models read it: a field that they do not know, or of another type, would be missing or refused."""
    found = documents()
    application = found["SparkApplication"]
    model = SparkV1beta2SparkApplication.from_dict(application)
    assert model is not None
    assert model.to_dict() == application
    named = application["metadata"]["name"]
    assert {found["ConfigMap"]["metadata"]["name"], found["PersistentVolumeClaim"]["metadata"]["name"]} == {named}
    (tmp_path / "job.toml").write_text(found["ConfigMap"]["data"]["job.toml"])
    job = read_job(tmp_path / "job.toml")
    mounted = {mount["mountPath"] for mount in application["spec"]["executor"]["volumeMounts"]}
    assert {f"/{job.checkpoint.split('/')[1]}", application["spec"]["sparkConf"]["spark.fkjoin.index.dir"], "/tmp"} == mounted
    assert application["spec"]["sparkVersion"] == pyspark.__version__
