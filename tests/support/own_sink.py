"""The example's sink, with a method by which it can be restored."""

from __future__ import annotations

import importlib
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from fkjoin.sinks import BatchId
from tests.support.places import ROOT


def module_of(example: str, name: str) -> ModuleType:
    """Import a module of an example, as its own programs do."""
    if (folder := str(ROOT / "examples" / example)) not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


sqlite_sink = module_of("sqlite", "sqlite_sink")
Sqlite: Any = sqlite_sink.Sqlite


class Restorable(Sqlite):
    def replace(self, batch: BatchId, rows: pa.Table) -> None:
        with self.transaction() as db:
            db.execute(f"delete from {self.table}")
            values = ", ".join("?" * rows.num_columns)
            given = [tuple(row.values()) for row in rows.to_pylist()]
            db.executemany(f"insert into {self.table} ({self.names}) values ({values})", given)
            mark = batch.query, self.into, batch.number, batch.began_ms
            db.execute("replace into fkjoin_batches values (?, ?, ?, ?)", mark)


def rows_of(database: Path, into: str) -> list[dict[str, Any]]:
    """The rows of a table of SQLite."""
    with closing(sqlite3.connect(database)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(f'select * from "{into}"')]
