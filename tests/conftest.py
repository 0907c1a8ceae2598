"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACES = Path(__file__).parent / "traces"

EVERY = bool(os.environ.get("FKJOIN_EVERY_FAULT"))
"""Set by ``make faults``, which runs the tests marked ``faults``: matrices and laws, of which other runs try a sample."""

settings.register_profile(
    "fkjoin",
    deadline=None,
    max_examples=200 if EVERY else 60,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("fkjoin")

_T = TypeVar("_T")


def sampled(every: Sequence[_T], sample: Sequence[_T]) -> Sequence[_T]:
    """What of a matrix is to be tried."""
    return every if EVERY else sample


def trace_files() -> list[Path]:
    return sorted(TRACES.glob("*.in.jsonl"))


def short_lived(**more: str) -> dict[str, str]:
    """An environment for programs that start a JVM for a minute; see ``fkjoin.sessions.settings.SHORT_LIVED``."""
    from fkjoin.sessions.settings import SHORT_LIVED

    return os.environ | {"JAVA_TOOL_OPTIONS": SHORT_LIVED, **more}


def small(spark: SparkSession, folder: Path, buckets: int = 2) -> None:
    """Settings for tables that are built from here on: few partitions, indexes under ``folder``, all of the optimizer."""
    from fkjoin.sessions.settings import BUCKETS, EXCLUDED, INDEX_DIR, OPTIMIZE, PARTITIONS

    chosen = {PARTITIONS: "2", BUCKETS: str(buckets), INDEX_DIR: str(folder / "index"), OPTIMIZE: "true", EXCLUDED: ""}
    for name, value in chosen.items():
        spark.conf.set(name, value)


@pytest.fixture
def own_rules(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Small tables, and rules that a test may leave out: they are back for the tests after it."""
    from fkjoin.sessions.settings import EXCLUDED

    small(spark, tmp_path)
    yield
    spark.conf.set(EXCLUDED, "")


@pytest.fixture
def fkjoin_here(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """The command line in this process and its session, which a job's settings go into: a JVM takes ten seconds.

    It gives what is printed; ``FkJoinError`` comes as it is.
    """
    from typer.testing import CliRunner

    from fkjoin.cli.main import app

    monkeypatch.setattr(type(spark), "stop", lambda session: None)

    def call(*arguments: object) -> str:
        small(spark, tmp_path)
        command = [*map(str, arguments), "--spark-log", str(tmp_path / "spark.log")]
        return str(CliRunner().invoke(app, command, catch_exceptions=False).stdout)

    yield call
    small(spark, tmp_path)


def only_session(name: str, **conf: Any) -> Iterator[SparkSession]:
    """One local Spark session for all tests of a run that need a JVM."""
    from fkjoin.sessions.settings import SHORT_LIVED, session

    made = session(
        name, master="local[2]", ui_enabled="false", driver_host="127.0.0.1", driver_extraJavaOptions=SHORT_LIVED, **conf
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    status = made.sparkContext._gateway.proc.poll()
    assert status is None, f"the JVM did not live to see the tests' end: it left with status {status}"
    made.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    yield from only_session("fkjoin tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pure tests first, so that they fail in seconds."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.faults)
    items.sort(key=lambda item: item.get_closest_marker("spark") is not None)
