"""A table's changes as Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fkjoin.sinks.batches import Write
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

        def write(batch: Table, query: str, number: int) -> None:
            if batch.packed is None:
                publish(batch.changes, None, folder, query, number)
            else:
                results, unpack = batch.packed
                publish(results, ChangesOf(unpack, batch.timestamps != "bigint"), folder, query, number)

        return write
