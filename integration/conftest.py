"""A Docker engine, a broker and a Spark session with the Kafka connector; without an engine the tests are skipped.

Under ``CI=true`` what cannot be had is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import only_session

DOCKER = Path(__file__).parent.parent / "docker"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.kafka)


def prepared(*command: str) -> str:
    """The last line that the command prints; the test is skipped, or fails under CI, when it fails."""
    environment = os.environ | {"PYTHON": sys.executable}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if run.returncode == 0:
        return run.stdout.split()[-1]
    reason = f"{Path(command[-1]).name} failed: {run.stderr.strip()[-2000:] or run.stdout.strip()[-2000:]}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def docker() -> None:
    """An engine that testcontainers and the docker command reach."""
    os.environ["DOCKER_HOST"] = prepared(str(DOCKER / "engine.sh"))
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


@pytest.fixture(scope="session")
def broker(docker: None) -> Iterator[object]:
    image = prepared(str(DOCKER / "kafka" / "build.sh"))
    from integration.broker import Broker

    made = Broker(image)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def connector() -> str:
    """The jars of Spark's Kafka connector, as ``spark.jars`` wants them."""
    folder = Path(prepared(sys.executable, str(DOCKER / "jars.py"), "connector"))
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


@pytest.fixture(scope="session")
def spark(connector: str) -> Iterator[SparkSession]:
    yield from only_session("fkjoin integration tests", jars=connector)


@pytest.fixture(scope="session")
def browser() -> str:
    """A browser without a window."""
    return prepared(str(DOCKER / "browser.sh"))
