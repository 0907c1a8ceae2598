"""A table's part of a physical plan, and what operators may read in the place of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.attempt import Attempt, letters
from fkjoin.analysis.bound import Bound
from fkjoin.analysis.planned import Planned, Settings, Undecoded, with_visible
from fkjoin.kafka.internal import StageQuery
from fkjoin.lowering.answers import JoinAnswers, JoinRows, Prunable
from fkjoin.lowering.results import Results
from fkjoin.plan.base import Node
from fkjoin.plan.nodes import Source, starts_over
from fkjoin.plan.physical import InWorkers, Physical, Running, by_spark, running_in
from fkjoin.spark import dead_letters
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.frame import VERSION
from fkjoin.spark.names import require_results
from fkjoin.spark.on_spark import columns_of, on_spark
from fkjoin.spark.packing import PackChanges, PackRows
from fkjoin.spark.schemas import arrow_schema, spark_schema
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.join_rows import How
from fkjoin.stages.multi_join import Nested


class Packed(NamedTuple):
    """The results of a table's last stage before they become rows."""

    envelopes: Physical
    unpack: UnpackResults
    """Function that makes rows of them."""


@dataclass(frozen=True, eq=False)
class TablePlan:
    """A table's part of a physical plan, made once of a planned table."""

    planned: Planned
    node: Node
    """The planned node with the rules that fired in it and below it."""
    rows: Physical
    """The rows that operators read, with the columns of a table's frame (``spark.frame``)."""
    dead: tuple[Physical, ...] = ()
    """Rows, with ``RAW`` and ``PROBLEM``, that dead letters come from."""
    stages: tuple[StageQuery, ...] = ()
    """Queries that run besides, of staged operators."""
    packed: Packed | None = field(default=None, repr=False)
    """The results of the last stage, where there is one."""
    settled: Physical | None = field(default=None, repr=False)
    """The rows that sinks read, where those are others."""
    undecoded: Undecoded | None = field(default=None, repr=False)
    """Reader of a source, and of views of it, by which workers read it without ``rows``."""
    answers: JoinAnswers | None = field(default=None, repr=False)
    """A join whose rows are fields of its inputs' rows: its answers may be read in their place."""
    join: JoinRows | None = field(default=None, repr=False)
    """The rows of a join, and of views of it, before resolve."""
    joins: Joins | str | None = field(default=None, repr=False)
    """Needs of a join by another foreign key of the same left table that is to be one with it; or
    why it cannot."""
    multi: Prunable | None = field(default=None, repr=False)
    """A multi-way join, which can be made with fewer columns."""
    contributions: Callable[..., Physical] | None = field(default=None, repr=False)
    """Function that makes the contributions of an aggregate, which a cogroup reads."""

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
    def failing(self) -> str | None:
        """The table's name if a row that cannot be used stops the query."""
        return self.name if self.on_error == "fail" else None

    @property
    def top(self) -> Physical:
        """The plan of the query that a sink reads."""
        return self.rows if self.packed is None else self.packed.envelopes

    @property
    def frame(self) -> DataFrame:
        """The rows that a sink's query reads: results that are packed, or the table's frame."""
        return self.on_spark(self.top)

    def running(self, end: str | None = None) -> list[Running]:
        """The stages of the queries that keep a sink up to date with the table.

        ``end``: what the sink is called.
        """
        plans = [*(query.plan for query in self.stages), self.top]
        return list(chain.from_iterable(running_in(plan, end or self.name) for plan in plans))

    @property
    def results_plan(self) -> Physical:
        """The plan of the results of the last stage, unpacked; without one, of the rows."""
        if self.packed is None:
            return self.rows
        unpack = self.packed.unpack
        return InWorkers(self.packed.envelopes, unpack, spark_schema(unpack.schema))

    def on_spark(self, plan: Physical) -> DataFrame:
        """The streaming DataFrame of a plan's rows."""
        return on_spark(self.spark, plan)

    def columns_of(self, plan: Physical) -> StructType:
        """The columns of a plan's rows."""
        return columns_of(self.spark, plan)

    @property
    def visible(self) -> Physical:
        """The rows with the columns that expressions may name."""
        return self.visible_in(self.rows)

    def visible_in(self, rows: Physical) -> Physical:
        """Other rows of the table with these columns."""
        return by_spark(partial(with_visible, key=self.key, row=self.row_type), rows)

    def every_row(self, reader: str) -> Physical:
        """The rows; of a join, for a reader of that name, all before resolve.

        Resolve passes on a batch's last ones.
        """
        return self.rows if self.join is None else self.join.rows(self.join.plan.answers(reader))

    def dead_of(self, attempt: Attempt, reader: str) -> tuple[Physical, ...]:
        """The rows that dead letters come from, on which one of the reader's columns throws."""
        reason, name = attempt.reason, self.name
        if self.on_error != "dead-letter" or reason is None:
            return ()
        rows = self.visible_in(self.every_row(f"{reader}-letters"))
        return (by_spark(lambda frame: letters(attempt.on(frame), reason, name), rows),)

    @cached_property
    def letters(self) -> Physical | None:
        """The plan of the query of dead letters."""
        if not self.dead:
            return None
        return by_spark(partial(dead_letters.union, table=self.name), *self.dead)

    @property
    def dead_letters(self) -> DataFrame | None:
        """See ``Table.dead_letters``."""
        return None if self.letters is None else self.on_spark(self.letters)

    @cached_property
    def changes_plan(self) -> Physical:
        """The plan of the rows of ``changes``."""
        return self.changes_with()

    @property
    def changes(self) -> DataFrame:
        """See ``Table.changes``."""
        return self.on_spark(self.changes_plan)

    def changes_with(self, *columns: Column) -> Physical:
        """The rows of ``changes``, and columns made from the table's frame."""
        if not self.node.appends:
            require_results(self.name, (*self.key, *self.rest))
        rows = self.rows if self.settled is None else self.settled
        results = self.results
        return by_spark(lambda frame: results.changes(frame, *columns), rows)

    @cached_property
    def results(self) -> Results:
        """Return what sinks know of the table."""
        source: tuple[str, ...] | None = None
        versions: tuple[str, ...] = ()
        if isinstance(self.node, Source):
            kind: Any = self.columns_of(self.rows)[VERSION].dataType
            # Bytes where the chains of positions have the version.
            source = tuple(kind.names) if isinstance(kind, StructType) else ()
        else:
            versions = tuple(name for name, _ in self.node.versions)
        unpack = None if self.packed is None else self.packed.unpack
        return Results(
            self.key, self.rest, self.timestamps, source, versions, unpack, self.node.appends
        )


@dataclass(frozen=True)
class Joins:
    """A left table and the right tables that it is joined with.

    Another join of the result may be one with them.
    """

    left: TablePlan
    rows: Physical
    """The left rows with a struct ``foreign_key``: the columns of all foreign keys, in turn."""
    extractor: tuple[Any, ...]
    """Foreign keys as the user gave them, or as names of the left table's fields."""
    bound: tuple[Bound, ...] | None
    """Foreign keys, analyzed; None where one is a function."""
    rights: tuple[tuple[TablePlan, How], ...]
    result: Nested
    """Columns of the joined rows."""


def pack_rows(
    table: TablePlan,
    row: pa.Schema,
    settings: Settings,
    group: pa.Schema | None = None,
    *,
    number: int | None = None,
) -> PackRows:
    """The function that packs the table's changes, with these columns of its rows.

    See ``PackRows``.
    """
    return PackRows(
        arrow_schema("key", table.key_type),
        row,
        settings.buckets,
        group,
        settings.validate,
        number,
        starts_over(table.node),
    )


def pack_changes(
    table: TablePlan,
    row: pa.Schema,
    settings: Settings,
    foreign_key: pa.Schema | None = None,
    *,
    among: tuple[pa.Schema, ...] = (),
    number: int | None = None,
) -> PackChanges:
    """The function that packs the table's changes for a join by a foreign key.

    See ``PackChanges``.
    """
    return PackChanges(
        arrow_schema("key", table.key_type),
        foreign_key,
        row,
        settings.buckets,
        settings.validate,
        among,
        number,
        starts_over(table.node),
    )


def stages_of(*tables: TablePlan) -> tuple[StageQuery, ...]:
    """The queries besides, of tables that an operator reads."""
    return tuple(chain.from_iterable(table.stages for table in tables))


def dead_of_all(*tables: TablePlan) -> tuple[Physical, ...]:
    """The rows that dead letters come from, of tables that an operator reads, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(table.dead for table in tables)))
