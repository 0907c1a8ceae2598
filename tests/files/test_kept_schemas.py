"""Tables of files without a schema: a checkpoint keeps the columns that it was begun with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin import Table, cogroup, fk_join
from fkjoin import aggregates as agg
from fkjoin.checkpoint.begun import Begun
from fkjoin.lowering.as_begun import _learned, bound_again, read_below
from tests.support.queries import write_lines

pytestmark = pytest.mark.usefixtures("small_tables")


def put(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    write_lines(folder, name, list(rows))


def orders(spark: SparkSession, folder: Path, **more: Any) -> Table:
    return Table.from_files(spark, folder / "orders", key="order_id", version="lsn", **more)


def joined(spark: SparkSession, folder: Path) -> Table:
    customers = Table.from_files(spark, folder / "customers", key="customer_id", version="lsn")
    dear = orders(spark, folder).filter("amount >= 5", name="dear")
    return fk_join(dear, customers, "customer_id", name="joined")


def rows(spark: SparkSession, out: Path) -> dict[str, Any]:
    return {row.order_id: row for row in spark.read.parquet(str(out)).collect()}


@pytest.mark.nightly
def test_a_query_goes_on_with_the_columns_that_it_was_begun_with(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "customers", "1", {"customer_id": "c1", "name": "Ada", "lsn": 1})
    put(tmp_path / "orders", "1", {"order_id": "o1", "customer_id": "c1", "amount": 5, "lsn": 1})
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"

    def go_on() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fkjoin"):
            joined(spark, tmp_path).to_parquet(out, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()
        return [record.getMessage() for record in caplog.records if record.name == "fkjoin"]

    assert go_on() == []
    assert sorted(Begun.of(spark, str(checkpoint)).columns) == ["customers", "orders"]
    put(tmp_path / "orders", "2", {"order_id": "o2", "customer_id": "c1", "amount": 6, "coupon": "SPRING", "lsn": 2})
    put(tmp_path / "orders", "3", {"order_id": "o3", "customer_id": "c1", "amount": 7.5, "lsn": 3})
    (said,) = go_on()
    assert "table orders: its files have a new field coupon (string), which is left out" in said
    assert "schema=" in said
    assert go_on() == [], "once"
    found = rows(spark, out)
    assert sorted(found) == ["o1", "o2"], "an amount that is none is not a null"
    assert "coupon" not in found["o2"].left
    assert found["o2"].left.amount == 6


def test_every_kind_of_table_can_be_made_again(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "orders", "1", {"order_id": "o1", "customer_id": "c1", "amount": 5, "lsn": 1})
    put(tmp_path / "customers", "1", {"customer_id": "c1", "name": "Ada", "lsn": 1})
    source = orders(spark, tmp_path)
    customers = Table.from_files(spark, tmp_path / "customers", key="customer_id", version="lsn")
    by = source.group_by("customer_id", name="by")
    tables = [
        source.filter("amount > 1"),
        source.merge(orders(spark, tmp_path, name="others")),
        customers.with_children(source, "customer_id"),
        by.agg(sum=agg.sum("amount")),
        by.aggregate(0, "aggregate + amount", "aggregate - amount"),
        source.group_by("customer_id", "amount", name="sum").reduce(max, min),
        cogroup(by.agg(sum=agg.sum("amount")), source.group_by("customer_id", name="n").count()),
        fk_join(fk_join(source, customers, "customer_id", name="a"), customers, "left.customer_id", name="b"),
        source.materialize("kept").filter("amount > 1"),
    ]
    learned = source._planned.bound.learned
    given = orders(spark, tmp_path, schema="order_id string, amount double, lsn bigint")
    assert _learned(given._planned) == {}, "it is used as it is"
    wide = StructType([*learned, StructField("more_yet", StringType())])
    for table in tables:
        planned = table._planned
        assert _learned(planned)["orders"] == [source._planned]
        of = [*_learned(planned)["orders"], *_learned(planned).get("others", [])]
        again = bound_again(planned, {one: {"schema": wide} for one in of})
        assert "orders" not in _learned(again), "its columns are given now"
        assert again.name == table.name
        made = [one for one in read_below(again) if one.call is not None and one.call.options["schema"]]
        assert ["more_yet" in one.row_type.names for one in made] == [True] * len(of)
        assert bound_again(planned, {}) is planned
