"""A table's changes as Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import DayTimeIntervalType

from fkjoin.kinds import require_kinds
from fkjoin.names import require_results
from fkjoin.sinks.batches import Batch, Write
from fkjoin.spark.files import hadoop, write_file
from fkjoin.spark.parquet import ChangesOf, label_for, publish, require_renaming
from fkjoin.written import ABOUT, about

if TYPE_CHECKING:
    from fkjoin.table import Table


@dataclass(frozen=True)
class Parquet:
    """See ``Table.to_parquet``."""

    path: str | Path

    @property
    def place(self) -> str:
        return f"parquet {self.path}"

    def begin(self, table: Table) -> Write:
        require_results(table.name, (*table.key, *table.rest))
        schema = table.changes.schema
        require_kinds("to_parquet", schema, DayTimeIntervalType)
        spark = table.frame.sparkSession
        folder = require_renaming(spark, str(self.path))
        label = label_for(spark, folder, (*table.key, *table.rest))
        write_file(*hadoop(spark, f"{folder}/{ABOUT}"), about(table.node, table.timestamps))
        changes = None if table.packed is None else ChangesOf(table.packed[1], table.timestamps != "bigint")

        def write(batch: Batch, query: str, number: int) -> None:
            rows = batch.table.changes if changes is None else batch.frame
            publish(rows, changes, folder, label, query, number, schema)

        return write
