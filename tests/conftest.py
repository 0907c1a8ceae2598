"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.delta_connector import delta_settings
from tests.support.processes import Command
from tests.support.sampling import EVERY
from tests.support.sessions import fkjoin_here, only_session, own_counts, pytest_runtest_makereport, small_tables

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore

__all__ = ["fkjoin_here", "own_counts", "pytest_runtest_makereport", "small_tables"]

settings.register_profile(
    "fkjoin",
    deadline=None,
    max_examples=200 if EVERY else 25,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("fkjoin")


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    yield from only_session("fkjoin tests", settings=delta_settings())


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    from tests.support.object_store import serving

    yield from serving()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts ``fkjoin …`` in a process of its own, and ends it by force after the test."""
    made: list[Command] = []

    def start(*arguments: str) -> Command:
        made.append(Command(tmp_path, *arguments))
        return made[-1]

    yield start
    for one in made:
        one.end_by_force()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pure tests first, so that they fail in seconds."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.faults)
    items.sort(key=lambda item: item.get_closest_marker("spark") is not None)
