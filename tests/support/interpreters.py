"""The two interpreters of a physical plan, side by side: the same rows, batch by batch, through Spark and in memory.

A table is planned over inputs that are fed.  On Spark they are files of the fed rows; so versions and identities are the same.
In memory the batches have the times that Spark has logged for its own; so the stores are the same byte by byte.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

from fkjoin import Table
from fkjoin.checkpoint.saved_files import SavedFiles
from fkjoin.checkpoint.saved_log import SavedPartition
from fkjoin.checkpoint.stores import Identified, SavedStore, with_stores
from fkjoin.checkpoint.user_keys import rows_of
from fkjoin.events import Enriched
from fkjoin.lowering.handle import planned_of
from fkjoin.plan.physical import Counted, Physical, Read, below, replaced, stages
from fkjoin.sessions.own_folder import held_folder
from fkjoin.spark.in_memory import MemoryBatch
from fkjoin.spark.specs import STAGES
from fkjoin.stages import counters
from fkjoin.testing.driven import DrivenTopology
from fkjoin.testing.driver_input import FedChange, Input, fed
from tests.support.stores import contents

History = Sequence[Mapping[str, Sequence[FedChange]]]
"""Batches of changes, by the names of inputs."""

TEXTS = ("1", "2", "a", "a b", "B")
"""Values of texts, keys among them: few, so that rows have several changes; some are numbers, and some expressions throw."""
MINUTES = 40
MICROSECONDS = 60_000_000


@dataclass
class Run:
    """Outcome of a history in an interpreter."""

    results: list[Counter[str]] = field(default_factory=list)
    """The rows of each batch, as text."""
    counters: Counter[str] = field(default_factory=Counter)
    stores: dict[tuple[str, int], Any] = field(default_factory=dict)
    """Identity and bytes, by stage and bucket."""

    def add_store(self, stage: Identified, bucket: int, store: Any) -> None:
        facts, descriptions = stage.identity
        # The folder of a bucket's index has a random name.
        descriptions.pop("home", None)
        if entries := contents(store):
            self.stores[stage.name, bucket] = facts, descriptions, entries


class Interpreted:
    """A table whose plan both interpreters run."""

    def __init__(self, table: Table | Enriched) -> None:
        self.planned = table._planned if isinstance(table, Enriched) else planned_of("table", table)
        self._plan, self._inputs = fed(self.planned)

    def history(self, by: random.Random, batches: int, most: int, nulls: float, *, ties: bool = True) -> History:
        """Draw changes: deletions, late and repeated versions, ties, and unusable rows.

        ``nulls``: the part of nulls.
        """
        history: History = []
        for number in range(batches):
            batch = {}
            for name, source in self._inputs.items():
                changes = _changes(source, by, number, most, nulls)
                batch[name] = changes if ties else _apart(changes, number * most)
            history.append(batch)
        return history

    def on_spark(self, history: History, folder: Path) -> tuple[Run, list[int]]:
        """Run the batches in a query; also returns their times."""
        reads: dict[Physical, Physical] = {}
        for name, source in self._inputs.items():
            reads[source.rows] = _written(folder / name, source, [batch[name] for batch in history])
        run, checkpoint = Run(), folder / "checkpoint"

        def collect(frame: DataFrame, _: int) -> None:
            run.results.append(_texts(frame.toArrow().to_batches()))

        rows = self._plan.on_spark(replaced(self._plan.results_plan, reads.get))
        writer = rows.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
        query = writer.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        names = self._counted()
        for progress in query.recentProgress:
            for observed in progress.observedMetrics.values():
                # Sums over no rows are null: so they are in a batch that only a clock began.
                run.counters.update({name: number or 0 for name, number in observed.asDict().items() if name in names})
        if stages(self._plan.top):
            with_stores(SavedFiles.without_spark(checkpoint), None, functools.partial(_add_saved, run))
        # A clock may begin more batches, after those of the history, and the last may be cut off.
        times = [_began_ms(checkpoint, number) for number in SavedFiles.without_spark(checkpoint).folder.numbers("commits")]
        del run.results[len(times) :]
        assert len(times) >= len(history), "a batch of the history was not done"
        return run, times

    def in_memory(self, history: History, times: Sequence[int]) -> Run:
        """Run the batches in memory, at these times; those after the history have no changes."""
        run, queries, before_ms = Run(), DrivenTopology(self._plan), 0
        for number, now_ms in enumerate(times):
            batch = history[number] if number < len(history) else {}
            rows = {source.rows: source.batch(batch.get(name, ())) for name, source in self._inputs.items()}
            results, _ = queries.run(MemoryBatch(rows.__getitem__, now_ms, before_ms))
            run.results.append(_texts([results]))
            before_ms = now_ms
        run.counters = Counter(queries.count)
        for stage in queries.stages:
            for bucket, store in stage.stores.items():
                run.add_store(stage, bucket, store)
        return run

    def _counted(self) -> set[str]:
        names = set(counters.ALL)
        for node in below(self._plan.top):
            if isinstance(node, Counted):
                for stage in node.stages:
                    names |= set(STAGES[stage].counts)
        return names


def _written(folder: Path, source: Input, batches: Sequence[Sequence[FedChange]]) -> Read:
    """Write a file for each batch of an input; return the node that reads them one by one."""
    folder.mkdir(parents=True)
    for number, changes in enumerate(batches):
        file = folder / f"{number}.parquet"
        pq.write_table(pa.Table.from_batches([source.batch(changes)]), file)
        # Spark reads files in the order of their times.
        os.utime(file, (number, number))
    return Read("parquet", {"maxFilesPerTrigger": "1"}, str(folder), source.columns)


def _changes(source: Input, by: random.Random, batch: int, most: int, nulls: float) -> list[FedChange]:
    change = _event if source.of_events else _change
    return [change(source, by, batch, nulls) for _ in range(by.randint(0, most))]


def _apart(changes: list[FedChange], first: int) -> list[FedChange]:
    """The changes with versions that no other change of the history has, in the same order."""
    return [change._replace(version=change.version * 1000 + number) for number, change in enumerate(changes, first)]


def _event(source: Input, by: random.Random, batch: int, nulls: float) -> FedChange:
    return FedChange(None, _row(source.columns, by, nulls), batch)


def _change(source: Input, by: random.Random, batch: int, nulls: float) -> FedChange:
    planned, version = source.planned, 2 * batch + by.randrange(5)
    if planned.on_error != "fail" and by.random() < 0.05:
        return FedChange(None, None, version, None, "no JSON", (b"{", None))
    key = {column.name: _value(column.dataType, by, nulls) for column in planned.key_type}
    row = None if by.random() < 0.15 else _row(planned.row_type, by, nulls) | key
    timed = planned.timestamps is not None and by.random() < 0.9
    return FedChange(key, row, version, by.randrange(MINUTES) * MICROSECONDS if timed else None)


def _row(columns: StructType, by: random.Random, nulls: float) -> dict[str, Any]:
    row = {column.name: _value(column.dataType, by, nulls) for column in columns}
    return row | {name: None for name in row if by.random() < nulls}


def _value(kind: DataType, by: random.Random, nulls: float) -> Any:
    """Draw a value of a type; sums of them are exact in any order."""
    if isinstance(kind, StructType):
        return _row(kind, by, nulls)
    number = by.randrange(len(TEXTS))
    values = {
        "string": TEXTS[number],
        "double": number / 2,
        "boolean": number > 1,
        "timestamp": datetime.fromtimestamp(by.randrange(MINUTES) * 60, timezone.utc),
    }
    return values.get(kind.typeName(), number)


def _texts(batches: Sequence[pa.RecordBatch]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for batch in batches:
        rows.update(map(repr, rows_of(batch)))
    return rows


def _began_ms(checkpoint: Path, batch: int) -> int:
    _, settings, *_ = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    return int(json.loads(settings)["batchTimestampMs"])


def _add_saved(run: Run, stores: list[SavedStore]) -> None:
    for stage in stores:
        for partition in stage.partitions:
            _add_partition(run, stage, partition)


def _add_partition(run: Run, stage: SavedStore, partition: SavedPartition) -> None:
    with partition.opened() as log:
        for bucket, meta in log.metas().items():
            with held_folder() as folder, log.store(bucket, meta, folder) as store:
                run.add_store(stage, bucket, store)
