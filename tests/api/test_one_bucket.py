"""With one bucket, stages share an operator of Spark, and each has a store of its own that is read like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, StateReader, Table, fk_join, read_state
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import rebuild, verify
from fkjoin.errors import SessionError
from fkjoin.plan.rules import STAGES_SHARE_AN_OPERATOR
from fkjoin.sessions.settings import BUCKETS, EXCLUDED, LATENCY, PARTITIONS
from tests.support.orders import History, tables

pytestmark = pytest.mark.usefixtures("small_tables")

STORES = ["joined-rekey", "joined-subscription", "joined-resolve", "counts-regroup", "counts-aggregate"]


def counts(spark: SparkSession, folder: Path) -> Table:
    """The numbers of orders by their customers' regions, of a join that is kept."""
    orders, customers = tables(spark, folder)
    columns = ["left.amount", "right.region"]
    joined = fk_join(orders, customers, "customer_id", "left", columns, name="joined").materialize("kept")
    return joined.group_by("region", name="counts").count()


def write(table: Table, folder: Path) -> None:
    table.to_parquet(folder / "out", checkpoint=folder / "checkpoint", trigger="available-now").awaitTermination()


def regions(history: History) -> dict[str, str | None]:
    """Each order's region: a batch join."""
    found = {}
    for key, order in history.orders.items():
        found[key] = history.customers.get(order["customer_id"], {}).get("region")
    return found


def test_stores_of_a_shared_operator_are_read_verified_and_rebuilt(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(BUCKETS, "1")
    history, checkpoint = History(tmp_path), tmp_path / "checkpoint"
    history.write(60)
    table = counts(spark, tmp_path)
    assert "in the same operator" in table.describe()
    write(table, tmp_path)
    assert {path.name for path in (checkpoint / "state").iterdir()} == {"0", "1"}  # Spark makes rows of a kept join
    assert [store.name for store in saved_stores(spark, checkpoint)] == STORES
    with StateReader(checkpoint, "kept") as reader:
        for _ in range(2):
            wanted = regions(history)
            rows = reader.get_many(list(wanted))
            assert {row["order_id"]: row["region"] for row in rows if row is not None} == wanted
            saved = read_state(spark, checkpoint, "kept").collect()
            assert {row.order_id: row.region for row in saved} == wanted
            history.write(40)
            write(counts(spark, tmp_path), tmp_path)
            reader.refresh()
    totals = {row.region: row["count"] for row in read_state(spark, checkpoint, "counts").collect()}
    numbers = [region for region in regions(history).values() if region is not None]
    assert totals == {region: numbers.count(region) for region in numbers}
    assert verify(spark, checkpoint) == []
    assert len(rebuild(spark, checkpoint, str(tmp_path / "index"))) == len(STORES)


def test_a_checkpoint_of_a_shared_operator_goes_on_with_its_rule_alone(spark: SparkSession, tmp_path: Path) -> None:
    History(tmp_path).write(20)
    spark.conf.set(BUCKETS, "1")
    write(counts(spark, tmp_path), tmp_path)
    spark.conf.set(EXCLUDED, STAGES_SHARE_AN_OPERATOR)
    apart = counts(spark, tmp_path)
    assert "in the same operator" not in apart.describe()
    says = "together was true and is now null; if the tables are the same, a rule of the optimizer is not"
    with pytest.raises(FkJoinError, match=says):
        write(apart, tmp_path)
    spark.conf.set(EXCLUDED, "")
    write(counts(spark, tmp_path), tmp_path)


def test_low_latency_is_one_bucket_unless_a_user_sets_their_number(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.unset(BUCKETS)
    spark.conf.set(LATENCY, "low")
    try:
        spark.conf.unset(PARTITIONS)
        assert counts(spark, tmp_path)._planned.bound.settings.buckets == 1
        assert spark.conf.get(PARTITIONS) == "1"
        spark.conf.set(BUCKETS, "2")
        assert counts(spark, tmp_path)._planned.bound.settings.buckets == 2
        spark.conf.set(LATENCY, "lowest")
        spark.conf.unset(BUCKETS)
        with pytest.raises(SessionError, match="spark.fkjoin.latency is 'lowest': it must be low or default"):
            counts(spark, tmp_path)
    finally:
        spark.conf.unset(LATENCY)
