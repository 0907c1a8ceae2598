"""Places of Parquet batches, a folder and an object store, and batches whose moments may be heard of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from fkjoin.sinks import Parquet
from fkjoin.sinks.parquet_folders import BatchFolders
from fkjoin.sinks.parquet_objects import BatchObjects
from tests.support.object_store import BUCKET, ObjectStore


@dataclass
class HeardBatch:
    """A batch that calls a function before and after it is worked out."""

    frame: DataFrame
    before: Callable[[], Any] = lambda: None
    after: Callable[[], Any] = lambda: None

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802  as Spark has it
        return self.frame.sparkSession

    def mapInArrow(self, function: Any, schema: str) -> HeardBatch:  # noqa: N802
        return HeardBatch(self.frame.mapInArrow(function, schema), self.before, self.after)

    def repartition(self, parts: int) -> HeardBatch:
        return HeardBatch(self.frame.repartition(parts), self.before, self.after)

    def collect(self) -> list[Any]:
        self.before()
        rows = self.frame.collect()
        self.after()
        return rows


@dataclass
class LocalPlace:
    """A folder, as the sink sees it and as it is; rows are those that a reader sees, the oldest batch first."""

    path: Path

    def batches(self, spark: SparkSession) -> BatchFolders:
        return BatchFolders(spark, str(self.path))

    def sink(self) -> Parquet:
        return Parquet(self.path)

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*.parquet"))

    def rows(self) -> list[dict[str, Any]]:
        files = [name for name in self.names() if not name.startswith("_")]
        return [row for name in files for row in pq.ParquetFile(self.path / name).read().to_pylist()]

    def put(self, name: str, data: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@dataclass
class StorePlace:
    """A folder in an object store, likewise."""

    store: ObjectStore
    name: str
    retry_s: float = 60

    @property
    def address(self) -> str:
        return f"s3a://{BUCKET}/{self.name}"

    def batches(self, spark: SparkSession) -> BatchObjects:
        return BatchObjects(self.address, self.store.options, self.retry_s)

    def sink(self) -> Parquet:
        return Parquet(self.address, self.store.options, self.retry_s)

    def names(self) -> list[str]:
        return [name for name in self.store.names(self.name) if name.endswith(".parquet")]

    def rows(self) -> list[dict[str, Any]]:
        return self.store.rows(self.name)

    def put(self, name: str, data: bytes) -> None:
        with self.store.files.open_output_stream(f"{BUCKET}/{self.name}/{name}") as stream:
            stream.write(data)


BatchPlace = LocalPlace | StorePlace
