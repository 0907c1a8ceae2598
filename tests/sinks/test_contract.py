"""Sinks that are tables, through the tests that users have for their own; PostgreSQL's is in integration."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.sinks import BatchId, Delta, Parquet, TableSink, parquet, parquet_batches, parquet_folders, parquet_objects
from fkjoin.sinks.batches import Write
from fkjoin.spark.schemas import spark_schema
from fkjoin.testing import SinkContract
from tests.support.batch_places import BatchPlace, LocalPlace, StorePlace
from tests.support.object_store import ObjectStore
from tests.support.sampling import EVERY, sampled


class ParquetTable(TableSink):
    def __init__(self, spark: SparkSession, sink: Parquet) -> None:
        self.spark, self.sink = spark, sink
        self.write: Write | None = None

    @property
    def place(self) -> str:
        return self.sink.place

    def prepare(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self.schema, self.key = schema, key
        changes = self._changes(schema.empty_table(), schema.empty_table().select(list(key)))
        node = SimpleNamespace(name="it", key=key, appends=False)
        rest = tuple(name for name in schema.names if name not in key)
        table = SimpleNamespace(name="it", key=key, rest=rest, changes=changes, spark=self.spark, node=node)
        table.timestamps = table.packed = None
        self.write = self.sink.begin(cast(Any, table))

    def last_batch(self, query: str) -> BatchId | None:
        mark = self.sink.last(self.spark, query)
        return None if mark is None else BatchId(query, mark.number, mark.began_ms)

    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        assert self.write is not None
        changes = self._changes(upserts, deletes)
        times = {"began_ms": batch.began_ms, "previous_ms": batch.previous_ms}
        written = SimpleNamespace(packed=changes, changes=changes, **times)
        self.write(cast(Any, written), batch.query, batch.number)

    def _changes(self, upserts: pa.Table, deletes: pa.Table) -> DataFrame:
        deleted = [deletes[name] if name in self.key else pa.nulls(len(deletes), kind) for name, kind in self._kinds()]
        rows = pa.concat_tables([upserts, pa.table(deleted, schema=self.schema)])
        operations = pa.array(["update"] * len(upserts) + ["delete"] * len(deletes), pa.string())
        frame = self.spark.createDataFrame(rows.append_column("_operation", operations), verifySchema=False)
        kinds = spark_schema(self.schema)
        return frame.select(*(F.col(f"`{kind.name}`").cast(kind.dataType).alias(kind.name) for kind in kinds), "_operation")

    def _kinds(self) -> list[tuple[str, pa.DataType]]:
        return list(zip(self.schema.names, self.schema.types, strict=True))


def rows_of(changes: Iterable[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """The rows that changes lead to."""
    rows: dict[Any, dict[str, Any]] = {}
    for row in changes:
        rows.pop(row[key], None)
        if row.pop("_operation") != "delete":
            rows[row[key]] = row
    return list(rows.values())


@pytest.mark.faults
class TestDelta(SinkContract):
    every = 1 if EVERY else 23

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.at = tmp_path

    def make_sink(self, into: str) -> Delta:
        return Delta(self.at / into)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return DeltaTable(self.at / into).to_pyarrow_table().to_pylist()

    def drop(self, into: str) -> None:
        shutil.rmtree(self.at / into)

    @pytest.mark.nightly
    def test_each_type_comes_back_or_is_refused(self) -> None:
        """``test_any_row_comes_back_from_a_delta_table`` is the law of the types that come back."""
        super().test_each_type_comes_back_or_is_refused()


KINDS = ("a folder", "an object store")
NAMES = (
    "test_a_batch_that_is_cut_off_is_there_or_not",
    "test_a_batch_that_is_repeated_is_left_out",
    "test_the_last_batch_of_each_query_is_remembered",
    "test_a_batch_that_does_not_follow_the_last_one_is_refused",
)


class OfParquet(SinkContract):
    """Changes of a table in Parquet: a batch is there once, whole or not at all."""

    every = 1 if EVERY else 120
    code = (parquet, parquet_batches, parquet_folders, parquet_objects)

    def __init__(self, spark: SparkSession, at: Callable[[str], BatchPlace]) -> None:
        self.spark, self.at = spark, at

    def make_sink(self, into: str) -> ParquetTable:
        return ParquetTable(self.spark, self.at(into).sink())

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return rows_of(self.at(into).rows(), "id")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("kind", "name"), sampled([*product(KINDS, NAMES)], [*product(KINDS[:1], NAMES), (KINDS[1], NAMES[0])])
)
def test_parquet_files_have_a_batch_once_and_whole(
    spark: SparkSession, tmp_path: Path, object_store: ObjectStore, name: str, kind: str
) -> None:
    def at(into: str) -> BatchPlace:
        return LocalPlace(tmp_path / into) if kind == "a folder" else StorePlace(object_store, f"{name}/{into}")

    getattr(OfParquet(spark, at), name)()
