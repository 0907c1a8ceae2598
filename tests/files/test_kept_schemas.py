"""Tables of files without a schema: a checkpoint keeps the columns that it was begun with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin import Table, cogroup, fk_join
from fkjoin import aggregates as agg
from fkjoin.lowering.as_begun import _learned, bound_again, read_below
from tests.support.queries import write_lines

pytestmark = pytest.mark.usefixtures("small_tables")


def orders(spark: SparkSession, folder: Path, **more: Any) -> Table:
    return Table.from_files(spark, folder / "orders", key="order_id", version="lsn", **more)


def test_every_kind_of_table_can_be_made_again(spark: SparkSession, tmp_path: Path) -> None:
    order = {"order_id": "o1", "customer_id": "c1", "amount": 5, "lsn": 1}
    write_lines(tmp_path / "orders", "1", [order])
    write_lines(tmp_path / "customers", "1", [{"customer_id": "c1", "name": "Ada", "lsn": 1}])
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
