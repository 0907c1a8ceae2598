"""A job whose files get lines that do not fit: it goes on, with the same checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import TopologyError, fk_join
from tests.support.files import gone_on, table
from tests.support.queries import write_lines

pytestmark = pytest.mark.usefixtures("small_tables")

# In the order of learned columns, which is by name.
ORDERS = "at bigint, customer bigint, gone boolean, lsn bigint, number string"


def test_what_becomes_of_lines_that_do_not_fit_does_not_bind_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    row = {"number": "o1", "customer": 1, "lsn": 2, "at": 6, "gone": False}

    def run(on_error: str) -> list[tuple[Any, ...]]:
        orders = table(spark, tmp_path / "orders", key="number", schema=ORDERS, on_error=on_error)
        return gone_on(orders, tmp_path, "number")

    write_lines(tmp_path / "orders", "1", [row])
    assert run("fail") == [("o1",)]
    write_lines(tmp_path / "orders", "2", [{**row, "number": "o2", "lsn": "x"}, {**row, "number": "o3"}])
    with pytest.raises(StreamingQueryException, match='set such lines aside, with on_error="dead-letter"'):
        run("fail")
    assert run("dead-letter") == [("o1",), ("o3",)]


def test_an_expression_is_the_way_out_for_a_new_job(spark: SparkSession, tmp_path: Path) -> None:
    row = {"customer": "1", "lsn": "2024-01-01", "at": "2024-01-01", "gone": "c"}
    stray = {"number": "a stray number", **row, "lsn": 5, "at": 5}
    write_lines(tmp_path / "orders", "2", [{"number": "o1", **row}, {"number": "o2", **row}, stray])
    write_lines(tmp_path / "customers", "1", [{"id": 1, "lsn": 1, "name": "Ada"}])
    schema = "id bigint, lsn bigint, name string"
    customers = table(spark, tmp_path / "customers", schema=schema)
    ways = {
        "version": "unix_micros(to_timestamp(lsn))",
        "timestamp": "to_timestamp(at)",
        "deleted": "gone = 'd'",
    }
    about: dict[str, Any] = {"key": "number", **ways}
    for name, plain in {"version": "lsn", "timestamp": "at", "deleted": "gone"}.items():
        with pytest.raises(TopologyError, match=f"^{name}: {plain} is string"):
            table(spark, tmp_path / "orders", **{**about, name: plain})
    orders = table(spark, tmp_path / "orders", **about)
    with pytest.raises(TopologyError, match="^extractor: customer of left table orders is string"):
        fk_join(orders, customers, "customer", how="left")
    joined = fk_join(orders, customers, "cast(customer as bigint)", how="left", name="joined")
    assert joined.key == ("number",)
    assert gone_on(orders, tmp_path, "number") == [("o1",), ("o2",)]
