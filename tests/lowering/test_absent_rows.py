"""Expressions that throw on nulls, and rows that are not there: deleted, filtered out, without a match, unreadable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.codec.expressions import Part
from fkjoin.codec.vectors import Columns, Steps, Where
from fkjoin.plan.rules import RULES
from fkjoin.sessions.settings import EXCLUDED
from fkjoin.spark.stepped import Stepped
from fkjoin.testing import Driver
from tests.support.driven import feed_lines
from tests.support.plans.topologies import Sources
from tests.support.sampling import sampled
from tests.support.sessions import small
from tests.support.stepped import Reading

KEY = pa.schema([("id", pa.string())])
ROW = pa.schema([("n", pa.float64())])


def number(given: float) -> Part:
    return Part("Literal", pa.float64(), argument=given)


def divided(n: Part) -> Part:
    """10 / coalesce(n, 0)."""
    return Part("Divide", pa.float64(), (number(10.0), Part("Coalesce", pa.float64(), (n, number(0.0)))))


N, Q = (Part("AttributeReference", pa.float64(), argument=name) for name in "nq")
POSITIVE = Where(Part("GreaterThan", pa.bool_(), (N, number(0.0))), "filter")
ALWAYS = Part("Divide", pa.float64(), (number(1.0), number(0.0)))


def stepped(steps: Steps, some: list[dict[str, Any]], by: Columns | None = None) -> list[dict[str, Any]]:
    """``some`` have ``n``, or ``deleted``, or ``problem``."""
    batch = pa.record_batch(
        {
            "key": pa.array([{"id": str(place)} for place in range(len(some))], pa.struct(list(KEY))),
            "row": pa.array([{"n": one["n"]} if "n" in one else None for one in some], pa.struct(list(ROW))),
            "deleted": pa.array(["deleted" in one for one in some], pa.bool_()),
            "problem": pa.array([one.get("problem") for one in some], pa.string()),
        }
    )
    packing = Stepped(Reading(), steps).packing(lambda batches: batches, by, failing="it")  # type: ignore[arg-type]
    return [row for made in packing(iter([batch])) for row in made.to_pylist()]


SOME: list[dict[str, Any]] = [{"deleted": True}, {"n": 5.0}, {"problem": "no JSON"}, {"n": 0.0}, {"n": 2.0}]


@pytest.mark.parametrize("some", [SOME, SOME[:1], SOME[1:2], []])
def test_steps_and_foreign_keys_are_of_rows_that_are_there(some: list[dict[str, Any]]) -> None:
    steps = (POSITIVE, Columns((("q", divided(N)),), "map_values"), Where(Part("GreaterThan", pa.bool_(), (divided(Q), Q))))
    found = stepped(steps, some, Columns((("k0", divided(Q)),), "extractor"))
    wanted = {5.0: {"q": 2.0}, 2.0: None}  # 10 / 2 > 2; 10 / 5 is not greater than 5
    assert [row["row"] for row in found] == [wanted.get(one.get("n", 0.0)) for one in some]
    assert [row["foreign_key"]["k0"] for row in found] == [5.0 if one.get("n") == 5.0 else None for one in some]
    assert [row["problem"] for row in found] == [one.get("problem") for one in some]
    assert [row["deleted"] for row in found if row["problem"] is None] == [
        one.get("n") != 5.0 for one in some if "problem" not in one
    ]


def test_what_always_throws_does_not_where_no_row_is_there() -> None:
    (row,) = stepped((Columns((("q", ALWAYS),), "map_values"),), [{"deleted": True}])
    assert row["deleted"]
    assert row["problem"] is None


THROWS = "10 / coalesce(n, 0)"


def built(spark: SparkSession, folder: Path) -> list[Table]:
    """A mapped table, a view of a join, groups of both, and a join of the join."""
    sources = Sources(spark, folder, {})
    left = sources.files("a", "id", "id string, n int, c int", on_error="fail")
    right = sources.files("b", "c", "c int, m int", on_error="fail")
    joiner = "10 / coalesce(left.n, 0) + right.m as p"
    joined = fk_join(left, right, "c", "inner", joiner, name="joined")
    some = left.filter("n > 0").map_values([f"{THROWS} as q"], name="mapped")
    view = joined.map_values(["10 / coalesce(p, 0) as q"], name="view")
    groups = left.filter("n > 0").group_by("id", value=f"{THROWS} as q", name="groups").agg(sum=agg.sum("q"))
    quotients = joined.group_by("id", value="10 / coalesce(p, 0) as q", name="of-join")
    chain = fk_join(joined, right, "cast(10 / coalesce(p, 0) as int) * 0 + 1", name="chain")
    return [some, view, groups, quotients.agg(sum=agg.sum("q")), chain]


@pytest.mark.faults
@pytest.mark.parametrize("fast", sampled([True, False], [True]))
def test_deletes_are_passed_on_by_workers_and_by_spark(spark: SparkSession, tmp_path: Path, fast: bool) -> None:
    """With ``on_error="fail"``: nothing of this is an error.  In memory, with Spark's own expressions."""
    small(spark, tmp_path, buckets=1)
    spark.conf.set(EXCLUDED, "" if fast else ",".join(RULES))
    first = [{"id": one, "n": 5, "c": 1, "lsn": 1} for one in ("deleted", "filtered", "unmatched", "kept")]
    gone = {"id": "deleted", "n": None, "c": None, "lsn": 2, "op": "d"}
    second = [gone, {"id": "filtered", "n": -5, "c": 2, "lsn": 2}, {"id": "unmatched", "n": None, "c": 7, "lsn": 2}]
    for driver in map(Driver, built(spark, tmp_path)):
        if "b" in driver.inputs:
            feed_lines(driver, "b", [{"c": 1, "m": 1, "lsn": 1}])
        feed_lines(driver, "a", first)
        inserted = sorted((change.key, change.operation) for change in driver.run())
        assert inserted == [(one, "insert") for one in ("deleted", "filtered", "kept", "unmatched")]
        feed_lines(driver, "a", second)
        deleted = sorted((change.key, change.operation) for change in driver.run())
        assert deleted == [(one, "delete") for one in ("deleted", "filtered", "unmatched")]
    spark.conf.set(EXCLUDED, "")
