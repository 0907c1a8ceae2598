"""A table as streaming DataFrames, and what other operators may read in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.attempt import Attempt, letters
from fkjoin.analysis.planned import Planned, Undecoded, with_visible
from fkjoin.codec.rows import Path
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.lowering.results import Results
from fkjoin.lowering.stage import counted, once
from fkjoin.plan.base import Node
from fkjoin.plan.nodes import Enrich, Events, Source
from fkjoin.spark.dead_letters import OnError, union
from fkjoin.spark.frame import VERSION
from fkjoin.spark.json_lines import plain_path
from fkjoin.spark.names import require_results
from fkjoin.spark.operator import StageName
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.answer_rows import RowMaker
from fkjoin.stages.contribute import Fields, Place

if TYPE_CHECKING:
    from fkjoin.lowering.multi_join import Joins


class Kept(NamedTuple):
    """Columns that are kept of both rows of a join."""

    left: pa.Schema
    right: pa.Schema


@dataclass(frozen=True)
class Answers:
    """A join's answers before resolve, where its rows are fields of its inputs' rows."""

    name: str
    """Name of their counters in the progress: the join's name is that of what resolve emits."""
    envelopes: DataFrame
    of: Fields
    fields: Mapping[str, Place]
    """Columns of a joined row, and of its key."""
    stages: tuple[StageName, ...]
    """Stages whose counters come with the answers."""
    less: Callable[[Kept, str], Answers] | None = None
    """Make them with no more than that of both rows, for a reader of that name; None where the join can only be made whole."""
    _read: dict[str, Answers] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read_by(self, reader: str) -> Answers:
        """Return them under a name of the reader's own, made once: each reader runs the join, and Spark counts by name."""
        if reader not in self._read:
            self._read[reader] = replace(self, name=f"{self.name}-for-{reader}")
        return self._read[reader]

    @cached_property
    def counted(self) -> DataFrame:
        """The answers alone."""
        return counted(self.envelopes, self.name, *self.stages).where("counter is null")

    def places(self, given: Iterable[Any], columns: pa.Schema) -> list[Place | None]:
        """Places of what is given over the columns of a joined row; None for what is more than a field."""
        paths = (plain_path(item, columns) for item in given)
        places = (None if path is None else self._place(path) for path in paths)
        return [place if place is not None and place[1] else None for place in places]

    def _place(self, path: Path) -> Place | None:
        """The place of a field of a joined row, or with an empty path one of both rows; None if there is no such field."""
        if path[0] not in self.fields:
            return None
        side, above = self.fields[path[0]]
        return side, (*above, *path[1:])


@dataclass(frozen=True)
class PreResolve:
    """The rows of a join, and of views of it, before resolve."""

    answers: Answers
    places: Callable[[Sequence[Path] | None], list[Place] | None]
    """Function from paths of the rows (None: all of them) to what the answers must have; None: everything."""
    frame: Callable[[Answers], DataFrame]
    """Make a frame of the rows, by Spark: see ``before_resolve``."""
    made: RowMaker | str
    """The way in which workers make rows of answers; or why Spark has to."""


@dataclass(frozen=True)
class Narrow:
    """A multi-way join, with fewer columns."""

    possible: Callable[[Sequence[Path]], bool]
    """Function that makes fewer if only what is at paths of the rows is wanted."""
    frame: Callable[[Sequence[Path], str], DataFrame]
    """A frame of such rows, for a reader of that name."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A table as streaming DataFrames, made once, at its first use."""

    planned: Planned
    node: Node
    """The planned node with the rules that fired in it and below it."""
    frame: DataFrame
    """Frame that operators read."""
    dead: tuple[DataFrame, ...] = ()
    """Frames, with ``RAW`` and ``PROBLEM``, that dead letters come from."""
    stages: tuple[StageQuery, ...] = ()
    """Queries that run besides, of staged operators."""
    undecoded: Undecoded | None = field(default=None, repr=False)
    """Reader of a source, and of views of it, by which workers read it without ``frame``."""
    encoded: tuple[DataFrame, UnpackResults] | None = field(default=None, repr=False)
    """The results of the last stage before they become rows, and what makes rows of them."""
    answers: Answers | None = field(default=None, repr=False)
    """Answers of a join, which an operator may read in the place of its rows."""
    contributions: Callable[[int, bool], DataFrame] | None = field(default=None, repr=False)
    """Envelopes of ``GROUPED`` of an aggregate, for a cogroup that folds them itself as its table with that number.

    True: also of updates that contribute what they did.
    """
    pre_resolve: PreResolve | None = field(default=None, repr=False)
    """Rows of a join, and of views of it, before resolve."""
    joins: Joins | str | None = field(default=None, repr=False)
    """Needs of a join by another foreign key of the same left table that is to be one with it; or why it cannot."""
    narrow: Narrow | None = field(default=None, repr=False)
    """Function of a multi-way join that makes ``frame`` with fewer columns."""
    settled: DataFrame | None = field(default=None, repr=False)
    """Frame that sinks read, where that is not ``frame``."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def appends(self) -> bool:
        """Tell whether it is no table but events, whose frame has their columns and no others."""
        return isinstance(self.node, Events | Enrich)

    @property
    def spark(self) -> SparkSession:
        return self.planned.spark

    @property
    def key(self) -> tuple[str, ...]:
        return self.planned.key

    @property
    def key_type(self) -> StructType:
        return self.planned.key_type

    @property
    def row_type(self) -> StructType:
        return self.planned.row_type

    @property
    def rest(self) -> tuple[str, ...]:
        return self.planned.rest

    @property
    def timestamps(self) -> str | None:
        return self.planned.timestamps

    @property
    def on_error(self) -> OnError:
        return self.planned.on_error

    @property
    def connection(self) -> Connection | None:
        return self.planned.connection

    @property
    def visible(self) -> DataFrame:
        """The frame with the columns that expressions may name."""
        return self.visible_in(self.frame)

    def visible_in(self, frame: DataFrame) -> DataFrame:
        """Another frame of the table's rows with these columns."""
        return with_visible(frame, self.key, self.row_type)

    def every_row(self, reader: str) -> DataFrame:
        """The frame; of a join, for a reader of that name, all rows before resolve, which passes on a batch's last."""
        before = self.pre_resolve
        return self.frame if before is None else before.frame(before.answers.read_by(reader))

    def dead_of(self, attempt: Attempt, reader: str) -> tuple[DataFrame, ...]:
        """The frame that dead letters come from, of rows on which one of the reader's columns throws."""
        if self.on_error != "dead-letter" or attempt.reason is None:
            return ()
        rows = self.visible_in(self.every_row(f"{reader}-letters"))
        return (letters(attempt.on(rows), attempt.reason, self.name),)

    @property
    def dead_letters(self) -> DataFrame | None:
        """See ``Table.dead_letters``."""
        return union(self.dead, self.name)

    @cached_property
    def changes(self) -> DataFrame:
        """See ``Table.changes``."""
        return self.changes_with()

    def changes_with(self, *more: Column) -> DataFrame:
        """``changes``, and columns made from the frame."""
        if not self.appends:
            require_results(self.name, (*self.key, *self.rest))
        return self.results.changes(self.frame if self.settled is None else self.settled, *more)

    @cached_property
    def results(self) -> Results:
        """Return what sinks know of the table."""
        source: tuple[str, ...] | None = None
        if isinstance(self.node, Source):
            kind = self.frame.schema[VERSION].dataType
            source = tuple(kind.names) if isinstance(kind, StructType) else ()  # the chains of positions have it then
        versions = () if source is not None else tuple(name for name, _ in self.node.versions)
        unpack = None if self.encoded is None else self.encoded[1]
        return Results(self.key, self.rest, self.timestamps, source, versions, unpack, self.appends)


def stages_of(*tables: Lowered) -> tuple[StageQuery, ...]:
    """The queries besides, of tables that an operator reads."""
    return tuple(query for table in tables for query in table.stages)


def dead_of_all(*tables: Lowered) -> tuple[DataFrame, ...]:
    """The frames that dead letters come from, of tables that an operator reads, each once."""
    return once(frame for table in tables for frame in table.dead)
