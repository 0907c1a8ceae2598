"""Iceberg tables in a REST catalog: the promises of a sink, and a catalog that is away for a while."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyiceberg.catalog import load_catalog

from fkjoin.errors import FkJoinError
from fkjoin.sinks import Iceberg
from fkjoin.testing import SinkContract
from integration.conftest import DOCKER, prepared
from integration.machine import Process, free_port
from tests.support.batch_ids import batch_id

pytestmark = pytest.mark.nightly

SERVER = "org.apache.iceberg.rest.RESTCatalogServer"


class RestCatalog:
    """A server that can be ended, and started again at the same address with the same tables."""

    def __init__(self, jars: str, folder: Path) -> None:
        self.port = free_port()
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
        self._process = Process(self._folder, command, environment=os.environ | about)
        self._process.wait_for("the catalog answers", self._answers, pause_s=0.1)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{self.options['uri']}/v1/config", timeout=5).close()
            return True
        return False

    def stop(self) -> None:
        self._process.kill()


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    jars = prepared(sys.executable, str(DOCKER / "jars.py"), "rest-catalog")
    made = RestCatalog(jars, tmp_path_factory.mktemp("rest"))
    yield made
    made.stop()


def rows_of(rest: RestCatalog, name: str) -> list[dict[str, Any]]:
    return load_catalog("default", **rest.options).load_table(name).scan().to_arrow().to_pylist()


class TestIcebergByRest(SinkContract):
    every = 50  # Each step adds a snapshot to the one table that a test reads, so all of them take hours.

    @pytest.fixture(autouse=True)
    def place(self, rest: RestCatalog, request: pytest.FixtureRequest) -> None:
        self.rest, self.namespace = rest, request.node.name

    def make_sink(self, into: str) -> Iceberg:
        return Iceberg(f"{self.namespace}.{into}", options=self.rest.options)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return rows_of(self.rest, f"{self.namespace}.{into}")


def test_a_batch_waits_for_a_catalog_that_is_away_and_counts_once(rest: RestCatalog) -> None:
    rows = pa.table({"id": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    none = rows.select(["id"]).slice(0, 0)
    sink = Iceberg("away.it", options=rest.options)
    sink.prepare(rows.schema, ("id",))
    rest.stop()
    with pytest.raises(
        FkJoinError, match="iceberg default.away.it: .*Connection refused.* Start the query again when the outage"
    ):
        Iceberg("away.it", options=rest.options, retry_s=0).apply(batch_id(0), rows, none)
    back = threading.Timer(1, rest.start)
    back.start()
    sink.apply(batch_id(0), rows, none)
    back.join()
    sink.apply(batch_id(0), rows, none)
    assert rows_of(rest, "away.it") == rows.to_pylist()
