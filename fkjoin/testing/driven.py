"""Queries without Spark's streaming: plans, run over batches that are fed, with topics in memory between them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from fkjoin.checkpoint.stores import Identified
from fkjoin.errors import TopologyError
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.physical import Physical, Read, Ticks, reads
from fkjoin.sessions.access import require_classic
from fkjoin.spark.identity import read_identity
from fkjoin.spark.in_memory import MemoryBatch, MemoryQuery, MemoryStage, joined
from fkjoin.spark.on_spark import columns_of
from fkjoin.spark.schemas import as_arrow
from fkjoin.stages import Counters
from fkjoin.state import MemoryStore
from fkjoin.testing.driven_clock import ends_between
from fkjoin.testing.driven_inputs import Input

_Records = Mapping[str, pa.RecordBatch]


class DrivenBatch(NamedTuple):
    """One batch of a topology."""

    rows: Mapping[str, pa.RecordBatch]
    """Rows of inputs, by the inputs' names."""
    now_ms: int
    before_ms: int
    """The time of the batch before it."""
    records: _Records = MappingProxyType({})
    """Records of internal topics, by the topics' names."""


@dataclass
class DrivenStage(Identified):
    """A stage of a driven query, as readers of its stores know it."""

    of: MemoryStage
    checkpoint = "the driver"

    @property
    def identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return read_identity(self.of.spec.state.identity.encode())

    @property
    def stores(self) -> dict[int, MemoryStore]:
        return self.of.stores


class DrivenQuery:
    """The query of a plan."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Physical,
        inputs: Mapping[str, Input],
        topics: Collection[str] = (),
    ) -> None:
        """``topics``: the internal topics that there are."""
        self.memory = MemoryQuery(spark, plan)
        self._names = {one.rows: name for name, one in inputs.items()}
        self._records: dict[Physical, pa.Schema] = {}
        self.topics: list[str] = []
        """Internal topics that it reads, each once."""
        self.intervals: set[int] = set()
        """The intervals of its clocks, in milliseconds."""
        for node in reads(plan):
            if isinstance(node, Ticks):
                self.intervals.add(node.interval_ms)
            elif isinstance(node, Read) and node.options.get("subscribe") in topics:
                self._records[node] = as_arrow(columns_of(spark, node))
                self.topics.append(node.options["subscribe"])
            elif node not in self._names:
                raise TopologyError(f"table: its query reads a source, {node}, that is not one of its tables")

    def run(self, batch: DrivenBatch) -> pa.RecordBatch:
        """Run a batch; return the rows of the plan."""
        return self.memory.run(self._of(batch))

    def lose(self, batch: DrivenBatch) -> None:
        """Run a batch up to each stage in turn, and lose all that it did."""
        self.memory.lose(self._of(batch))

    def _of(self, batch: DrivenBatch) -> MemoryBatch:
        def read(node: Physical) -> pa.RecordBatch | None:
            if node not in self._records:
                return batch.rows.get(self._names[node])
            assert isinstance(node, Read)
            records = batch.records.get(node.options["subscribe"])
            if records is None:
                return None
            return _as_read(records, batch.now_ms, self._records[node])

        return MemoryBatch(read, batch.now_ms, batch.before_ms)


def _as_read(records: pa.RecordBatch, now_ms: int, schema: pa.Schema) -> pa.RecordBatch:
    """Records as Spark's source of topics gives them."""
    rows = records.num_rows
    more = {"offset": np.arange(rows), "timestamp": np.full(rows, now_ms * 1000), "timestampType": np.zeros(rows, int)}
    columns = [records.column(name) if name in records.schema.names else pa.array(more[name]) for name in schema.names]
    return pa.record_batch([one.cast(kind.type) for one, kind in zip(columns, schema, strict=True)], schema)


def _mixed(records: pa.RecordBatch, by: random.Random) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Records of a batch in any order, and those that come later: the rest of them, and some that have come already."""
    places = by.sample(range(records.num_rows), records.num_rows)
    now = places[: by.randint(0, len(places))]
    later = [*places[len(now) :], *now[: len(now) // 2]]
    return records.take(pa.array(now, pa.int64())), records.take(pa.array(later, pa.int64()))


def _query(spark: SparkSession, inputs: Mapping[str, Input], topics: Collection[str], plan: Physical) -> DrivenQuery:
    return DrivenQuery(spark, plan, inputs, topics)


class DrivenTopology:
    """The queries that keep a table up to date: those of its staged operators, and its own.

    Each has what was written of the internal topics that it reads, as far as it has not read it.
    """

    def __init__(self, table: TablePlan, inputs: Mapping[str, Input]) -> None:
        require_classic(
            table.spark,
            "fkjoin.testing.Driver",
            "make the table in a process with a classic session",
        )
        topics = {query.topics.last for query in table.stages}
        topics |= {query.internal for query in table.stages if query.internal is not None}
        self._of_plan = partial(_query, table.spark, inputs, topics)
        self._own = self._of_plan(table.results_plan)
        self._before = [self._of_plan(query.plan) for query in table.stages]
        self._letters = table.letters
        self._waiting: dict[tuple[int, str], list[pa.RecordBatch]] = defaultdict(list)

    @property
    def queries(self) -> list[DrivenQuery]:
        """The queries, each after those that write what it reads."""
        return [*self._before, self._own]

    @property
    def stages(self) -> list[DrivenStage]:
        stages: list[DrivenStage] = []
        for query in self.queries:
            stages += map(DrivenStage, query.memory.stages)
        return stages

    def ends(self, before_ms: int, now_ms: int) -> list[int]:
        """The ends of clocks' intervals that have to be heard on the way from one time to another."""
        intervals = set().union(*(query.intervals for query in self.queries))
        return ends_between(before_ms, now_ms, intervals)

    @property
    def count(self) -> Counters:
        counted: Counters = Counters()
        for query in self.queries:
            counted.update(query.memory.count)
        return counted

    def letters(self) -> DrivenQuery | None:
        """A query of the dead letters, which is new."""
        return None if self._letters is None else self._of_plan(self._letters)

    def clear(self) -> None:
        """Forget all state, and all records."""
        for query in self.queries:
            query.memory.clear()
        self._waiting.clear()

    def run(self, batch: DrivenBatch, *, lose: bool, mixed: random.Random | None = None) -> tuple[pa.RecordBatch, DrivenBatch]:
        """Run a batch; return the rows of the table's own query, and the batch with the records that were written in it.

        ``lose``: each query loses it first, up to each of its stages, and what it wrote stays.
        ``mixed``: some records wait for a later batch, and others come twice, in any order.
        """
        written: dict[str, pa.RecordBatch] = {}
        for number, query in enumerate(self._before):
            records = self._run(number, query, batch, lose=lose, mixed=mixed)
            topic_of = records.column("topic")
            for topic in pc.unique(topic_of).to_pylist():
                written[topic] = records.filter(pc.equal(topic_of, topic))
                self._deliver(topic, [written[topic]] * (1 + lose))
        rows = self._run(len(self._before), self._own, batch, lose=lose, mixed=mixed)
        return rows, batch._replace(records=written)

    def _deliver(self, topic: str, records: list[pa.RecordBatch]) -> None:
        for number, query in enumerate(self.queries):
            if topic in query.topics:
                self._waiting[number, topic] += records

    def _run(
        self,
        number: int,
        query: DrivenQuery,
        batch: DrivenBatch,
        *,
        lose: bool,
        mixed: random.Random | None,
    ) -> pa.RecordBatch:
        """Run a query with what waits for it of its topics."""
        records: dict[str, pa.RecordBatch] = {}
        for topic in query.topics:
            waiting = self._waiting.pop((number, topic), [])
            if not waiting:
                continue
            records[topic] = joined(waiting, waiting[0].schema)
            if mixed is not None:
                records[topic], later = _mixed(records[topic], mixed)
                self._waiting[number, topic].append(later)
        come = batch._replace(records=records)
        if lose:
            query.lose(come)
        return query.run(come)
