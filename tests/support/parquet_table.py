"""Parquet files as a table, for the tests of table sinks: fkjoin's sink writes the changes, which make a table when read."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.sinks import BatchId, Parquet, TableSink
from fkjoin.sinks.batches import Write
from fkjoin.spark.schemas import spark_schema


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
