"""Sinks that are tables, through the tests that users have for their own; PostgreSQL's is in integration."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from fkjoin.sinks import Delta, parquet, parquet_folders, parquet_objects
from fkjoin.testing import SinkContract
from tests.support.batch_places import BatchPlace, LocalPlace, StorePlace
from tests.support.object_store import ObjectStore
from tests.support.parquet_table import ParquetTable, rows_of
from tests.support.sampling import EVERY


@pytest.mark.faults
class TestDelta(SinkContract):
    every = 1 if EVERY else 11
    types = SinkContract.types if EVERY else SinkContract.types[::3]

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.at = tmp_path

    def make_sink(self, into: str) -> Delta:
        return Delta(self.at / into)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return DeltaTable(self.at / into).to_pyarrow_table().to_pylist()

    def drop(self, into: str) -> None:
        shutil.rmtree(self.at / into)


class OfParquet(SinkContract):
    """Changes of a table in Parquet: a batch is there once, whole or not at all."""

    every = 1 if EVERY else 60
    code = (parquet, parquet_folders, parquet_objects)

    def __init__(self, spark: SparkSession, at: Callable[[str], BatchPlace]) -> None:
        self.spark, self.at = spark, at

    def make_sink(self, into: str) -> ParquetTable:
        return ParquetTable(self.spark, self.at(into).sink())

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return rows_of(self.at(into).rows(), "id")


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["a folder", "an object store"])
@pytest.mark.parametrize(
    "name",
    [
        "test_a_batch_that_is_repeated_is_left_out",
        "test_the_last_batch_of_each_query_is_remembered",
        "test_a_batch_that_does_not_follow_the_last_one_is_refused",
        "test_a_batch_that_is_cut_off_is_there_or_not",
    ],
)
def test_parquet_files_have_a_batch_once_and_whole(
    spark: SparkSession, tmp_path: Path, object_store: ObjectStore, name: str, kind: str
) -> None:
    def at(into: str) -> BatchPlace:
        return LocalPlace(tmp_path / into) if kind == "a folder" else StorePlace(object_store, f"{name}/{into}")

    getattr(OfParquet(spark, at), name)()
