"""What must not move: for topologies of every shape, with the optimizer's rules and without, sources, state, names, counters.

A checkpoint is bound to all of it.  ``python -m tests.plans.write`` writes the golden texts anew: a line that changes is a
checkpoint that does not open, a name in somebody's dashboard, or a rule that fires no longer.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import small
from tests.plans.topologies import TOPOLOGIES, Topologies
from tests.plans.write import GOLDEN, Plans

pytestmark = pytest.mark.spark


def require_as_it_was(plans: Plans, topologies: Topologies, golden: Path, name: str) -> None:
    """Compare a topology's plans with its golden text; all texts are of topologies."""
    assert {path.stem for path in golden.glob("*.txt")} == set(topologies.known)
    wanted, found = (golden / f"{name}.txt").read_text(), plans.text(topologies.known[name])
    diff = difflib.unified_diff(wanted.splitlines(), found.splitlines(), f"{golden.name}/{name}.txt", "found", lineterm="", n=2)
    assert wanted == found, "\n".join(["the plan has moved:", *diff])


@pytest.fixture(scope="module")
def plans(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Plans:
    folder = tmp_path_factory.mktemp("plans")
    small(spark, folder)
    return Plans(spark, folder)


@pytest.mark.parametrize("name", TOPOLOGIES.known)
def test_the_plan_is_as_it_was(plans: Plans, name: str) -> None:
    require_as_it_was(plans, TOPOLOGIES, GOLDEN, name)
