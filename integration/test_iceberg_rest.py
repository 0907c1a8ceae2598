"""Iceberg tables in a REST catalog: the promises of a sink.

A catalog that is away: tests/sinks/test_iceberg.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyiceberg.catalog import load_catalog

from fkjoin.sinks import Iceberg
from fkjoin.testing import SinkContract
from integration.conftest import DOCKER, prepared
from integration.machine import Process, free_port

SERVER = "org.apache.iceberg.rest.RESTCatalogServer"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The options for a server in a process of its own."""
    folder, port = tmp_path_factory.mktemp("rest"), free_port()
    address = f"http://127.0.0.1:{port}"
    hadoop = sorted(Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar"))
    jars = prepared(sys.executable, str(DOCKER / "jars.py"), "rest-catalog")
    settings = {
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": f"{folder}/lake",
        "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
        "CATALOG_REST_PORT": str(port),
    }
    classes = os.pathsep.join([f"{jars}/*", *map(str, hadoop)])
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, SERVER]
    server = Process(folder, command, environment=os.environ | settings)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/v1/config", timeout=5).close()
            return True
        return False

    server.wait_for("the catalog answers", answers, pause_s=0.1)
    yield {"type": "rest", "uri": address}
    server.kill()


@pytest.mark.nightly
class TestIcebergByRest(SinkContract):
    every = 50  # Each step adds a snapshot to the one table that a test reads, so all of them take hours.

    @pytest.fixture(autouse=True)
    def place(self, catalog: dict[str, str], request: pytest.FixtureRequest) -> None:
        self.options, self.namespace = catalog, request.node.name

    def make_sink(self, into: str) -> Iceberg:
        return Iceberg(f"{self.namespace}.{into}", options=self.options)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        table = load_catalog("default", **self.options).load_table(f"{self.namespace}.{into}")
        return table.scan().to_arrow().to_pylist()
