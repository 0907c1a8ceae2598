"""A Docker engine, a broker and a Spark session with the Kafka connector; without an engine the tests are skipped.

Under ``CI=true`` what cannot be had is a failure.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.support.sessions import fkjoin_here, only_session, own_counts, pytest_runtest_makereport, refused_here, small

__all__ = ["fkjoin_here", "own_counts", "pytest_runtest_makereport", "refused_here"]

DOCKER = Path(__file__).parent.parent / "docker"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.kafka)


def prepared(*command: str) -> str:
    """Return the last line that the command prints; if it fails, skip the test, or fail it under CI."""
    environment = os.environ | {"PYTHON": sys.executable}
    # Workers of a run prepare the same things: the second one waits, and has what the first one made.
    with Path(tempfile.gettempdir(), f"fkjoin-prepared-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
    line = ".".join(pyspark.__version__.split(".")[:2])
    name = f"connector-{line}" if line in ("4.0", "4.1") else "connector"
    folder = Path(prepared(sys.executable, str(DOCKER / "jars.py"), name))
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


@pytest.fixture(scope="session")
def spark(connector: str) -> Iterator[SparkSession]:
    yield from only_session("fkjoin integration tests", jars=connector)


@pytest.fixture
def least_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Tables whose stages are one operator, which ``make faults`` has as several."""
    small(spark, tmp_path, validate=True)


@pytest.fixture
def ended_queries(spark: SparkSession) -> Iterator[None]:
    """Stop the test's queries at its end."""
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture(scope="session")
def object_store() -> Iterator[object]:
    from tests.support.object_store import serving

    yield from serving()


@pytest.fixture(scope="session")
def browser() -> str:
    """A browser without a window."""
    return prepared(str(DOCKER / "browser.sh"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server of the tests' own."""
    from integration.postgres import serving

    yield from serving()


@pytest.fixture
def dsn(postgres: str) -> str:
    """The server's address, with a schema ``shop`` in it, which has types and no tables."""
    from integration.postgres import execute

    execute(
        postgres,
        "drop schema if exists shop cascade",
        "create schema shop",
        "create type shop.mood as enum ('fine')",
        "create domain shop.short as varchar(3)",
        "create domain shop.filled as text check (value <> '')",
        "create domain shop.there as text not null",
    )
    return postgres
