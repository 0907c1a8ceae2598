"""An operator outside of fkjoin: one entry in ``OPERATORS`` and one in ``STAGES``, and all that plans and reads knows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from fkjoin import read_state
from fkjoin.checkpoint.entries import look_up
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.errors import FkJoinError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import json_schema, read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_operators import OperatorSection
from fkjoin.jobs.job_sections import JobSection
from fkjoin.jobs.job_tables import job_tables
from fkjoin.lowering.operators import OPERATORS, Operator
from fkjoin.spark.specs import STAGES
from fkjoin.testing import CRASH, DUPLICATE, REORDER, Driver
from tests.support.distinct import DistinctSpec, distinct, plan_distinct
from tests.support.job_files import job, run_queries
from tests.support.places import ROOT
from tests.support.plans.topologies import Sources
from tests.support.queries import write_lines
from tests.support.sessions import small


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "distinct", Operator(plan_distinct, distinct, "distincts"))
    monkeypatch.setitem(STAGES, "distinct", DistinctSpec)


def order(key: str, shop: str | None, lsn: int, *, gone: bool = False) -> dict[str, Any]:
    return {"id": key, "shop": shop, "lsn": lsn, "gone": gone}


def test_it_runs_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    """The table is made as a method of the face makes it."""
    small(spark, tmp_path, buckets=2)
    orders = Sources(spark, tmp_path, {}).files("orders", "id", "id string, shop string")
    shops = orders._called(distinct, by="upper(shop) as shop", name="shops")
    assert re.search(r"^distinct shops .*\n(  .*\n)*  Sub-topology: 2  distinct .*store shops-distinct", shops.describe(), re.M)
    driver = Driver(shops)
    source = driver.input("orders")
    source.change("o1", {"shop": "a"})
    source.change("o2", {"shop": "A"})
    source.change("o3", {"shop": None})
    assert [(one.key, one.operation) for one in driver.run()] == [("A", "insert")]
    assert driver.count["seen-again"] == 1
    source.change("o1", {"shop": "b"})
    driver.run(CRASH)
    driver.run(DUPLICATE)
    assert set(driver.table) == {"A", "B"}
    source.delete("o2")
    driver.run(REORDER)
    assert set(driver.table) == {"B"}
    assert [row["shop"] for row in driver.store("shops").all()] == ["B"]


JOB = """
name = "shop"
checkpoint = "{folder}/checkpoint"
trigger = "available-now"

[tables.orders]
path = "{folder}/orders"
key = "id"
version = "lsn"
deleted = "gone"
format = "json"
schema = "id string, shop string, lsn bigint, gone boolean"

[distincts.shops]
table = "orders"
by = ["upper(shop) as shop"]

[views.large]
of = "shops"
filter = "shop > 'A'"

[sinks.out]
table = "shops"
path = "{folder}/out"
format = "json"
"""


def test_a_job_runs_it_and_its_state_is_read(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, buckets=2)
    path, checkpoint = job(tmp_path, JOB), tmp_path / "checkpoint" / "sink-out"
    write_lines(tmp_path / "orders", "1", [order("o1", "a", 1), order("o2", "A", 2), order("o3", "c", 3)])
    run_queries(Job(read_job(path), spark))
    write_lines(tmp_path / "orders", "2", [order("o1", "b", 4), order("o3", "c", 5, gone=True)])
    changed = Job(read_job(path), spark)
    changed.check()
    run_queries(changed)
    with pytest.raises(FkJoinError, match="of store shops-regroup, by was .*upper.* and is now .*lower"):
        Job(read_job(job(tmp_path, JOB.replace("upper(shop)", "lower(shop)"))), spark).check()
    lines = [line for part in (tmp_path / "out").glob("part-*.json") for line in part.read_text().splitlines()]
    changes = sorted((row["shop"], row["_operation"]) for row in map(json.loads, lines))
    assert changes == [("A", "insert"), ("B", "insert"), ("C", "delete"), ("C", "insert")]
    assert sorted(row["shop"] for row in read_state(spark, checkpoint, "shops").collect()) == ["A", "B"]
    state = saved_stores(spark, checkpoint)
    for key, entry in (("B", ("distinct", {"shop": "B"})), ("o2", ("contribution", {"shop": "A"}))):
        assert entry in [(one["kind"], one["row"]) for one in look_up(state, "shops", key)]
    assert set(job_tables(spark, path)) == {"orders", "shops", "large"}
    with pytest.raises(JobError, match=r"distincts\.shops\.by: "):
        Job(read_job(job(tmp_path, JOB.replace("upper(shop)", "upper(shape)"))), spark)


def test_its_section_is_checked(tmp_path: Path) -> None:
    for old, new, message in (
        ('"orders"\nby', '"order"\nby', "table: there is no table or join 'order'"),
        ("by = ", 'bye = ["a"]\nby = ', "bye: there is no such setting; did you mean 'by'?"),
        ('by = ["upper(shop) as shop"]', "", "by: must be given"),
    ):
        with pytest.raises(JobError, match=re.escape(f"distincts.shops.{message}")):
            read_job(job(tmp_path, JOB.replace(old, new)))


def test_its_section_is_made_of_its_arguments() -> None:
    section = json_schema()["$defs"]["DistinctsSection"]
    assert (list(section["properties"]), section["required"]) == (["table", "by", "emit"], ["table", "by"])
    assert section["properties"]["emit"]["default"] == "on-change"


def test_each_section_of_an_operator_takes_what_its_calls_do() -> None:
    """Arguments of these calls are settings, or a job gives them: none is left out by mistake."""
    models = [get_args(field.annotation)[1] for field in JobSection.model_fields.values() if get_args(field.annotation)[1:]]
    sections = [model for model in models if isinstance(model, type) and issubclass(model, OperatorSection)]
    assert len(sections) > 7
    for section in sections:
        calls = [call for kind in section.kinds for call in kind.calls]
        assert calls, section
        settings = {setting for call in calls for setting in call.settings.values()}
        assert settings | set(section.inputs) <= set(section.fields_by_setting()), section


def test_the_package_does_not_know_it() -> None:
    texts = [path.read_text() for path in (ROOT / "fkjoin").rglob("*.py")]
    assert not any(re.search(r"\bdistincts\b|DistinctSpec|DistinctBound", text) for text in texts)
