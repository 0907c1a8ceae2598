"""The job image: as a user, on a root file system that is read-only, alone and as Spark on Kubernetes starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from queue import Queue
from typing import Any

import pyspark
import pytest
import yaml
from kubeflow_spark_api.models import SparkV1beta2SparkApplication

from fkjoin.jobs.job_file import read_job
from integration.machine import JsonAnswers, answering
from tests.support.job_files import PLAIN, write_rows

from .conftest import DOCKER, prepared

MANIFEST = DOCKER / "kubernetes" / "spark-application.yaml"
HOST = "127.0.0.1"

Json = dict[str, Any]


def documents() -> dict[str, Json]:
    """The documents of the manifest, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


@contextmanager
def api() -> Iterator[tuple[str, Queue[Json]]]:
    """The API's address, and the pods that it is asked to make; it says that each of them runs."""
    asked: Queue[Json] = Queue()
    pods: dict[str, Json] = {"driver": {"metadata": {"name": "driver", "uid": "0"}}}

    class Api(JsonAnswers, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].rpartition("/")[2]
            listed = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(pods.values())[1:]}
            self.answer({"kind": "Pod", "apiVersion": "v1"} | pods[name] if name in pods else listed)

        def do_POST(self) -> None:
            body = json.loads(self.body())
            body["metadata"]["uid"] = str(len(pods))
            if body["kind"] == "Pod":
                pods[body["metadata"]["name"]] = body | {"status": {"phase": "Running"}}
                asked.put(body)
            self.answer(body)

        def do_DELETE(self) -> None:
            self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

        do_PATCH = do_PUT = do_POST  # noqa: N815

    with answering(Api) as port:
        yield f"http://{HOST}:{port}", asked


def volume(name: str, group: int) -> str:
    """Make a volume as the kubelet has it for a pod with ``fsGroup``: root's, and writable for that group alone."""
    docker("volume", "create", "--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", f"o=mode=2775,gid={group}", name)
    return name


def confined(application: Json, role: str, pod: str, places: dict[str, str]) -> list[str]:
    """Return the operator's restrictions on a pod as Docker's options; ``places``: a source for each claim and ConfigMap."""
    spec, part = application["spec"], application["spec"][role]
    volumes = {one["name"]: one for one in spec["volumes"]}
    context, group = part["securityContext"], part["podSecurityContext"]["fsGroup"]
    assert context["runAsNonRoot"]
    given = ["--network", "host", "--user", f"{context['runAsUser']}", "--group-add", f"{group}"]
    given += ["--read-only"] * context["readOnlyRootFilesystem"]
    given += ["--security-opt", "no-new-privileges"] * (not context["allowPrivilegeEscalation"])
    given += [f"--cap-drop={name}" for name in context["capabilities"]["drop"]]
    for mount in part["volumeMounts"]:
        claim = volumes[mount["name"]].get("persistentVolumeClaim")
        source = places[claim["claimName"]] if claim else f"{pod}-{mount['name']}"
        given += mounted(volume(source, group), mount["mountPath"])
    for one in part.get("configMaps", []):
        given += ["--volume", f"{places['ConfigMap ' + one['name']]}:{one['path']}:ro"]
    return given


def mounted(source: str, path: str) -> list[str]:
    """Return options without which Docker gives a new volume the owner of the image's folder, as no kubelet does."""
    return ["--volume", f"{source}:{path}:nocopy"]


def of_pod(pod: Json, name: str, group: int) -> tuple[list[str], list[str]]:
    """Variables and local folders of the pod's only container, as Docker takes them, and its arguments."""
    (container,) = pod["spec"]["containers"]
    kept = {one["name"] for one in pod["spec"].get("volumes", []) if "emptyDir" in one}
    fields = {"status.podIP": HOST, "metadata.name": pod["metadata"]["name"]}
    given: list[str] = []
    for one in container["env"]:
        value = fields[one["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in one else one.get("value", "")
        given += ["--env", f"{one['name']}={value}"]
    for mount in container.get("volumeMounts", []):
        if mount["name"] in kept:
            given += mounted(volume(f"{name}-{mount['name']}", group), mount["mountPath"])
    return given, container["args"]


def docker(*command: object) -> str:
    done = subprocess.run(["docker", *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


USER = "10001"
FAST = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"
LOCAL = ("spark.master", "spark.fkjoin.index.dir", "spark.driver.extraJavaOptions")
"""Settings of a job that runs alone."""

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
    """A folder with a job and the files of its two tables."""
    folder = tmp_path / "job"
    write_rows(folder)
    (folder / "job.toml").write_text(job_text())
    return folder


def job_text(left_out: tuple[str, ...] = ()) -> str:
    """The job, which reads ``/job``, writes ``/data`` and prints its log, without some settings."""
    text = PLAIN.replace('trigger = "available-now"\nlog = "{folder}/job.log"', 'log = "-"')
    for table in ("orders", "customers"):
        text = text.replace(f"{{folder}}/{table}", f"/job/{table}")
    lines = text.replace("{folder}", "/data").splitlines()
    return "\n".join(line for line in lines if not line.strip('"').startswith(left_out))


def first_batch(name: str) -> subprocess.Popen[str]:
    """The container's standard output, read up to its first batch."""
    logs = ["docker", "logs", "--follow", name]
    following = subprocess.Popen(logs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert following.stdout is not None
    batches = (json.loads(line) for line in following.stdout if line.startswith("{"))
    assert next(batches, {}).get("batch") == 0, docker("logs", name)
    return following


def test_a_job_runs_as_the_images_user_on_a_read_only_file_system(image: str, name: str, job: Path) -> None:
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
    (config / "job.toml").write_text(job_text(LOCAL))
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
