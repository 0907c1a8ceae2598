"""A SparkApplication without a cluster: an API that takes pods, and containers that run in place of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from queue import Queue
from typing import Any

import yaml

from integration.machine import JsonAnswers, answering

MANIFEST = Path(__file__).parent.parent / "docker" / "kubernetes" / "spark-application.yaml"
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
