"""A table's changes as Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import DayTimeIntervalType

from fkjoin.kinds import require_kinds
from fkjoin.sinks.batches import Batch, Write
from fkjoin.spark.parquet import ChangesOf, publish, require_renaming

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
        folder = require_renaming(table.frame.sparkSession, str(self.path))
        schema = table.changes.schema
        require_kinds("to_parquet", schema, DayTimeIntervalType)
        changes = None if table.packed is None else ChangesOf(table.packed[1], table.timestamps != "bigint")

        def write(batch: Batch, query: str, number: int) -> None:
            publish(batch.table.changes if changes is None else batch.frame, changes, folder, query, number, schema)

        return write
