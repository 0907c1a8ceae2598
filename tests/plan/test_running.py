"""``describe()`` of a job against real checkpoints: it has the stages that there is state of, and no others.

Of tables: tests/plan/test_golden_plans.py, the stages that are described.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from fkjoin.checkpoint.saved import saved_stores
from tests.support.plans.topologies import Sources, job
from tests.support.queries import write_lines
from tests.support.sessions import small


def test_the_queries_of_a_jobs_dead_letters_run_stages_too(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    write_lines(tmp_path / "orders", "0", [{"order_id": "o", "customer_id": "c", "amount": 9.0, "lsn": 1}])
    write_lines(tmp_path / "customers", "0", [{"customer_id": "c", "name": "Ada", "lsn": 1}])
    columns = ["1 / left.amount as a", "right.name"]
    join = {"left": "orders", "right": "customers", "extractor": "customer_id", "joiner": columns}
    made = job(Sources(spark, tmp_path, {}), {"out": "joined"}, joins={"joined": join}, trigger="available-now")
    there: Counter[str] = Counter()
    for query in made.queries():
        query.start().awaitTermination()
        stores = [store.name for store in saved_stores(spark, Path(query.checkpoint))]
        assert len(stores) == len(list((Path(query.checkpoint) / "state").iterdir()))
        there.update(stores)
    described = {stage.store: stage.readers for step in made.steps() for stage in step.stages}
    assert {store: len(readers) for store, readers in described.items()} == there
    assert described["joined-rekey"] == ("sink out", "dead letters of joined")
    assert described["joined-resolve"] == ("sink out",)
    (joined,) = [step for step in made.steps() if step.name == "joined" and step.stages]
    assert joined.operators == ("joined", "joined-answers")
