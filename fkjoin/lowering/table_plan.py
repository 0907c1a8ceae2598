"""A table's part of a physical plan: what operators read, what sinks know, how operators end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.attempt import Attempt, letters
from fkjoin.analysis.bound import Bound
from fkjoin.analysis.planned import Planned, Settings, Undecoded, with_visible
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.positions import numbers
from fkjoin.lowering.answers import JoinAnswers, JoinRows
from fkjoin.lowering.stage import framed, state_spec
from fkjoin.plan.base import Node
from fkjoin.plan.nodes import Source, starts_over
from fkjoin.plan.optimizer import stages_share_an_operator
from fkjoin.plan.physical import (
    BySpark,
    Counted,
    InWorkers,
    MessagesOnly,
    Physical,
    Running,
    Stage,
    Ticks,
    Union,
    by_spark,
    running_in,
    share_an_operator,
)
from fkjoin.spark import dead_letters
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.frame import CHAINS, DELETED, KEY, NUMBERS, OPERATION, PROBLEM, ROW, TS, VERSION
from fkjoin.spark.names import quoted, require_results
from fkjoin.spark.on_spark import columns_of, on_spark
from fkjoin.spark.packing import PackChanges, PackRows
from fkjoin.spark.schemas import arrow_schema, spark_schema
from fkjoin.spark.specs import PaceSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.join_rows import How
from fkjoin.stages.multi_join import Nested


@dataclass(frozen=True)
class Results:
    """Facts of a table that make changes of its frame: plain data.

    A server of Spark Connect runs sinks without the client's frames.
    """

    key: tuple[str, ...]
    rest: tuple[str, ...]
    """The row's columns that are not the key's."""
    timestamps: str | None
    """See ``Planned``."""
    source: tuple[str, ...] | None
    """Fields of a source's version, none where chains of positions have it; None of a result."""
    versions: tuple[str, ...]
    """The names of a result's versions."""
    unpack: UnpackResults | None
    """Function that makes a frame of encoded results; None where they come as a frame."""
    appends: bool = False
    """They are events, which are appended."""

    def frame(self, batch: DataFrame) -> DataFrame:
        """The frame of a batch, which may be packed."""
        if self.unpack is None:
            return batch
        rows = batch.mapInArrow(self.unpack, spark_schema(self.unpack.schema))
        return _as_frame(rows, self.unpack.versions)

    def changes(self, frame: DataFrame, *more: Column) -> DataFrame:
        """See ``Table.changes``; ``more``: columns made from the frame."""
        if self.appends:
            return frame.select(*(F.col(quoted(name)) for name in self.rest), *more)
        row = [F.col(quoted(ROW, name)).alias(name) for name in self.rest]
        key = [F.col(quoted(KEY, name)).alias(name) for name in self.key]
        if self.source is not None:
            operation = F.when(F.col(DELETED), F.lit("delete")).otherwise(F.lit("upsert"))
            if CHAINS in frame.columns:
                version = numbers(F.col(CHAINS))
            else:
                version = F.array(
                    *[F.col(f"{VERSION}.`{name}`").cast("bigint") for name in self.source]
                )
            about = [operation.alias("_operation"), version.alias("_version")]
        else:
            about = [F.col(OPERATION).alias("_operation")]
            about += [F.col(f"{NUMBERS}{name}").alias(f"_{name}") for name in self.versions]
        time = F.timestamp_micros(F.col(TS)) if self.timestamps != "bigint" else F.col(TS)
        return frame.where(F.col(PROBLEM).isNull()).select(
            *key, *row, *about, time.alias("_timestamp"), *more
        )


def rows_of(results: Physical, unpack: UnpackResults) -> BySpark:
    """The rows of a table, from the last stage's results."""
    rows = InWorkers(results, unpack, spark_schema(unpack.schema))
    return by_spark(partial(_as_frame, versions=unpack.versions), rows)


def _as_frame(rows: DataFrame, versions: tuple[tuple[str, int], ...]) -> DataFrame:
    operation, problem = F.col("operation"), F.lit(None).cast("string")
    of_versions = [F.col(f"numbers_{name}").alias(f"{NUMBERS}{name}") for name, _ in versions]
    columns = operation.alias(OPERATION), *of_versions
    return framed(rows, "key", operation == "delete", problem, *columns)


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
    multi: Callable[..., tuple[Any, Physical | None]] | None = field(default=None, repr=False)
    """Function that makes the rows of a multi-way join with fewer columns, for an operator."""
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

    @property
    def changes(self) -> DataFrame:
        """See ``Table.changes``."""
        return self.on_spark(self.changes_with())

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
    **more: Any,
) -> PackRows:
    """The function that packs the table's changes, with these columns of its rows.

    See ``PackRows``.
    """
    return PackRows(**_packing(table, row, settings), group=group, **more)


def pack_changes(
    table: TablePlan,
    row: pa.Schema,
    settings: Settings,
    foreign_key: pa.Schema | None = None,
    **more: Any,
) -> PackChanges:
    """The function that packs the table's changes for a join by a foreign key.

    See ``PackChanges``.
    """
    return PackChanges(**_packing(table, row, settings), foreign_key=foreign_key, **more)


def _packing(table: TablePlan, row: pa.Schema, settings: Settings) -> dict[str, Any]:
    return {
        "key": arrow_schema("key", table.key_type),
        "row": row,
        "buckets": settings.buckets,
        "validate": settings.validate,
        "start_over": starts_over(table.node),
    }


def stages_of(*tables: TablePlan) -> tuple[StageQuery, ...]:
    """The queries besides, of tables that an operator reads."""
    return tuple(chain.from_iterable(table.stages for table in tables))


def dead_of_all(*tables: TablePlan) -> tuple[Physical, ...]:
    """The rows that dead letters come from, of tables that an operator reads, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(table.dead for table in tables)))


def table_of(
    planned: Planned,
    node: Node,
    results: Physical,
    unpack: UnpackResults,
    *tables: TablePlan,
    **parts: Any,
) -> TablePlan:
    """Plan the table of the results of an operator's last stage.

    ``tables``: those that the operator reads, whose queries and dead letters come first;
    ``parts``: see ``TablePlan``.
    """
    common = {
        "rows": rows_of(results, unpack),
        "dead": dead_of_all(*tables),
        "stages": stages_of(*tables),
        "packed": Packed(results, unpack),
    }
    settings = planned.bound.settings
    if settings.buckets == 1:
        why_not = None if share_an_operator(results) else "no stage reads another one directly"
        node = stages_share_an_operator(node, settings.off, why_not)
    return TablePlan(planned, node, **{**common, **parts})


def paced(
    planned: Planned,
    results: Physical,
    about: Mapping[str, Any],
    **bound_to: Any,
) -> Physical:
    """The operator's results, held back until an interval is over.

    Results that are sent as they come stay as they are.  ``about``: the types of key and result,
    and the names of versions, for tools that read the state; ``bound_to``: see ``state_spec``.
    """
    settings, interval_ms = planned.bound.settings, planned.bound.emission.interval_ms
    if interval_ms is None:
        return results
    state = state_spec(settings, PaceSpec, planned.node, bound_to=bound_to, about=about)
    ends = Ticks(interval_ms, settings.buckets)
    held = Stage(Union((MessagesOnly(results), ends)), PaceSpec(state))
    return Counted(held, f"{planned.name}-pace", ("pace",))
