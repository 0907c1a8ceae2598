"""A table's changes as Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import SparkSession
from pyspark.sql.types import DayTimeIntervalType, StructType

from fkjoin.analysis.written import about, set_backs, went_back
from fkjoin.checkpoint.batch_log import BatchLog, Mark
from fkjoin.errors import FkJoinError, TopologyError, needs_extra
from fkjoin.lowering.lowered import Lowered
from fkjoin.sinks.batches import Batch, Write
from fkjoin.sinks.parquet_batches import (
    BatchFiles,
    label_for,
    number_of,
    of_query,
    place_of,
    require_alone,
    require_not_read,
    writer_of,
)
from fkjoin.sinks.parquet_folders import BatchFolders
from fkjoin.sinks.restored import SetBack, require_not_set_back
from fkjoin.spark.kinds import require_kinds
from fkjoin.spark.object_store import is_store, require_no_empty_name, require_no_login
from fkjoin.spark.outages import RETRY_S, require_retry_s
from fkjoin.spark.parquet import SET_ASIDE, ChangesOf


@dataclass(frozen=True)
class Parquet:
    """Sink into a folder of Parquet files, for ``Table.to``.

    Parameters
    ----------
    path, options, retry_s
        See ``Table.to_parquet``.

    Examples
    --------
    >>> sink = Parquet("lake/joined")
    """

    path: str | Path
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        require_retry_s(self.retry_s)
        if is_store(str(self.path)):
            require_no_login(str(self.path))
            require_no_empty_name(str(self.path))
            self._objects(str(self.path))

    @property
    def place(self) -> str:
        return f"parquet {self.path}"

    def check(self, table: Lowered) -> None:
        at, _, _ = replace(self, retry_s=0)._checked(table)
        at.check()

    def _checked(self, table: Lowered) -> tuple[BatchFiles, str, StructType]:
        """The batches at the path, what their folders are called, and the type of what is written."""
        schema = table.changes.schema
        require_kinds("to_parquet", schema, DayTimeIntervalType)
        at = self._batches(table.spark)
        return at, label_for(at, (*table.key, *table.rest)), schema

    def _batches(self, spark: SparkSession) -> BatchFiles:
        return self._at(spark, place_of(spark, str(self.path)))

    def _at(self, spark: SparkSession, place: str) -> BatchFiles:
        if is_store(place):
            return self._objects(place)
        if self.options:
            raise TopologyError(f"options: those of an object store, and {place} is in none; leave them out")
        return BatchFolders(spark, place)

    def _objects(self, place: str) -> BatchFiles:
        with needs_extra("to_parquet in an object store", "objects"):
            from fkjoin.sinks.parquet_objects import BatchObjects
        return BatchObjects(place, dict(self.options), self.retry_s)

    def begin(self, table: Lowered) -> Write:
        at, label, schema = self._checked(table)
        at.note(_facts(table, at))
        changes = None if table.encoded is None else ChangesOf(table.encoded[1], table.timestamps != "bigint")
        place = at.place
        begun: dict[str, tuple[BatchFiles, str]] = {}

        def write(batch: Batch, query: str, number: int) -> None:
            spark = batch.packed.sparkSession
            if query not in begun:  # an earlier run of this process is at its end now, and what is to be set back is
                require_not_set_back(self.place, batch.set_backs.get(query), self.last_set_back(spark, query))
                there = self._at(spark, place)
                there.clear_drafts(query)
                begun[query] = there, writer_of(query, set_backs(there.facts()))
            there, writer = begun[query]
            rows = batch.changes if changes is None else batch.packed
            there.publish(rows, changes, label=label, writer=writer, mark=Mark(number, batch.began_ms), schema=schema)

        return write

    def require_alone(self, table: Lowered, checkpoint: str) -> None:
        at = self._batches(table.spark)
        require_not_read(table.spark, at.place, table.planned.files)
        require_alone(table.spark, at, checkpoint)

    def is_there(self, spark: SparkSession) -> bool:
        at = self._batches(spark)
        return bool(at.facts() or at.folders())

    def last(self, spark: SparkSession, query: str) -> Mark | None:
        at = self._batches(spark)
        folders = of_query(at.folders(), query)
        return at.mark(folders[-1]) if folders else None

    def last_set_back(self, spark: SparkSession, query: str) -> int | None:
        turns = went_back(self._batches(spark).facts()).get(query)
        return turns[-1][0] if turns else None

    def way_back(self, table: Lowered, query: str, log: BatchLog, turn: SetBack) -> Callable[[], None]:
        at = self._batches(table.spark)
        for _, first in _after(turn.known, went_back(at.facts()).get(query, ())):
            if first is not None and first <= log.done:
                raise FkJoinError(f"its batches from {first} on were moved to {SET_ASIDE} for another copy of the checkpoint")
        folders = of_query(at.folders(), query)
        later = [folder for folder in folders if number_of(folder) > log.done]
        first = number_of(later[0]) if later else None
        told = [folder for folder in folders if folder not in later and log.mark(number_of(folder)).began_ms is not None]
        for folder in told:
            if (mark := at.mark(folder)) is not None and not log.has(mark):
                raise FkJoinError(f"{at.place}/{folder} comes from another run of the query than the checkpoint")

        def go_back() -> None:
            at.note(_facts(table, at, {query: (turn.identity, first)}))
            at.clear_drafts(query)
            at.set_aside(later)

        return go_back


def _facts(table: Lowered, at: BatchFiles, now: Mapping[str, tuple[int, int | None]] = MappingProxyType({})) -> bytes:
    """Write the facts of the place; ``now``: the query that sets it back, the identity and the first batch to move."""
    facts = at.facts()
    turns = went_back(facts)
    turns |= {query: [*turns.get(query, ()), turn] for query, turn in now.items()}
    return about(table.node, table.timestamps, set_backs(facts) + len(now), turns)


def _after(known: int | None, turns: Sequence[tuple[int, int | None]]) -> Sequence[tuple[int, int | None]]:
    """The set-backs after the one that is known; all of them if none of them is."""
    return turns[1 + next((place for place, (identity, _) in enumerate(turns) if identity == known), -1) :]
