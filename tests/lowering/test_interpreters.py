"""Both interpreters of a physical plan make the same of the same batches: results, counters, and stores byte by byte.

Each golden topology runs a history that is drawn by its seed, with many rows side by side, since a query takes seconds.
``make faults`` runs all topologies.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fkjoin.jobs.job import Job
from fkjoin.plan import nodes
from fkjoin.plan.base import Node, in_order
from tests.support.interpreters import Interpreted
from tests.support.plans.topologies import TOPOLOGIES, Sources
from tests.support.sampling import EVERY, sampled
from tests.support.sessions import small

JOBS = {"job_with_sinks", "job_of_everything", "job_of_events"}
"""Jobs whose tables are of operators that other topologies have; only a job has windows that close."""
NAMES = [name for name in TOPOLOGIES if name not in JOBS]
SAMPLE = [
    "join_left_to_spark",
    "star",
    "events_enriched_by_an_aggregate_and_a_join",
    "merge_of_views",
    "join_by_key",
    "job_of_windows",
    "cogroup_of_sources",
    "children_of_a_source",
    "flat_map_of_a_view_summed_up",
    "aggregate_by_expressions",
    "aggregate_by_functions",
    "aggregate_of_members",
]
"""They have each kind of node, stage and aggregate, and functions and expressions of users."""
SHARED = {
    "join_with_an_aggregate_of_itself": 2,
    "star": 1,
    "merge_of_views": 2,
    "flat_map_of_a_view_summed_up": 2,
    "job_of_windows": 1,
}
"""Topologies, and how many operators of Spark they have with one bucket: rows that Spark makes are between two."""
WITHOUT_NULLS = {"aggregate_by_functions", "reduced"}
"""Functions of users that end a query at a null."""
WITHOUT_TIES = {"aggregate_by_expressions"}
"""An expression that a null makes null: its group has no result and starts over.

So the order of rows whose versions are equal decides, which partitions leave open.
"""
BATCHES, MOST = (4, 40) if EVERY else (2, 25)
"""Batches of a history, and changes of an input in a batch."""

WITH_ONE_BUCKET = sampled(NAMES, ["join_with_an_aggregate_of_itself", "job_of_windows", "star"])
WITH_TWO_BUCKETS = sampled(NAMES, [name for name in SAMPLE if name not in WITH_ONE_BUCKET])
CASES = [(name, 2) for name in WITH_TWO_BUCKETS] + [(name, 1) for name in WITH_ONE_BUCKET]
"""Topologies, and numbers of buckets: with one, stages share an operator."""
Build = Callable[[str, int], Interpreted]


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Build:
    sources = {buckets: Sources(spark, tmp_path_factory.mktemp("sources"), {}) for buckets in (1, 2)}

    @functools.cache
    def build(name: str, buckets: int) -> Interpreted:
        small(spark, sources[buckets].folder, buckets)
        topology = TOPOLOGIES[name].build(sources[buckets])
        return Interpreted(topology.tables["windows"] if isinstance(topology, Job) else topology)

    return build


def test_every_kind_of_node_is_in_the_sample(interpreted: Build) -> None:
    tried = {type(node) for name in SAMPLE for node in in_order(interpreted(name, 2).planned.node)}
    known = [kind for name, kind in vars(nodes).items() if isinstance(kind, type) and not name.startswith("_")]
    assert tried == {kind for kind in known if issubclass(kind, Node)} - {Node}


@pytest.mark.parametrize(("name", "buckets"), CASES)
@settings(max_examples=2 if EVERY else 1, derandomize=not EVERY, phases=(Phase.reuse, Phase.generate))
@given(seed=st.integers(0, (1 << 32) - 1))
def test_both_interpreters_make_the_same(
    interpreted: Build, tmp_path_factory: pytest.TempPathFactory, name: str, buckets: int, seed: int
) -> None:
    table, folder = interpreted(name, buckets), tmp_path_factory.mktemp("history")
    nulls = 0.0 if name in WITHOUT_NULLS else 0.1
    history = table.history(random.Random(seed), BATCHES, MOST, nulls, ties=name not in WITHOUT_TIES)
    spark, times = table.on_spark(history, folder)
    memory = table.in_memory(history, times)
    assert memory.results == spark.results
    assert memory.counters == spark.counters
    assert memory.stores == spark.stores
    if buckets == 1 and name in SHARED:
        assert len(list((folder / "checkpoint/state").iterdir())) == SHARED[name]
