"""Columns of what fkjoin wrote: those that a query was begun with are kept, new ones are reported once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table
from tests.support.written import NOW, single, written

pytestmark = pytest.mark.usefixtures("small_tables")


def test_columns_are_kept_and_new_ones_are_reported_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(key: str, schema: str) -> None:
        single(spark, tmp_path, {"id": key, "n": 1, "more": "m", "lsn": 1})
        source = Table.from_files(spark, tmp_path / "single", key="id", version="lsn", name="single", schema=schema)
        written(source, tmp_path, "kept")

    def reported() -> list[str]:
        found = [record.getMessage().partition(" (")[0] for record in caplog.records if record.name == "fkjoin"]
        caplog.clear()
        return found

    def read() -> tuple[list[str], dict[str, Any]]:
        again = Table.from_fkjoin(spark, tmp_path / "kept").materialize("again")
        again.to_parquet(tmp_path / "again-out", checkpoint=tmp_path / "again-ck", **NOW).awaitTermination()
        rows = spark.read.parquet(str(tmp_path / "again-out")).collect()
        return reported(), {row.id: row.asDict().get("n") for row in rows}

    with caplog.at_level(logging.WARNING, "fkjoin"):
        write("a", "id string, lsn bigint, n bigint")
        assert read() == ([], {"a": 1})
        write("b", "id string, lsn bigint, n bigint, more string")
        said = ["table kept: its files have a new field more"]
        assert read() == (said, {"a": 1, "b": 1})
        assert read()[0] == []
        assert Table.from_fkjoin(spark, tmp_path / "kept")._planned.rest == ("n", "more"), "those of the newest batch"
        write("c", "id string, lsn bigint, more string")
        assert read() == ([], {"a": 1, "b": 1, "c": None}), "a column is not lost"
