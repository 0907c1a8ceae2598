"""The sinks that are tables, through the tests that users have for theirs; PostgreSQL's is in integration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from fkjoin.sinks import Delta, parquet
from fkjoin.testing import SinkContract
from tests.support.parquet_table import ParquetTable, table_in
from tests.support.sampling import EVERY


@pytest.mark.faults
class TestDelta(SinkContract):
    every = 1 if EVERY else 3

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.at = tmp_path

    def make_sink(self, into: str) -> Delta:
        return Delta(self.at / into)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return DeltaTable(self.at / into).to_pyarrow_table().to_pylist()


class OfParquet(SinkContract):
    """Changes of a table: the promises that a batch is there once, whole or not at all."""

    every = 1 if EVERY else 25
    code = (parquet,)

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.at = spark, folder

    def make_sink(self, into: str) -> ParquetTable:
        return ParquetTable(self.spark, self.at / into)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return table_in(self.at / into, "id")


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.parametrize(
    "name",
    [
        "test_a_batch_that_is_repeated_is_left_out",
        "test_the_last_batch_of_each_query_is_remembered",
        "test_another_batch_of_a_number_and_an_earlier_one_are_refused",
        "test_a_batch_that_is_cut_off_is_there_or_not",
    ],
)
def test_parquet_files_have_a_batch_once_and_whole(spark: SparkSession, tmp_path: Path, name: str) -> None:
    getattr(OfParquet(spark, tmp_path), name)()
