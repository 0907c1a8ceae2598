"""Sinks of tests, and what sinks have."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import Table, fk_join
from fkjoin.sinks.batches import Batch, Write
from fkjoin.stages.join_rows import How
from tests.support.orders import tables
from tests.support.queries import table_of


@dataclass
class Memory:
    """Keeps each batch's changes; throws before it takes a batch whose number is in ``broken``."""

    place: str = "memory"
    broken: set[int] = field(default_factory=set)
    taken: dict[int, list[Any]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    kept: bool = True
    """True as long as each batch that it was given was worked out once for all sinks."""

    def begin(self, table: Table) -> Write:
        def write(batch: Batch, query: str, number: int) -> None:
            self.names.add(query)
            self.kept &= batch.packed.is_cached
            if number in self.broken:
                raise OSError(f"{self.place} is full")
            self.taken[number] = sorted(map(str, batch.changes.collect()))

        return write


def delta(folder: Path) -> dict[str, Any]:
    """The rows of a Delta table, by order."""
    from deltalake import DeltaTable

    return {row.pop("order_id"): row for row in DeltaTable(str(folder)).to_pyarrow_table().to_pylist()}


def lake(folder: Path) -> dict[str, str]:
    """The properties of a catalog of Iceberg tables in a folder."""
    place = folder / "iceberg"
    place.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/lake"}


def iceberg(folder: Path, table: str) -> list[dict[str, Any]]:
    """The rows of an Iceberg table in the folder's catalog."""
    from pyiceberg.catalog import load_catalog

    return load_catalog("default", **lake(folder)).load_table(table).scan().to_arrow().to_pylist()


def finished(query: StreamingQuery) -> StreamingQuery:
    """The query, after its end."""
    query.awaitTermination()
    return query


class Backup:
    """A copy of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.copy = folder, folder.with_name("backup")
        shutil.copytree(folder, self.copy)

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.copy, self.folder)


def joined(spark: SparkSession, folder: Path, how: How = "inner") -> Table:
    joiner = ["left.items", "right.region"]
    return fk_join(*tables(spark, folder), "customer_id", how=how, joiner=joiner, name="joined")


def there(spark: SparkSession, folder: Path, kind: str) -> dict[str, Any]:
    """The table that the sink has."""
    if kind == "delta":
        return delta(folder / kind)
    if kind == "iceberg":
        return {row.pop("order_id"): row for row in iceberg(folder, "shop.it")}
    rows = spark.read.parquet(str(folder / kind)).orderBy("batch").collect()
    return {key: {"items": row["items"], "region": row.region} for (key,), row in table_of(rows, "order_id").items()}
