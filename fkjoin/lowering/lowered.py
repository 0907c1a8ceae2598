"""A table as streaming DataFrames, and what other operators may read in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.attempt import Attempt, letters
from fkjoin.analysis.planned import Planned, with_visible
from fkjoin.codec.rows import Path
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.positions import numbers
from fkjoin.lowering.stage import counted, once
from fkjoin.plan.nodes import Node, Source
from fkjoin.spark.dead_letters import OnError, union
from fkjoin.spark.frame import CHAINS, DELETED, KEY, NUMBERS, OPERATION, PROBLEM, ROW, TS, VERSION
from fkjoin.spark.json_lines import JsonLines, plain_path
from fkjoin.spark.names import quoted, require_results
from fkjoin.spark.operator import StageName
from fkjoin.spark.schemas import struct_column
from fkjoin.spark.stepped import Stepped
from fkjoin.spark.topic_records import TopicRecords
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.answer_rows import RowMaker
from fkjoin.stages.contribute import Fields, Place

if TYPE_CHECKING:
    from fkjoin.lowering.multi_join import Joins


class Kept(NamedTuple):
    """What is kept of both rows of a join."""

    left: pa.Schema
    right: pa.Schema


@dataclass(frozen=True)
class Answers:
    """A join's answers before resolve, where its rows are fields of its inputs' rows."""

    name: str
    """What they are counted as in the progress: the join's name is that of what resolve emits."""
    envelopes: DataFrame
    of: Fields
    fields: Mapping[str, Place]
    """What the columns of a joined row are, and those of its key."""
    stages: tuple[StageName, ...]
    """Whose counters come with the answers."""
    less: Callable[[Kept, str], Answers] | None = None
    """Make them with no more than that of both rows, for a reader of that name; None where the join can only be made whole."""

    @cached_property
    def counted(self) -> DataFrame:
        """The answers alone."""
        return counted(self.envelopes, self.name, *self.stages).where("counter is null")

    def places(self, given: Iterable[Any], columns: pa.Schema) -> list[Place | None]:
        """Where each of what is given over the columns of a joined row is; None where it is more than a field."""
        paths = (plain_path(item, columns) for item in given)
        places = (None if path is None else self._place(path) for path in paths)
        return [place if place is not None and place[1] else None for place in places]

    def _place(self, path: Path) -> Place | None:
        """Where a field of a joined row is, or with an empty path one of both rows; None if there is no such field."""
        if path[0] not in self.fields:
            return None
        side, above = self.fields[path[0]]
        return side, (*above, *path[1:])


@dataclass(frozen=True)
class PreResolve:
    """The rows of a join, and of views of it, before resolve."""

    answers: Answers
    places: Callable[[Sequence[Path] | None], list[Place] | None]
    """What of the answers must be there for what is at paths of the rows (None: for all of them); None: everything."""
    frame: Callable[[Answers], DataFrame]
    """Make a frame of the rows, by Spark: see ``before_resolve``."""
    made: RowMaker | str
    """How workers make rows of answers; or why Spark has to."""


@dataclass(frozen=True)
class Narrow:
    """A multi-way join, with fewer columns."""

    possible: Callable[[Sequence[Path]], bool]
    """Whether there are fewer if only what is at paths of the rows is wanted."""
    frame: Callable[[Sequence[Path], str], DataFrame]
    """A frame of such rows, for a reader of that name."""


Undecoded: TypeAlias = tuple[DataFrame, JsonLines | TopicRecords | Stepped]
"""The lines of files, or a topic's records, and what is in them."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A table as streaming DataFrames, made once, when somebody reads it."""

    planned: Planned
    node: Node
    """The planned node with the rules that fired in it and below it."""
    frame: DataFrame
    """What operators read."""
    dead: tuple[DataFrame, ...] = ()
    """Frames, with ``RAW`` and ``PROBLEM``, that dead letters come from."""
    stages: tuple[StageQuery, ...] = ()
    """Of staged operators: the queries that run besides."""
    undecoded: Undecoded | None = field(default=None, repr=False)
    """Of a source and of views of it: how workers read it without ``frame``."""
    encoded: tuple[DataFrame, UnpackResults] | None = field(default=None, repr=False)
    """The results of the last stage before they become rows, and what makes rows of them."""
    answers: Answers | None = field(default=None, repr=False)
    """Of a join: what an operator may read in the place of its rows."""
    contributions: Callable[[int, bool], DataFrame] | None = field(default=None, repr=False)
    """Of an aggregate: envelopes of ``GROUPED`` for a cogroup, which folds them itself, as of its table with that number.

    True: also of updates that contribute what they did.
    """
    pre_resolve: PreResolve | None = field(default=None, repr=False)
    """Of a join and of views of it: its rows before resolve."""
    joins: Joins | str | None = field(default=None, repr=False)
    """Of a join: what one by another foreign key of the same left table needs to be one with it; or why it cannot."""
    narrow: Narrow | None = field(default=None, repr=False)
    """Of a multi-way join: makes ``frame`` with fewer columns."""
    settled: DataFrame | None = field(default=None, repr=False)
    """What sinks read, where that is not ``frame``."""

    @property
    def name(self) -> str:
        return self.node.name

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

    @property
    def every_row(self) -> DataFrame:
        """The frame; of a join, with all rows before resolve, which passes on the last of a batch."""
        return self.frame if self.pre_resolve is None else self.pre_resolve.frame(self.pre_resolve.answers)

    def dead_of(self, attempt: Attempt) -> tuple[DataFrame, ...]:
        """The frame that dead letters come from, of rows on which one of the columns throws."""
        if attempt.reason is None or self.on_error != "dead-letter":
            return ()
        return (letters(attempt.on(self.visible_in(self.every_row)), attempt.reason, self.name),)

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
        require_results(self.name, (*self.key, *self.rest))
        row = [F.col(quoted(ROW, name)).alias(name) for name in self.rest]
        key = [F.col(quoted(KEY, name)).alias(name) for name in self.key]
        if isinstance(self.node, Source):
            operation = F.when(F.col(DELETED), F.lit("delete")).otherwise(F.lit("upsert"))
            if CHAINS in self.frame.columns:
                version = numbers(F.col(CHAINS))
            else:
                version = F.array(*[F.col(f"{VERSION}.`{name}`").cast("bigint") for name in self._version_names])
            about = [operation.alias("_operation"), version.alias("_version")]
        else:
            about = [F.col(OPERATION).alias("_operation")]
            about += [F.col(f"{NUMBERS}{name}").alias(f"_{name}") for name, _ in self.node.versions]
        time = F.timestamp_micros(F.col(TS)) if self.timestamps != "bigint" else F.col(TS)
        usable = (self.frame if self.settled is None else self.settled).where(F.col(PROBLEM).isNull())
        return usable.select(*key, *row, *about, time.alias("_timestamp"), *more)

    @property
    def _version_names(self) -> list[str]:
        return struct_column(self.frame.schema, VERSION).names


def stages_of(*tables: Lowered) -> tuple[StageQuery, ...]:
    """The queries besides, of tables that an operator reads."""
    return tuple(query for table in tables for query in table.stages)


def dead_of_all(*tables: Lowered) -> tuple[DataFrame, ...]:
    """The frames that dead letters come from, of tables that an operator reads, each once."""
    return once(frame for table in tables for frame in table.dead)
