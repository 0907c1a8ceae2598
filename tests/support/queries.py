"""Queries that read all that is there, and what their changes lead to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row


@dataclass
class Collected:
    """Rows of a query's batches, and its counters."""

    rows: list[Row] = field(default_factory=list)
    count: dict[str, int] = field(default_factory=dict)


def run(changes: DataFrame, checkpoint: Path, metrics: str | None = None) -> Collected:
    """Read all that is there, and stop."""
    found = Collected()

    def collect(frame: DataFrame, _: int) -> None:
        found.rows += frame.collect()

    query = (
        changes.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for progress in query.recentProgress:
        for name, value in (progress.observedMetrics[metrics].asDict() if metrics else {}).items():
            found.count[name] = found.count.get(name, 0) + value
    return found


def table_of(rows: list[Row], *key: str) -> dict[Any, Row]:
    """The table that changes lead to; they come in order of each key."""
    joined: dict[Any, Row] = {}
    for row in rows:
        name = tuple(row[part] for part in key)
        if row["_operation"] == "delete":
            del joined[name]
        else:
            assert (row["_operation"] == "update") == (name in joined), row
            joined[name] = row
    return joined


def write_lines(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write ``NAME.json`` with a line for each row."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def values(rows: Mapping[Any, Any], columns: list[str]) -> dict[Any, list[Any]]:
    """These columns of the rows, by key."""
    return {key: [row[column] for column in columns] for key, row in rows.items()}
