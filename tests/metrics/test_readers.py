"""A join that two operators of one query read: it runs twice, and each run counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, cogroup, fk_join
from fkjoin import aggregates as agg
from fkjoin.metrics import Metrics
from fkjoin.metrics.page import ShownJob, status
from fkjoin.plan.describe.steps import Step
from fkjoin.plan.rules import ANSWERS_KEEP_WHAT_IS_READ
from fkjoin.sessions.settings import EXCLUDED
from tests.support.queries import write_lines

SOURCES = [Step("source", name, "", (), (), ()) for name in ("orders", "customers")]
STEPS = [*SOURCES, Step("fk_join", "joined", "inner", (("left", "orders"), ("right", "customers")), (), ())]
LINE = "struct<id:string,customer:string,amount:double,lsn:bigint>"
RUNS = ("joined-answers-for-counted", "joined-answers-for-summed")


@pytest.fixture
def totals(spark: SparkSession, tmp_path: Path) -> Iterator[Table]:
    """Totals of 5 orders, one of which is no JSON, and 2 customers; both aggregates read the whole answers of the join."""
    spark.conf.set(EXCLUDED, ANSWERS_KEEP_WHAT_IS_READ)
    orders = [{"id": str(number), "customer": f"c{number % 2}", "amount": 1.0, "lsn": number} for number in range(4)]
    write_lines(tmp_path / "orders", "1", orders)
    (tmp_path / "orders" / "2.json").write_text("no JSON\n")
    write_lines(tmp_path / "customers", "1", [{"id": name, "region": "eu", "lsn": 1} for name in ("c0", "c1")])

    def table(name: str, columns: str) -> Table:
        about = {"key": "id", "version": "lsn", "format": "json", "schema": f"id string, {columns}, lsn bigint"}
        return Table.from_files(spark, tmp_path / name, name=name, **about)  # type: ignore[arg-type]

    orders_table, customers = table("orders", "customer string, amount double"), table("customers", "region string")
    joined = fk_join(orders_table, customers, "customer", name="joined")
    counted = joined.group_by("right.region", name="counted").agg(orders=agg.count())
    summed = joined.group_by("right.region", name="summed").agg(total=agg.sum("left.amount"))
    yield cogroup(counted, summed, name="both")
    spark.conf.set(EXCLUDED, "")


def test_each_run_of_a_join_that_is_read_twice_is_counted(
    tmp_path: Path, totals: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    query = totals.to_parquet(tmp_path / "out", checkpoint=tmp_path / "checkpoint", trigger="available-now")
    query.awaitTermination()
    metrics = Metrics()
    for progress in query.recentProgress:
        metrics.take(progress, "both")
    line = metrics.snapshot()["both"]
    for run in RUNS:
        counted = {name: line["totals"][run][name] for name in ("left-in", "right-in", "answers", "dead-letters")}
        assert counted == {"left-in": 4, "right-in": 2, "answers": 4, "dead-letters": 1}, run
    assert line["state"].keys() >= set(RUNS), "each has a state of its own"
    text = metrics.prometheus().decode()
    assert all(f'fkjoin_left_in_total{{operator="{run}",query="both"}} 4.0' in text for run in RUNS)
    query.show()
    shown = capsys.readouterr().out
    assert all(f"\n{run} " in shown for run in RUNS)
    letters = status(ShownJob("shop", STEPS), metrics)["dead_letters"]
    assert letters["operators"] == {"joined": [1, 1]}, "a record is there once"
    assert [(event["place"], event["words"]) for event in letters["last"]] == [("joined", f"not JSON that fits {LINE}")]
