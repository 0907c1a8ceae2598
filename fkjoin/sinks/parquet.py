"""A table's changes as Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import SparkSession
from pyspark.sql.types import DayTimeIntervalType, StructType

from fkjoin.analysis.written import ABOUT, about, set_backs, went_back
from fkjoin.checkpoint.batch_log import BatchLog, Mark
from fkjoin.checkpoint.files import hadoop, local_path, require_writable, write_file
from fkjoin.errors import FkJoinError
from fkjoin.lowering.lowered import Lowered
from fkjoin.sinks.batches import Batch, Write
from fkjoin.sinks.parquet_folders import (
    batches_of,
    clear_drafts,
    label_for,
    mark_of,
    publish,
    require_alone,
    require_not_read,
    require_renaming,
    set_aside,
    writer_of,
)
from fkjoin.sinks.restored import SetBack, require_not_set_back
from fkjoin.spark.kinds import require_kinds
from fkjoin.spark.parquet import SET_ASIDE, ChangesOf


@dataclass(frozen=True)
class Parquet:
    """Sink into a folder of Parquet files, for ``Table.to``.

    Parameters
    ----------
    path : str or pathlib.Path
        See ``Table.to_parquet``.

    Examples
    --------
    >>> sink = Parquet("lake/joined")
    """

    path: str | Path

    @property
    def place(self) -> str:
        return f"parquet {self.path}"

    def check(self, table: Lowered) -> None:
        folder, _, _ = self._checked(table)
        if (place := local_path(*hadoop(table.spark, folder))) is not None:
            require_writable(place)

    def _checked(self, table: Lowered) -> tuple[str, str, StructType]:
        """The folder in full, what the folders of batches in it are called, and the type of what is written."""
        schema = table.changes.schema
        require_kinds("to_parquet", schema, DayTimeIntervalType)
        folder = require_renaming(table.spark, str(self.path))
        return folder, label_for(table.spark, folder, (*table.key, *table.rest)), schema

    def begin(self, table: Lowered) -> Write:
        spark = table.spark
        folder, label, schema = self._checked(table)
        write_file(*hadoop(spark, f"{folder}/{ABOUT}"), self._about(table, folder))
        changes = None if table.encoded is None else ChangesOf(table.encoded[1], table.timestamps != "bigint")

        writers: dict[str, str] = {}

        def write(batch: Batch, query: str, number: int) -> None:
            at = batch.packed.sparkSession
            if query not in writers:  # an earlier run of this process is at its end now, and what is to be set back is
                require_not_set_back(self.place, batch.set_backs.get(query), self.last_set_back(at, query))
                clear_drafts(at, folder, query)
                writers[query] = writer_of(query, set_backs(at, folder))
            rows = batch.changes if changes is None else batch.packed
            publish(rows, changes, folder, label=label, writer=writers[query], mark=Mark(number, batch.began_ms), schema=schema)

        return write

    def _about(self, table: Lowered, folder: str, now: Mapping[str, tuple[int, int | None]] = MappingProxyType({})) -> bytes:
        """Write the facts of the folder; ``now``: the query that sets it back, the identity and the first batch to move."""
        turns = went_back(table.spark, folder)
        turns |= {query: [*turns.get(query, ()), turn] for query, turn in now.items()}
        return about(table.node, table.timestamps, set_backs(table.spark, folder) + len(now), turns)

    def require_alone(self, table: Lowered, checkpoint: str) -> None:
        folder = require_renaming(table.spark, str(self.path))
        require_not_read(table.spark, folder, table.planned.files)
        require_alone(table.spark, folder, checkpoint)

    def last(self, spark: SparkSession, query: str) -> Mark | None:
        folders = batches_of(spark, str(self.path), query)
        return mark_of(spark, folders[-1][1]) if folders else None

    def last_set_back(self, spark: SparkSession, query: str) -> int | None:
        turns = went_back(spark, str(self.path)).get(query)
        return turns[-1][0] if turns else None

    def way_back(self, table: Lowered, query: str, log: BatchLog, turn: SetBack) -> Callable[[], None]:
        spark, place = table.spark, str(self.path)
        for _, first in _after(turn.known, went_back(spark, place).get(query, ())):
            if first is not None and first <= log.done:
                raise FkJoinError(f"its batches from {first} on were moved to {SET_ASIDE} for another copy of the checkpoint")
        folders = batches_of(spark, place, query)
        later = [folder for number, folder in folders if number > log.done]
        first = next((number for number, _ in folders if number > log.done), None)
        told = [folder for number, folder in folders if number <= log.done and log.mark(number).began_ms is not None]
        for folder in told:
            if (mark := mark_of(spark, folder)) is not None and not log.has(mark):
                raise FkJoinError(f"{folder} is of another run of the query than the checkpoint")

        def go_back() -> None:
            write_file(*hadoop(spark, f"{place}/{ABOUT}"), self._about(table, place, {query: (turn.identity, first)}))
            clear_drafts(spark, place, query)
            set_aside(spark, place, later)

        return go_back


def _after(known: int | None, turns: Sequence[tuple[int, int | None]]) -> Sequence[tuple[int, int | None]]:
    """The set-backs after the one that is known; all of them if none of them is."""
    return turns[1 + next((place for place, (identity, _) in enumerate(turns) if identity == known), -1) :]
