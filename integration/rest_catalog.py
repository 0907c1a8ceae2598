"""Iceberg's own REST catalog, which keeps its tables in SQLite, as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyspark

DOCKER = Path(__file__).parent.parent / "docker"
SERVER = "org.apache.iceberg.rest.RESTCatalogServer"


class RestCatalog:
    """A server that can be ended, and started again at the same address with the same tables."""

    def __init__(self, jars: str, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        hadoop = sorted(Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar"))
        self._classes = os.pathsep.join([f"{jars}/*", *map(str, hadoop)])
        self._folder = folder
        self.start()

    @property
    def options(self) -> dict[str, str]:
        return {"type": "rest", "uri": f"http://127.0.0.1:{self.port}"}

    def start(self) -> None:
        about = {
            "CATALOG_URI": f"jdbc:sqlite:{self._folder}/catalog.db",
            "CATALOG_WAREHOUSE": f"{self._folder}/lake",
            "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
            "CATALOG_REST_PORT": str(self.port),
        }
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", self._classes, SERVER]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=os.environ | about, stdout=log, stderr=log)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.options['uri']}/v1/config", timeout=5).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "server.log").read_text()[-3000:]
                time.sleep(0.1)
        raise AssertionError("the catalog does not answer")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def jars() -> list[str]:
    """The command that fetches the server's jars, and prints their folder."""
    return [sys.executable, str(DOCKER / "jars.py"), "rest-catalog"]
