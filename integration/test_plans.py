"""What must not move of topologies that read topics, and of staged ones: see ``tests/plans/test_plans.py``."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from integration.broker import Broker
from integration.plans import GOLDEN, TOPOLOGIES, plans
from tests.conftest import small
from tests.plans.test_plans import require_as_it_was
from tests.plans.write import Plans


@pytest.fixture(scope="module")
def of_topics(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Plans:
    folder = tmp_path_factory.mktemp("plans")
    small(spark, folder)
    return plans(spark, folder, broker)


@pytest.mark.parametrize("name", TOPOLOGIES.known)
def test_the_plan_is_as_it_was(of_topics: Plans, name: str) -> None:
    require_as_it_was(of_topics, TOPOLOGIES, GOLDEN, name)
