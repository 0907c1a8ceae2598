"""``describe()`` against real checkpoints: it has the stages that there is state of, and no others."""

from __future__ import annotations

import json
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin.checkpoint.saved import saved_stores
from fkjoin.events import Enriched
from fkjoin.jobs.job import Job
from fkjoin.plan.describe.steps import steps_of
from fkjoin.stages.counters import metrics_name, state_metrics_name
from tests.support.plans.probe import read_plan
from tests.support.plans.topologies import TOPOLOGIES, Sources, job
from tests.support.sampling import sampled
from tests.support.sessions import small

NAMES = (
    "join",
    "star",
    "chain_through_views",
    "aggregate_of_an_aggregate",
    "cogroup_of_one_join",
    "merge_of_joins_grouped",
    "join_with_children",
    "join_by_key_of_a_join_summed_up",
    "flat_map_of_a_view_summed_up",
    "events_enriched_by_an_aggregate_and_a_join",
    "job_of_windows",
)

SAMPLE = [name for name in NAMES if name not in ("join", "chain_through_views", "aggregate_of_an_aggregate")]
"""Without those whose stages others have, too; ``make faults`` tries all."""

BOUGHT = {"customer_id": "c", "product": {"id": "p", "n": 1}, "shop": "s", "amount": 9.0}
ROWS = {
    "orders": [{"order_id": "o", **BOUGHT, "at": "2026-01-02T03:04:05", "sent": "2026-01-02T03:04:05"}],
    "returns": [{"order_id": "r", **BOUGHT}],
    "customers": [{"customer_id": "c", "name": "Ada", "region": "north"}],
    "products": [{"id": "p", "title": "Pen", "price": 1.0, "maker": "m"}],
    "shops": [{"shop": "s", "town": "t"}],
    "regions": [{"region": "north", "boss": "b"}],
}


def write(folder: Path) -> None:
    for table, rows in ROWS.items():
        (folder / table).mkdir()
        (folder / table / "0.json").write_text("".join(json.dumps({**row, "lsn": 1}) + "\n" for row in rows))


@pytest.mark.faults
@pytest.mark.parametrize("name", sampled(NAMES, SAMPLE))
def test_the_stages_that_are_described_are_those_with_state(spark: SparkSession, tmp_path: Path, name: str) -> None:
    small(spark, tmp_path)
    write(tmp_path)
    built = TOPOLOGIES.known[name].build(Sources(spark, tmp_path, {}))
    built = built.tables["windows"] if isinstance(built, Job) else built
    checkpoint = tmp_path / "checkpoint"
    built.to_parquet(tmp_path / "out", checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()

    there = Counter(store.name for store in saved_stores(spark, checkpoint))
    assert sum(there.values()) == len(list((checkpoint / "state").iterdir()))
    assert Counter(one.store for one in built._plan.running()) == there
    steps = steps_of([built._plan.node], built._plan.running())
    plans = [read_plan(stage.frame) for stage in built.stages]
    plans.append(read_plan(built.events if isinstance(built, Enriched) else built.changes))
    counted = {name.removeprefix(metrics_name("")) for plan in plans for name, _ in plan.counters}
    counted = {name for name in counted if not name.startswith(state_metrics_name(""))}
    assert {name for step in steps for name in step.operators} == counted
    assert not any(name in one.operators for one, other in permutations(steps, 2) for name in other.operators)
    assert {stage.store: len(stage.readers) for step in steps for stage in step.stages} == there
    begun = [number for step in steps for stage in step.stages for number in stage.subtopologies]
    begun += [step.subtopology for step in steps if step.subtopology is not None]
    sources = [source for source in plans[-1].sources if not source.startswith("fkjoin-clock")]
    assert sorted(begun) == list(range(len(sources) + sum(there.values()))), "one for each source, and each operator with state"


def test_the_queries_of_a_jobs_dead_letters_run_stages_too(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    write(tmp_path)
    columns = ["1 / left.amount as a", "right.name"]
    join = {"left": "orders", "right": "customers", "extractor": "customer_id", "joiner": columns}
    made = job(Sources(spark, tmp_path, {}), {"out": "joined"}, joins={"joined": join}, trigger="available-now")
    there: Counter[str] = Counter()
    for query in made.queries():
        query.start().awaitTermination()
        there.update(store.name for store in saved_stores(spark, Path(query.checkpoint)))
    described = {stage.store: stage.readers for step in made.steps() for stage in step.stages}
    assert {store: len(readers) for store, readers in described.items()} == there
    assert described["joined-rekey"] == ("sink out", "dead letters of joined")
    assert described["joined-resolve"] == ("sink out",)
    (joined,) = [step for step in made.steps() if step.name == "joined" and step.stages]
    assert joined.operators == ("joined", "joined-answers")
