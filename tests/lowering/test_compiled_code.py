"""The code that Spark compiles for a query: not again in each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import fk_join
from tests.support.orders import tables
from tests.support.queries import write_lines
from tests.support.sessions import small

KNOWN, MORE = 3, 1
"""Runs after which all code of a query is known, since the first ones have an empty table, and runs after them."""


def order(number: int) -> dict[str, Any]:
    return {"order_id": f"o{number % 3}", "customer_id": "c1", "amount": float(number), "items": 1, "lsn": number, "op": "u"}


def test_later_batches_run_code_that_is_compiled(spark: SparkSession, tmp_path: Path) -> None:
    """A number that differs in each batch, such as its time, must not be part of the code."""
    small(spark, tmp_path)
    write_lines(tmp_path / "customers", "c1", [{"customer_id": "c1", "region": "north", "lsn": 1, "op": "c"}])
    write_lines(tmp_path / "orders", "o0", [order(0)])
    compilations = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()  # type: ignore[union-attr]
    counts = []
    for number in range(1, KNOWN + MORE + 1):
        table = fk_join(*tables(spark, tmp_path), "customer_id", name="held", emit="periodic 100 ms")
        table.to_parquet(tmp_path / "out", checkpoint=tmp_path / "checkpoint", trigger="available-now").awaitTermination()
        counts.append(compilations.getCount())
        write_lines(tmp_path / "orders", f"o{number}", [order(number)])
    assert counts[KNOWN:] == [counts[KNOWN - 1]] * MORE, counts
