"""Files of lines, and tables of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from fkjoin import Table
from tests.support.queries import run


def write(folder: Path, name: str, *lines: str | bytes) -> None:
    """Write a file of lines, each with its end."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = [line if isinstance(line, bytes) else line.encode() for line in lines]
    (folder / name).write_bytes(b"".join(line + b"\n" for line in raw))


def collected(frame: DataFrame | None, checkpoint: Path) -> list[Row]:
    """All rows of a stream that there are."""
    assert frame is not None
    return run(frame, checkpoint).rows


def put(folder: Path, name: str, text: str) -> None:
    """Write a file, with the folders that it is in."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def table(spark: SparkSession, folder: Path, **more: Any) -> Table:
    """The table of the folder, with the key ``id`` and versions ``lsn`` unless told otherwise."""
    about: dict[str, Any] = {"key": "id", "version": "lsn", **more}
    return Table.from_files(spark, folder, **about)


def kept(made: Table, checkpoint: Path, *names: str) -> list[tuple[Any, ...]]:
    """These columns of the rows that a table has, in order."""
    found = collected(made.materialize("kept").changes, checkpoint)
    return sorted(tuple(row[name] for name in names) for row in found)


def gone_on(made: Table, folder: Path, *names: str, **more: Any) -> list[tuple[Any, ...]]:
    """These columns of all rows so far, after another run of a query; ``more``: of ``to_parquet``."""
    out, checkpoint = folder / "out", folder / "checkpoint"
    kept = made.materialize("kept")
    kept.to_parquet(out, checkpoint=checkpoint, trigger="available-now", **more).awaitTermination()
    rows = SparkSession.active().read.parquet(str(out)).collect()
    return sorted(tuple(row[name] for name in names) for row in rows)
