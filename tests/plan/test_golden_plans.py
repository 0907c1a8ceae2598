"""Golden plans of topologies of every shape, with the optimizer's rules and without: sources, state, names, counters.

A checkpoint is bound to all of it.  ``python -m tests.support.plans.write`` writes the golden texts anew.  A line that changes
is a checkpoint that does not open, a name in a user's dashboard, or a rule that fires no longer.  All topologies are tried
with all rules, and a sample with fewer; ``make faults`` tries the rest.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin.plan.rules import RULES
from tests.support.plans.topologies import TOPOLOGIES, Topologies
from tests.support.plans.write import GOLDEN, Plans
from tests.support.sampling import sampled
from tests.support.sessions import small

FIRST_WITHOUT = {rule: name for name, one in reversed(TOPOLOGIES.known.items()) for rule in one.without}
"""For each rule the first topology whose plan without it is pinned."""
EVERY_CHOICE = sampled(tuple(TOPOLOGIES.known), tuple(FIRST_WITHOUT.values()))
"""Topologies whose plans with fewer rules are tried, too."""


def require_as_it_was(plans: Plans, topologies: Topologies, golden: Path, name: str, *, every_choice: bool) -> None:
    """Compare a topology's plans with its golden text, or with the part of all rules; all texts are of topologies."""
    assert {path.stem for path in golden.glob("*.txt")} == set(topologies.known)
    wanted = (golden / f"{name}.txt").read_text()
    if not every_choice:
        wanted = re.split(r"^(?=without |no rules$)", wanted, maxsplit=1, flags=re.MULTILINE)[0]
    found = plans.text(topologies.known[name], every_choice=every_choice)
    diff = difflib.unified_diff(wanted.splitlines(), found.splitlines(), f"{golden.name}/{name}.txt", "found", lineterm="", n=2)
    assert wanted == found, "\n".join(["the plan has moved:", *diff])


@pytest.fixture(scope="module")
def plans(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Plans:
    folder = tmp_path_factory.mktemp("plans")
    small(spark, folder, partitions=2)
    return Plans(spark, folder)


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.parametrize("name", TOPOLOGIES.known)
def test_the_plan_is_as_it_was(plans: Plans, name: str) -> None:
    require_as_it_was(plans, TOPOLOGIES, GOLDEN, name, every_choice=name in EVERY_CHOICE)


def test_the_plan_without_each_rule_is_pinned_of_a_topology() -> None:
    assert set(FIRST_WITHOUT) == set(RULES)
