"""Golden plans of topologies of every shape, with the optimizer's rules and without: sources, state, names, counters.

A checkpoint is bound to all of it.  ``python -m tests.support.plans.write`` writes the golden texts anew.  A line that changes
is a checkpoint that does not open, a name in a user's dashboard, or a rule that fires no longer.  A sample has each operator,
each source, and each rule once left out; ``make faults`` tries the rest.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from fkjoin.plan.rules import RULES, STAGES_SHARE_AN_OPERATOR
from tests.support.plans.topologies import TOPOLOGIES
from tests.support.plans.write import GOLDEN, Plans
from tests.support.sampling import sampled
from tests.support.sessions import small

FIRST_WITHOUT = {rule: name for name, one in reversed(TOPOLOGIES.items()) for rule in one.without}
"""For each rule the first topology whose plan without it is pinned."""


def facts(name: str) -> set[tuple[str, ...]]:
    """The kinds of a plan's steps and sources, its stages, verdicts of rules, and names of what checkpoints are bound to."""
    text = (GOLDEN / f"{name}.txt").read_text()
    described = text.partition("\n  query ")[0]
    patterns = [r"^    (\w+) \S+  ", r"from +(\w+) ", r"Sub-topology: \d+ +(\w+)"]
    patterns.append(r": ([\w-]+) (fired|did not.*)$")
    bound = re.findall(r"^ {8}(\w+) = ", text, re.MULTILINE)
    return set(bound).union(*(re.findall(pattern, described, re.MULTILINE) for pattern in patterns))


def with_new_facts(first: Collection[str]) -> Iterator[str]:
    """Topologies to begin with, and others that have what none before them has."""
    known = set[tuple[str, ...]]()
    for name in dict.fromkeys([*first, *TOPOLOGIES]):
        if name in first or not facts(name) <= known:
            yield name
        known |= facts(name)


SOURCES = [name for name in TOPOLOGIES if name.startswith("source_")]
SAMPLE = {*with_new_facts([*FIRST_WITHOUT.values(), *SOURCES])}
NO_RULES = sampled(tuple(TOPOLOGIES), ("chain", "star"))
"""Topologies whose plans without any rule are tried, too."""


def left_out(name: str) -> tuple[str, ...]:
    """The rules that a plan is tried without: in a sample, up to the last one that no topology before it has."""
    without = TOPOLOGIES[name].without
    if name in NO_RULES:
        return without
    numbers = [number for number, rule in enumerate(without, 1) if FIRST_WITHOUT[rule] == name]
    return without[: max(numbers, default=0)]


@pytest.fixture(scope="module")
def plans(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Plans:
    folder = tmp_path_factory.mktemp("plans")
    small(spark, folder, buckets=2, partitions=2)
    return Plans(spark, folder)


@pytest.mark.faults
@pytest.mark.parametrize("name", sampled([*TOPOLOGIES], sorted(SAMPLE)))
def test_the_plan_is_as_it_was(plans: Plans, name: str) -> None:
    topology, no_rules = replace(TOPOLOGIES[name], without=left_out(name)), name in NO_RULES
    parts = re.split(r"^(?=without |no rules$)", (GOLDEN / f"{name}.txt").read_text(), flags=re.MULTILINE)
    wanted = "".join(parts[: 1 + len(topology.without) + no_rules])
    found = plans.text(topology, no_rules=no_rules)
    diff = difflib.unified_diff(wanted.splitlines(), found.splitlines(), f"plans/{name}.txt", "found", lineterm="", n=2)
    assert wanted == found, "\n".join(["the plan has moved:", *diff])


def test_the_plan_without_each_rule_is_pinned_of_a_topology() -> None:
    assert set(FIRST_WITHOUT) == set(RULES) - {STAGES_SHARE_AN_OPERATOR}  # they are for two buckets


def test_all_texts_are_of_topologies() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(TOPOLOGIES)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_stages_that_are_described_are_those_with_state(name: str) -> None:
    """Sub-topologies have numbers one after the other: one for each source, and each operator with state.

    A job describes those of all of its queries, also of dead letters; a table those of its changes.
    """
    text = re.split(r"^(?=without |no rules$)", (GOLDEN / f"{name}.txt").read_text(), maxsplit=1, flags=re.MULTILINE)[0]
    facts_of_plan, *queries = text.split("\n  query ")
    described, _, _ = facts_of_plan.partition("\n  rules")
    is_job = name.startswith("job_")
    ran = "".join(queries if is_job else queries[:1])
    stores = Counter[str]()
    for store, times in re.findall(r"Sub-topology: .*store ([\w-]+)(?:.*?, (\d+) times)?", described):
        stores[store] += int(times or 1)
    assert stores == Counter(re.findall(r"\n +operator \d+: (\S+)", ran))
    numbers = list[int]()
    for first, last in re.findall(r"Sub-topology: (\d+)(?: to (\d+))?", described):
        numbers += range(int(first), int(last or first) + 1)
    assert sorted(numbers) == list(range(len(numbers)))
    sources = len(re.findall(r"\n +source \d+: (?!fkjoin-clock)", ran)) - described.count("\n      snapshot ")
    assert is_job or len(numbers) == sources + stores.total()
