"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("fkjoin", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("fkjoin")

TRACES = Path(__file__).parent / "traces"


def trace_files() -> list[Path]:
    return sorted(TRACES.glob("*.in.jsonl"))


def short_lived(**more: str) -> dict[str, str]:
    """An environment for programs that start a JVM for a minute; see ``fkjoin.spark.settings.SHORT_LIVED``."""
    from fkjoin.spark.settings import SHORT_LIVED

    return os.environ | {"JAVA_TOOL_OPTIONS": SHORT_LIVED, **more}


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """One local Spark session for all tests that need a JVM."""
    from fkjoin.spark.settings import SHORT_LIVED, session

    made = session(
        "fkjoin tests",
        master="local[2]",
        ui_enabled="false",
        driver_host="127.0.0.1",
        driver_extraJavaOptions=SHORT_LIVED,
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pure tests first, so that they fail in seconds."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is not None)
