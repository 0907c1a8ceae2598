"""Tables that are written as Parquet and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import Table
from tests.support.queries import write_lines

NOW: Any = {"trigger": {"availableNow": True}}


def written(table: Table, folder: Path, name: str) -> Path:
    """The table's changes as files; what came since the last time is written."""
    table.to_parquet(folder / name, checkpoint=folder / f"{name}-ck", **NOW).awaitTermination()
    return folder / name


def single(spark: SparkSession, folder: Path, *rows: dict[str, Any], **about: Any) -> Table:
    """The table of a folder of JSON lines, to which these rows are added as a file."""
    write_lines(folder / "single", str(len(list(folder.glob("single/*")))), list(rows))
    return Table.from_files(spark, folder / "single", **{"key": "id", "version": "lsn", "name": "single", **about})


JOB = """
name = "second"
checkpoint = "{folder}/second"
[tables.kept]
path = "{folder}/kept"
format = "fkjoin"
[sinks.out]
table = "kept"
path = "{folder}/out"
"""
