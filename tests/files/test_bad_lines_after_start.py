"""A job whose files get lines that do not fit: it goes on, with the same checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError, fk_join
from tests.support.queries import write_lines

pytestmark = pytest.mark.usefixtures("small_tables")

# In the order of learned columns, which is by name.
ORDERS = "at bigint, customer bigint, gone boolean, lsn bigint, number string"


def orders(spark: SparkSession, folder: Path, **more: Any) -> Table:
    return Table.from_files(spark, folder / "orders", key="number", **{"version": "lsn", **more})


def written(made: Table, folder: Path) -> list[str]:
    """The numbers of all rows so far, after another run of one query."""
    out, checkpoint = folder / "out", folder / "checkpoint"
    query = made.to_parquet(out, checkpoint=checkpoint, trigger={"availableNow": True})
    query.awaitTermination()
    return sorted(row.number for row in SparkSession.active().read.parquet(str(out)).collect())


def test_what_becomes_of_lines_that_do_not_fit_does_not_bind_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    row = {"number": "o1", "customer": 1, "lsn": 2, "at": 6, "gone": False}

    def run(on_error: Any) -> list[str]:
        return written(orders(spark, tmp_path, schema=ORDERS, on_error=on_error).materialize("kept"), tmp_path)

    write_lines(tmp_path / "orders", "1", [row])
    assert run("fail") == ["o1"]
    write_lines(tmp_path / "orders", "2", [{**row, "number": "o2", "lsn": "x"}, {**row, "number": "o3"}])
    with pytest.raises(StreamingQueryException, match='set such lines aside, with on_error="dead-letter"'):
        run("fail")
    assert run("dead-letter") == ["o1", "o3"]


def test_an_expression_is_the_way_out_for_a_new_job(spark: SparkSession, tmp_path: Path) -> None:
    row = {"customer": "1", "lsn": "2024-01-01", "at": "2024-01-01", "gone": "c"}
    stray = {"number": "a stray number", **row, "lsn": 5, "at": 5}
    write_lines(tmp_path / "orders", "2", [{"number": "o1", **row}, {"number": "o2", **row}, stray])
    write_lines(tmp_path / "customers", "1", [{"id": 1, "lsn": 1, "name": "Ada"}])
    customers = Table.from_files(
        spark, tmp_path / "customers", key="id", version="lsn", schema="id bigint, lsn bigint, name string"
    )
    ways = {"version": "unix_micros(to_timestamp(lsn))", "timestamp": "to_timestamp(at)", "deleted": "gone = 'd'"}
    for name, plain, message in (
        ("version", "lsn", "version: lsn is string"),
        ("timestamp", "at", "timestamp: at is string"),
        ("deleted", "gone", "deleted: gone is string"),
    ):
        with pytest.raises(TopologyError, match=f"^{message}"):
            orders(spark, tmp_path, **{**ways, name: plain})
    made = orders(spark, tmp_path, **ways)
    with pytest.raises(TopologyError, match="^extractor: customer of left table orders is string"):
        fk_join(made, customers, "customer", how="left")
    assert written(fk_join(made, customers, "cast(customer as bigint)", how="left", name="joined"), tmp_path) == ["o1", "o2"]
